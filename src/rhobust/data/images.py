"""Image files as uint8 tensors; a file that cannot be read whole is refused by name."""

import io
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

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
