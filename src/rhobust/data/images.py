"""Image files: headers and decoding."""

import io
import struct
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rhobust.files import open_regular, read_file

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


def pillow_image(pixels: np.ndarray) -> "PillowImage":
    """The Pillow image of pixels, uint8 (channels, height, width): the inverse of `pixels_of`."""
    from PIL import Image

    return Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))


def read_image(path: Path | str, channels: int | None = None) -> Tensor:
    """One image file as uint8 (channels, height, width).

    Args:
        path: The file.
        channels: 1 for grey, 3 for colour; default: as in the file.
    """
    path = Path(path)
    check_image_files([path])
    if channels is None:
        channels = read_header(path).channels
    return torch.from_numpy(decode_image(read_file(path), path, channels))


def check_image_files(paths: Sequence[Path]) -> None:
    """Refuse a path that is no file, before anything is decoded."""
    for path in paths:
        if not path.is_file():
            found = "it is no regular file" if path.exists() else "there is no such file"
            found = "it is a folder" if path.is_dir() else found
            raise ValueError(f"{path} must be an image file, but {found}")


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
