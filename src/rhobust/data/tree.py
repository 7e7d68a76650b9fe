"""The files of a data set under one name: a folder, or an archive of it that need not be unpacked."""

import os
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class Tree(Protocol):
    """Files under one name: a folder, or an archive of it."""

    path: Path
    stamps: dict[str, str]
    """Each file's name, and what changes when the file does."""

    def read(self, name: str) -> bytes:
        """The whole file; a ValueError of one line when it is damaged."""
        ...


class FolderTree:
    """A folder, without the subfolders to leave out."""

    def __init__(self, path: Path, leave_out: Sequence[str] = ()) -> None:
        self.path = path
        self.stamps = dict(sorted(self._walk(path, "", leave_out)))

    def _walk(self, folder: Path, prefix: str, leave_out: Sequence[str]) -> list[tuple[str, str]]:
        found = []
        with os.scandir(folder) as entries:
            for entry in entries:
                name = prefix + entry.name
                if entry.name.startswith(".") or name in leave_out:
                    continue
                if entry.is_dir():
                    found += self._walk(Path(entry.path), f"{name}/", leave_out)
                elif entry.is_file():
                    status = entry.stat()
                    found.append((name, f"{status.st_size} {status.st_mtime_ns}"))
        return found

    def read(self, name: str) -> bytes:
        """The whole file."""
        try:
            return (self.path / name).read_bytes()
        except OSError as error:
            raise ValueError(f"{self.path / name} must be readable, but it is not: {error.strerror}") from None


class ZipTree:
    """A folder inside a zip archive; nothing is unpacked, and each file's checksum is verified as it is read."""

    def __init__(self, path: Path, folder: str, leave_out: Sequence[str] = ()) -> None:
        self.path = path
        self._prefix = f"{folder}/"
        try:
            self._zip = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path} must be a whole zip archive, but it is damaged: {error}; delete it") from None
        self.stamps = {
            info.filename.removeprefix(self._prefix): f"{info.file_size} {info.CRC:08x}"
            for info in sorted(self._zip.infolist(), key=lambda info: info.filename)
            if info.filename.startswith(self._prefix)
            and not info.is_dir()
            and not info.filename.startswith(tuple(f"{self._prefix}{name}/" for name in leave_out))
        }

    def read(self, name: str) -> bytes:
        """The whole file."""
        try:
            return self._zip.read(self._prefix + name)
        except (OSError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"{self.path} must be whole, but {name} in it is damaged: {reason}; delete it") from None
