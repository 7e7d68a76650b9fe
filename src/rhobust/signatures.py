"""Signatures of files by OpenSSH keys: `ssh-keygen -Y`, detached, in a file NAME.sig next to the signed one.

Guarantee of a good signature: the holder of a key that you allow signed exactly these bytes, for rhobust. It says who
vouches for a record, not that the record is right.
"""

import subprocess
from pathlib import Path

from rhobust.files import read_file, write_whole

ENDING = ".sig"
"""How the names of signatures end."""
NAMESPACE = "rhobust"
"""What a signature is for: one made for mail or git is none for a record."""


def sign_file(path: Path, key: Path) -> Path:
    """Sign a file, and return the signature's path; an older signature is replaced.

    Args:
        path: The file.
        key: A private key of OpenSSH, or a public one whose private key the agent holds.

    Raises:
        ValueError: There is no such file or key, or ssh-keygen refuses: one line that says why.
    """
    if not key.is_file():
        raise ValueError(f"key must be a file with a key of OpenSSH, got {key}")
    done = _ssh_keygen(["-Y", "sign", "-f", str(key), "-n", NAMESPACE], read_file(path))
    if done.returncode != 0 or not done.stdout:
        raise ValueError(f"{path} could not be signed with {key}: {_reason(done)}")
    target = path.with_name(path.name + ENDING)
    write_whole(target, done.stdout)
    return target


def check_signers(signers: Path) -> None:
    """Refuse a file of allowed signers that is not there, and a machine without ssh-keygen."""
    if not signers.is_file():
        raise ValueError(f"signers must be a file of allowed signers, got {signers}")
    _ssh_keygen(["-Y", "find-principals", "-f", str(signers), "-s", str(signers)], b"")


def signer(path: Path, signers: Path) -> str:
    """Who signed a file.

    Args:
        path: The file; its signature is next to it.
        signers: Who may sign: lines "name key", as of OpenSSH's ALLOWED SIGNERS files.

    Raises:
        ValueError: There is no signature, or it is not a good one by an allowed signer.
    """
    signature = path.with_name(path.name + ENDING)
    if not signature.exists():
        raise ValueError(f"it has no signature: {signature.name} must be next to it, but there is no such file")
    read_file(signature, own=True)  # regular, of bounded size, and no link out of the folder
    allowed = ["-f", str(signers), "-n", NAMESPACE, "-s", str(signature)]
    found = _ssh_keygen(["-Y", "find-principals", *allowed], b"")
    names = found.stdout.decode(errors="replace").splitlines()
    if found.returncode != 0 or not names:
        raise ValueError(f"its signature is by nobody that {signers} allows: {_reason(found)}")
    done = _ssh_keygen(["-Y", "verify", *allowed, "-I", names[0]], read_file(path))
    if done.returncode != 0:
        raise ValueError(f"its signature is bad, the file or the signature was changed: {_reason(done)}")
    return names[0]


def _ssh_keygen(arguments: list[str], content: bytes) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["ssh-keygen", *arguments], input=content, capture_output=True, check=False)
    except FileNotFoundError:
        raise ValueError("ssh-keygen of OpenSSH must be installed for signatures, but there is none") from None


def _reason(done: subprocess.CompletedProcess[bytes]) -> str:
    return " ".join(done.stderr.decode(errors="replace").split()) or f"ssh-keygen ends with code {done.returncode}"
