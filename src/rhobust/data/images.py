"""Image files: header, decoding, files in folders or zip archives, and a cache of decoded images."""

import hashlib
import io
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from rhobust.progress import ProgressCallback, ProgressEvent

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage
from typing import Any

from rhobust.records import read_json, write_json

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm")
"""How the names of image files end, in lower case."""

_GREY_MODES = ("1", "L", "LA")
_COLOUR_MODES = ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")
# What Pillow's decoders raise on damaged files, besides its own errors, which are OSErrors.
_DAMAGE = (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error, zlib.error)


@dataclass(frozen=True)
class ImageHeader:
    """What the first bytes of an image file say."""

    channels: int
    """1 for grey, 3 for colour."""
    height: int
    """Rows."""
    width: int
    """Columns."""


def is_image(path: Path) -> bool:
    """Whether a file's name is an image's; hidden files and symbolic links are left out."""
    hidden = path.name.startswith(".")
    return not hidden and path.suffix.lower() in SUFFIXES and not path.is_symlink() and path.is_file()


def read_header(path: Path) -> ImageHeader:
    """Size and channels of an image file, without decoding it."""
    with _reading(path), _open(path.read_bytes()) as image:
        return ImageHeader(1 if image.mode in _GREY_MODES else 3, image.height, image.width)


def decode_image(content: bytes, path: Path, channels: int) -> np.ndarray:
    """The pixels of an image file, uint8 (channels, height, width), just as they are stored.

    Grey is repeated where colour is wanted. Transparency is dropped, and an EXIF orientation is not applied.

    Args:
        content: the whole file.
        path: what a message calls it.
        channels: 1 for grey, 3 for colour.
    """
    if channels not in (1, 3):
        raise ValueError(f"channels must be 1 or 3, got {channels}")
    with _reading(path):
        with _open(content) as image:
            # PNG has checksums, but only `verify` looks at them, and an image cannot be used after it.
            if image.format == "PNG":
                image.verify()
        with _open(content) as image:
            if channels == 1 and image.mode not in _GREY_MODES:
                raise ValueError("it is in colour, and grey is wanted")
            pixels = np.array(image.convert("L" if channels == 1 else "RGB"))
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def read_image(path: Path | str, channels: int | None = None) -> Tensor:
    """One image file as uint8 (channels, height, width).

    Args:
        path: the file.
        channels: 1 for grey, 3 for colour; None for what the file has.
    """
    path = Path(path)
    if not path.is_file():
        found = "it is a folder" if path.is_dir() else "there is no such file"
        raise ValueError(f"{path} must be an image file, but {found}")
    if channels is None:
        channels = read_header(path).channels
    return torch.from_numpy(decode_image(path.read_bytes(), path, channels))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn whatever reading an image raises into one line that names the file."""
    from PIL import UnidentifiedImageError
    from PIL.Image import DecompressionBombError

    try:
        yield
    except (*_DAMAGE, DecompressionBombError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, UnidentifiedImageError):
            reason = "Pillow does not know its format"  # its own words name an object in memory
        raise ValueError(
            f"{path} must be a whole 8-bit image, but it is not: {reason}; replace it or take it away"
        ) from None


def _open(content: bytes) -> "PillowImage":
    from PIL import Image

    image = Image.open(io.BytesIO(content))
    if image.mode not in _GREY_MODES + _COLOUR_MODES:
        raise ValueError(f"its pixels have more than 8 bits a channel (Pillow's mode {image.mode})")
    return image


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


@dataclass(frozen=True)
class DecodedImages:
    """Colour images of one side length out of a tree, kept as an array."""

    folder: Path
    """Where array and description lie."""
    label: str
    """What their names start with."""
    side: int
    """Height and width that every image must have."""

    @property
    def _array(self) -> Path:
        return self.folder / f"{self.label}.npy"

    @property
    def _description(self) -> Path:
        return self.folder / f"{self.label}.json"

    def load(self, tree: Tree, names: Sequence[str], progress: ProgressCallback) -> np.ndarray:
        """The images of these files, uint8 (n, 3, side, side), from the array when it is still theirs."""
        if self._array.is_file() and (description := self._read_description()):
            if description.get("stamp") == _stamp(tree, names):
                if (images := self._read_array(description, len(names))) is not None:
                    return images
                progress(f"{self._array} is damaged: decoding again")
            else:
                progress(f"{tree.path} changed since it was decoded: decoding again")
        return self.decode(tree, names, progress)

    def decode(self, tree: Tree, names: Sequence[str], progress: ProgressCallback) -> np.ndarray:
        """Decode every file, keep the array, and return it."""
        known = self._read_description().get("files", {})
        images = np.empty((len(names), 3, self.side, self.side), np.uint8)
        files = {}
        for done, name in enumerate(names):
            content = tree.read(name)
            files[name] = f"{len(content)} {zlib.crc32(content):08x}"
            if known.get(name, files[name]) != files[name]:
                raise ValueError(
                    f"{tree.path / name} must have the contents it was first decoded with, but they changed: "
                    f"restore it, or delete {self._description} to accept it"
                )
            pixels = decode_image(content, tree.path / name, 3)
            if pixels.shape != images.shape[1:]:
                _, height, width = pixels.shape
                raise ValueError(
                    f"{tree.path / name} must be {self.side}x{self.side} pixels, got {width}x{height}; replace it"
                )
            images[done] = pixels
            progress(ProgressEvent(f"decoding {self.label}", done + 1, len(names), "images"))
        self._write(images, {"stamp": _stamp(tree, names), "sha256": _digest(images), "files": files}, progress)
        return images

    def _read_description(self) -> dict[str, Any]:
        if not self._description.is_file():
            return {}
        try:
            description = read_json(self._description)
        except ValueError as error:
            raise ValueError(f"{error}; delete it") from None
        if not isinstance(description, dict) or not isinstance(description.get("files", {}), dict):
            raise ValueError(f"{self._description} must describe decoded images, but it is damaged; delete it")
        return description

    def _read_array(self, description: dict[str, Any], count: int) -> np.ndarray | None:
        try:
            images = np.load(self._array, allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None
        whole = images.dtype == np.uint8 and images.shape == (count, 3, self.side, self.side)
        return images if whole and _digest(images) == description.get("sha256") else None

    def _write(self, images: np.ndarray, description: dict[str, Any], progress: ProgressCallback) -> None:
        # The description goes last: what a kill leaves between the two does not fit, and is decoded anew.
        part = self.folder / f".{self._array.name}.{os.getpid()}.part"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                with part.open("wb") as file:
                    np.save(file, images, allow_pickle=False)
                    file.flush()
                    os.fsync(file.fileno())
                part.replace(self._array)
            finally:
                part.unlink(missing_ok=True)
            write_json(self._description, description)
        except OSError as error:
            progress(f"decoded images are not kept: {self.folder} cannot be written ({error.strerror})")


def _stamp(tree: Tree, names: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name}\0{tree.stamps[name]}\n".encode())
    return digest.hexdigest()


def _digest(images: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(images).data).hexdigest()
