"""Image files: headers, decoding, folders and zip archives of images, and a cache of decoded images."""

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
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rhobust.files import read_json, write_json
from rhobust.progress import ProgressCallback, ProgressEvent

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm")
"""Suffixes of image files, in lower case."""
_GREY_MODES = ("1", "L", "LA")
_COLOUR_MODES = ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")
# Exceptions of Pillow's decoders on damaged files, besides its own errors, which are OSErrors.
_DAMAGE = (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error, zlib.error)


@dataclass(frozen=True)
class ImageHeader:
    """Size and channels of an image file."""

    channels: int
    """1 for grey, 3 for colour."""
    height: int
    """Rows."""
    width: int
    """Columns."""


def is_image(path: Path) -> bool:
    """Whether a file is an image by its name; hidden files and symbolic links are not."""
    hidden = path.name.startswith(".")
    return not hidden and path.suffix.lower() in SUFFIXES and not path.is_symlink() and path.is_file()


def read_header(path: Path) -> ImageHeader:
    """Size and channels of an image file, without decoding it."""
    with _reading(path), _open(path.read_bytes()) as image:
        return ImageHeader(1 if image.mode in _GREY_MODES else 3, image.height, image.width)


def decode_image(content: bytes, path: Path, channels: int) -> np.ndarray:
    """The stored pixels of an image file, uint8 (channels, height, width).

    Grey is repeated for colour. Transparency is dropped, and an EXIF orientation is not applied.

    Args:
        content: The whole file.
        path: Its path, for messages.
        channels: 1 for grey, 3 for colour.
    """
    if channels not in (1, 3):
        raise ValueError(f"channels must be 1 or 3, got {channels}")
    with _reading(path):
        with _open(content) as image:
            # PNG has checksums, but only `verify` checks them, and an image cannot be used after it.
            if image.format == "PNG":
                image.verify()
        with _open(content) as image:
            if channels == 1 and image.mode not in _GREY_MODES:
                raise ValueError("it is in colour, but grey is required")
            return pixels_of(image, channels)


def pixels_of(image: "PillowImage", channels: int | None = None) -> np.ndarray:
    """The pixels of a Pillow image, uint8 (channels, height, width), as `decode_image` takes them from a file.

    Args:
        image: The image.
        channels: 1 for grey, 3 for colour; default: grey for grey images.
    """
    if image.mode not in _GREY_MODES + _COLOUR_MODES:
        raise ValueError(f"images must have 8 bits per channel, got Pillow's mode {image.mode}")
    if channels is None:
        channels = 1 if image.mode in _GREY_MODES else 3
    pixels = np.array(image.convert("L" if channels == 1 else "RGB"))
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def read_image(path: Path | str, channels: int | None = None) -> Tensor:
    """One image file as uint8 (channels, height, width).

    Args:
        path: The file.
        channels: 1 for grey, 3 for colour; default: as in the file.
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
    """Convert any error while an image is read to a one-line ValueError that names the file."""
    from PIL import UnidentifiedImageError
    from PIL.Image import DecompressionBombError

    try:
        yield
    except (*_DAMAGE, DecompressionBombError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, UnidentifiedImageError):
            reason = "Pillow does not know its format"  # Pillow's message names an object in memory
        raise ValueError(f"{path} must be a whole 8-bit image, but it is not: {reason}; replace or remove it") from None


def _open(content: bytes) -> "PillowImage":
    from PIL import Image

    image = Image.open(io.BytesIO(content))
    if image.mode not in _GREY_MODES + _COLOUR_MODES:
        raise ValueError(f"its pixels have more than 8 bits per channel (Pillow's mode {image.mode})")
    return image


class Tree(Protocol):
    """A folder of files, or an archive of it."""

    path: Path
    stamps: dict[str, str]
    """Each file's name and a stamp that changes with the file."""

    def read(self, name: str) -> bytes:
        """The whole file; raises a one-line ValueError if it is damaged."""
        ...


class FolderTree:
    """A folder, without the excluded subfolders."""

    def __init__(self, path: Path, exclude: Sequence[str] = ()) -> None:
        self.path = path
        self.stamps = dict(sorted(self._walk(path, "", exclude)))

    def _walk(self, folder: Path, prefix: str, exclude: Sequence[str]) -> list[tuple[str, str]]:
        found = []
        with os.scandir(folder) as entries:
            for entry in entries:
                name = prefix + entry.name
                if entry.name.startswith(".") or name in exclude:
                    continue
                if entry.is_dir():
                    found += self._walk(Path(entry.path), f"{name}/", exclude)
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
    """A folder inside a zip archive; nothing is unpacked, and each file's checksum is verified when it is read."""

    def __init__(self, path: Path, folder: str, exclude: Sequence[str] = ()) -> None:
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
            and not info.filename.startswith(tuple(f"{self._prefix}{name}/" for name in exclude))
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
    """Cache of decoded colour images of one side length."""

    folder: Path
    """Folder of the array and its description."""
    label: str
    """Prefix of their names."""
    side: int
    """Required height and width."""

    @property
    def _array(self) -> Path:
        return self.folder / f"{self.label}.npy"

    @property
    def _description(self) -> Path:
        return self.folder / f"{self.label}.json"

    def load(self, tree: Tree, names: Sequence[str], progress: ProgressCallback) -> np.ndarray:
        """The images of these files, uint8 (n, 3, side, side), from the cache if it is still valid."""
        if self._array.is_file() and (description := self._read_description()):
            if description.get("stamp") == _stamp(tree, names):
                if (images := self._read_array(description, len(names))) is not None:
                    return images
                progress(f"{self._array} is damaged: decoding again")
            else:
                progress(f"{tree.path} changed since it was decoded: decoding again")
        return self.decode(tree, names, progress)

    def decode(self, tree: Tree, names: Sequence[str], progress: ProgressCallback) -> np.ndarray:
        """Decode every file, cache the array, and return it."""
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
        # The description is written last: after a kill between the two the array does not match and is decoded again.
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
            progress(f"decoded images are not cached: {self.folder} cannot be written ({error.strerror})")


def _stamp(tree: Tree, names: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name}\0{tree.stamps[name]}\n".encode())
    return digest.hexdigest()


def _digest(images: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(images).data).hexdigest()
