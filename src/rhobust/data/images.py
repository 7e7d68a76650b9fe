"""Image files: headers, decoding, folders and zip archives of images, and a cache of decoded images."""

import hashlib
import io
import os
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rhobust.data.arrays import read_arrays
from rhobust.files import open_regular, read_file, read_json, write_json
from rhobust.progress import ProgressCallback, ProgressEvent

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm")
"""Suffixes of image files, in lower case."""
IMAGE_KEYS = ("image", "img", "images", "pixel_values", "x")
"""Usual names of the image of an item that is a mapping."""
FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "PPM")
"""Formats that Pillow may decode, whatever a file is called: none of them starts another program."""
MOST_PIXELS = 1 << 26
"""Largest number of pixels of an image; one that promises more is not decoded."""
_MOST_BYTES = 1 << 28
"""Largest size of a file in an archive after unpacking."""
_DEEPEST = 8
"""Levels of folders that are searched."""
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
    """Whether a file is an image by its name; hidden files, symbolic links and folders are not.

    Raises a one-line ValueError for a FIFO, socket or device with such a name: a read from one may never end.
    """
    hidden = path.name.startswith(".")
    if hidden or path.suffix.lower() not in SUFFIXES or path.is_symlink() or path.is_dir():
        return False
    if not path.is_file():
        raise ValueError(f"{path} must be a regular file, but it is a FIFO, a socket or a device; remove it")
    return True


def read_header(path: Path) -> ImageHeader:
    """Size and channels of an image file, without decoding it."""
    with _reading(path), open_regular(path) as file, _open(file) as image:
        return _header(image)


def header_of(content: bytes, path: Path) -> ImageHeader:
    """As `read_header`, of a file in memory."""
    with _reading(path), _open(io.BytesIO(content)) as image:
        return _header(image)


def _header(image: "PillowImage") -> ImageHeader:
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
        with _open(io.BytesIO(content)) as image:
            # PNG has checksums, but only `verify` checks them, and an image cannot be used after it.
            if image.format == "PNG":
                image.verify()
        with _open(io.BytesIO(content)) as image:
            if channels == 1 and image.mode not in _GREY_MODES:
                raise ValueError("it is in colour, but grey is required")
            return pixels_of(image, channels)


def pixels_of(image: "PillowImage", channels: int | None = None) -> np.ndarray:
    """The pixels of a Pillow image, uint8 (channels, height, width), as `decode_image` takes them from a file.

    Args:
        image: The image.
        channels: 1 for grey, 3 for colour; default: grey for grey images.
    """
    if depth := _too_deep(image):
        raise ValueError(f"images must have 8 bits per channel, got {depth}")
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
        found = "it is no regular file" if path.exists() else "there is no such file"
        found = "it is a folder" if path.is_dir() else found
        raise ValueError(f"{path} must be an image file, but {found}")
    if channels is None:
        channels = read_header(path).channels
    return torch.from_numpy(decode_image(read_file(path), path, channels))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Convert any error while an image is read to a one-line ValueError that names the file."""
    from PIL import UnidentifiedImageError
    from PIL.Image import DecompressionBombError

    try:
        yield
    except (*_DAMAGE, DecompressionBombError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, UnidentifiedImageError):  # Pillow's message names an object in memory
            reason = f"its content is in none of the formats {', '.join(FORMATS)}"
        raise ValueError(f"{path} must be a whole 8-bit image, but it is not: {reason}; replace or remove it") from None


def _open(file: IO[bytes]) -> "PillowImage":
    """Read the header of an image; raises a ValueError if it promises too many pixels or bits."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the limit is below
        image = Image.open(file, formats=FORMATS)
    if image.width * image.height > MOST_PIXELS:
        raise ValueError(f"it has {image.width:,} x {image.height:,} pixels, at most {MOST_PIXELS:,} are decoded")
    if depth := _too_deep(image):
        raise ValueError(f"its pixels have more than 8 bits per channel ({depth})")
    return image


def _too_deep(image: "PillowImage") -> str | None:
    """What has more than 8 bits per channel; None if nothing has. Pillow cuts colour of 16 bits to 8 without a word."""
    if image.mode not in _GREY_MODES + _COLOUR_MODES:
        return f"Pillow's mode {image.mode}"
    for tile in getattr(image, "tile", []):
        # A PNG's raw mode is then RGB;16B, and the second entry of a PPM, its largest value, above 255.
        given = tile[3] if isinstance(tile[3], tuple) else (tile[3],)
        wide = image.format == "PPM" and any(isinstance(value, int) and value > 255 for value in given)
        if wide or (image.format == "PNG" and any(";16" in str(value) for value in given)):
            return f"{image.format} of 16 bits"
    return None


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
        if prefix.count("/") > _DEEPEST:
            raise ValueError(
                f"{folder} must be at most {_DEEPEST} levels below {self.path}, but it is deeper; remove it"
            )
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
            return read_file(self.path / name)
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
        """The whole file; an encrypted one, one in an unknown compression and one that is too large are refused."""
        try:
            if (size := self._zip.getinfo(self._prefix + name).file_size) > _MOST_BYTES:
                raise ValueError(f"it has {size:,} bytes, at most {_MOST_BYTES:,} are unpacked")
            return self._zip.read(self._prefix + name)
        except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, RuntimeError, MemoryError) as error:
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
            images = read_arrays(self._array, (), bare="images")["images"]
        except ValueError:
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
