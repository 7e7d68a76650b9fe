"""Reads and writes of files: regular ones, whole, and of bounded size.

Guarantee: a read never waits for a device, a FIFO or a socket, and never unpacks more than a stated number of bytes.
Writing replaces regular files only. An error names the file.
"""

import gzip
import io
import json
import os
import secrets
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LARGEST = 1 << 30
"""Bytes that a file may hold, and that a compressed one may unpack to, to be read into memory."""
DEEPEST = 64
"""Levels of lists and objects that a JSON document may have."""
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
}
_PIECE = 1 << 20
"""Bytes that are read at once."""
_LONGEST = 100
"""Characters of a file's name that its temporary file has in its own."""


def open_regular(path: Path, *, own: bool = False) -> io.BufferedReader:
    """Open a regular file to read it.

    Args:
        path: The file; a link is followed.
        own: Whether the file belongs to a folder that somebody may have sent: a link out of its folder is refused.

    Raises:
        ValueError: It is a folder, a device, a FIFO or a socket, or such a link.
        FileNotFoundError: There is no such file.
    """
    check_regular(path, own=own)
    # Opening a FIFO without a writer would wait for one; what the path names may have changed since the check.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check_mode(path, os.fstat(descriptor).st_mode)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def check_regular(path: Path, *, own: bool = False) -> None:
    """Raise unless a path names a regular file; arguments and errors as of `open_regular`."""
    _check_mode(path, path.stat().st_mode)
    if own and path.is_symlink() and not path.resolve().is_relative_to(path.parent.resolve()):
        raise ValueError(f"{path} must be a file of its folder, but it is a link that leads out of it: name its target")


def check_output(name: str, path: Path) -> None:
    """Raise unless a file can be written at a path: before work begins, so that its result has a place.

    Args:
        name: The option that names the path.
        path: A file that is replaced, a device or FIFO that is written to, or a new file in an existing folder.
    """
    folder = path.parent
    if not folder.is_dir():
        raise ValueError(f"{name} must name a file in an existing folder, but {folder} is none")
    if not path.exists():
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ValueError(f"{name} must name a file that can be written, but {folder} is read-only")
        return
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or _in_place(mode)):
        raise ValueError(f"{name} must name a file, but {path} is {_KINDS.get(stat.S_IFMT(mode), 'none')}")


def check_folder(name: str, path: Path) -> None:
    """Raise unless files can be written into a folder, which may be made first; arguments as of `check_output`."""
    there = next((place for place in (path, *path.absolute().parents) if place.exists()), Path())
    if not there.is_dir():
        raise ValueError(f"{name} must name a folder, but {there} is none")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"{name} must name a folder that can be written, but {there} is read-only")


def read_file(path: Path, *, own: bool = False, largest: int = LARGEST) -> bytes:
    """The content of a regular file; arguments and errors as of `open_regular`.

    Raises:
        ValueError: It is larger than `largest` bytes.
    """
    with open_regular(path, own=own) as file:
        return _at_most(largest, file, path, "hold")


def unzip(content: bytes, path: Path, *, largest: int = LARGEST) -> bytes:
    """What gzip compressed, at most `largest` bytes of it: a small file cannot fill the memory.

    Raises:
        ValueError: They are damaged, or unpack to more.
    """
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            return _at_most(largest, file, path, "unpack to")
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} must be a gzip file, but it is damaged: {error}") from None


def parse_json(text: bytes | str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: It is none, or has more than `DEEPEST` levels.
    """
    text = text.decode() if isinstance(text, bytes) else text
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"it has more than {DEEPEST} levels") from None
    if text.count("[") + text.count("{") > DEEPEST and _is_deep(value):
        raise ValueError(f"it has more than {DEEPEST} levels")
    return value


def read_json(path: Path) -> Any:
    """The JSON document in a file of a folder, or one line that says why there is none."""
    try:
        return parse_json(read_file(path, own=True))
    except FileNotFoundError:
        raise ValueError(f"{path} must exist, but there is no such file") from None
    except ValueError as error:
        if str(path) in str(error):
            raise
        raise ValueError(f"{path} must be a JSON document, but it is damaged: {error}") from None


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, never a part.

    A device or a FIFO is written to and stays what it is; a failed write leaves nothing behind.
    """
    data = content.encode() if isinstance(content, str) else content
    with naming(path):
        mode = path.stat().st_mode if path.exists() else stat.S_IFREG
        if not stat.S_ISREG(mode):
            _write_in_place(path, data, mode)
            return
        temporary = part_of(path)
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def part_of(path: Path) -> Path:
    """A name for what will become a file; no other thread, process or machine that shares the folder has the same.

    >>> part_of(Path("config.json")) == part_of(Path("config.json"))
    False
    """
    return path.with_name(f".{path.name[:_LONGEST]}.{secrets.token_hex(6)}.part")


def write_json(path: Path, document: Any) -> None:
    """Write one readable JSON document, whole; NaN and infinity are refused."""
    write_whole(path, format_json(document))


def format_json(document: Any) -> bytes:
    r"""A readable JSON document; NaN and infinity are refused.

    >>> format_json({"seed": 0})
    b'{\n  "seed": 0\n}\n'
    """
    return (json.dumps(document, indent=2, allow_nan=False) + "\n").encode()


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an error of the operating system name the file; that of a full disk names none."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def _write_in_place(path: Path, data: bytes, mode: int) -> None:
    if not _in_place(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "none")
        raise ValueError(f"{path} must name a file to be written, but it is {kind}")
    # Without a reader a FIFO is refused (ENXIO) instead of waited for.
    descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "wb") as file:
        os.set_blocking(descriptor, True)
        file.write(data)


def _in_place(mode: int) -> bool:
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)


def _check_mode(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path} must be a regular file, but it is {_KINDS.get(stat.S_IFMT(mode), 'none')}")


def _at_most(largest: int, file: Any, path: Path, verb: str) -> bytes:
    pieces, size = list[bytes](), 0
    while piece := file.read(_PIECE):
        pieces.append(piece)
        size += len(piece)
        if size > largest:
            raise ValueError(f"{path} must {verb} at most {largest:,} bytes, got more")
    return b"".join(pieces)


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST + 1):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return True
