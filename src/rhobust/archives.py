"""Packed experiments: run folders in one .tar.xz file, opened as ordinary folders.

An archive NAME.tar.xz holds NAME/RUN/FILE: regular files, exactly two folders deep. Whatever takes run folders or
records takes the archive (all its runs), `NAME.tar.xz/RUN` (one run) or `NAME.tar.xz/RUN/FILE` (one record) as well.

Guarantee: opening an archive that somebody sent writes only inside a new temporary folder, runs nothing, and stops at
`LARGEST` bytes and `MOST` files. Links, devices, absolute names and names that lead upwards are refused.
"""

import io
import lzma
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from rhobust.files import open_regular

ENDING = ".tar.xz"
"""How the names of archives end."""
LARGEST = 2 << 30
"""Bytes that an archive may hold, unpacked."""
MOST = 20_000
"""Files that an archive may hold."""
_PIECE = 1 << 16
"""Bytes that are read at once after the last file."""
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,+=-]*")
"""A folder or file in an archive: no separator, no leading dot, no leading dash."""


@dataclass(frozen=True)
class Opened:
    """Paths that can be read now."""

    paths: list[Path]
    """Folders and files; those of archives are in a temporary folder."""
    archives: dict[Path, Path]
    """By temporary folder the archive that was unpacked into it."""
    names: dict[Path, str]
    """Names that were given to some of the paths."""

    def original(self, path: Path) -> Path:
        """A path as it was given: one below a temporary folder leads through its archive again."""
        for folder, archive in self.archives.items():
            if path.is_relative_to(folder):
                return archive / path.relative_to(folder)
        return path


@contextmanager
def opened(paths: Iterable[Path | str], *, named: bool = False) -> Iterator[Opened]:
    """Paths with every archive among them replaced by its run folders, in a temporary folder that goes at the end.

    Args:
        paths: Folders and files, which stay as they are; archives; or paths into an archive.
        named: Whether a path may have a name in front, NAME=PATH.
    """
    with tempfile.TemporaryDirectory(prefix="rhobust-") as temporary:
        found, archives, names = list[Path](), dict[Path, Path](), dict[Path, str]()
        for number, given in enumerate(map(Path, paths)):
            name, path = split_name(given) if named else (None, given)
            split = split_path(path)
            if split is None:
                found.append(path)
                names |= {} if name is None else {path: name}
                continue
            archive, inside = split
            # The archive's own name stays readable in what is printed.
            folder = Path(temporary) / str(number) / archive.name
            archives[folder] = archive
            runs = unpack(archive, folder, inside.parts[0] if inside.parts else None)
            chosen = [folder / inside] if inside.parts else runs
            if not chosen or not chosen[0].exists():
                raise ValueError(f"{path} must name a run in {archive}, but there is none of that name")
            found += chosen
            if name is not None:
                names |= {one: name if len(chosen) == 1 else f"{name}, {one.name}" for one in chosen}
        yield Opened(found, archives, names)


def split_name(path: Path) -> tuple[str | None, Path]:
    """The name in front of a path, NAME=PATH, and the path; a path that exists, or a=b below a folder, has no name."""
    name, given, rest = str(path).partition("=")
    if not name or not given or not rest or "/" in name or path.exists():
        return None, path
    return name, Path(rest)


def split_path(path: Path) -> tuple[Path, Path] | None:
    """An archive and the path inside it; None for a path that leads through no archive."""
    for place in (path, *path.parents):
        if place.name.endswith(ENDING) and not place.is_dir():
            if not place.exists():
                raise ValueError(f"{place} must exist, but there is no such file")
            return place, path.relative_to(place)
    return None


def unpack(archive: Path, folder: Path, run: str | None = None) -> list[Path]:
    """Write an archive's run folders into a folder, or one of them, and return them in the order of their names.

    Files that are in the folder already are refused. One run alone is taken where it is named.
    """
    runs: dict[str, Path] = {}
    try:
        with (
            open_regular(archive) as packed,
            lzma.open(packed) as raw,
            _Limited(raw, archive) as limited,
            tarfile.open(fileobj=cast("IO[bytes]", limited), mode="r|") as tar,
        ):
            for number, member in enumerate(tar, start=1):
                if number > MOST:
                    raise ValueError(f"{archive} must hold at most {MOST:,} files, got more")
                if member.isdir():
                    continue
                name, file = _place(archive, member)
                if run is None or name == run:
                    runs[name] = folder / name
                    runs[name].mkdir(parents=True, exist_ok=True)
                    content = tar.extractfile(member)
                    assert content is not None  # a regular file
                    with (runs[name] / file).open("xb") as target:
                        shutil.copyfileobj(content, target)
            # The tar file ends before the compressed one does, whose last checksums must be read too.
            while limited.read(_PIECE):
                pass
    except FileExistsError as error:
        raise ValueError(f"{archive} must hold every file once, got {error.filename} twice") from None
    except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
        raise ValueError(f"{archive} must be a packed experiment, but it is damaged: {error}") from None
    return [runs[name] for name in sorted(runs)]


def _place(archive: Path, member: tarfile.TarInfo) -> tuple[str, str]:
    """The run and the file of an archive's member, whatever leads elsewhere refused."""
    parts = member.name.split("/")
    if not member.isreg() or len(parts) != 3 or not all(map(_PART.fullmatch, parts)):
        raise ValueError(f"{archive} must hold regular files NAME/RUN/FILE only, got {member.name!r}")
    return parts[1], parts[2]


class _Limited(io.BufferedIOBase):
    """A file that refuses to give more than `LARGEST` bytes, so that a small archive cannot fill the disk."""

    def __init__(self, file: lzma.LZMAFile, archive: Path) -> None:
        super().__init__()
        self._file, self._archive, self._left = file, archive, LARGEST

    def read(self, size: int | None = -1, /) -> bytes:
        wanted = self._left + 1 if size is None or size < 0 else min(size, self._left + 1)
        content = self._file.read(wanted)
        self._left -= len(content)
        if self._left < 0:
            raise ValueError(f"{self._archive} must hold at most {LARGEST:,} bytes unpacked, got more")
        return content
