"""Small pictures inside the page: arrays as data addresses."""

import base64
import io
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

import numpy as np
from PIL import Image

SIDE = 96
"""Pixels of the longer side that a picture of the page has at most."""
SHARP = 48
"""Pixels of the longer side up to which a change of single pixels is seen."""
_QUALITY = 88


class Sized(Protocol):
    """Something with pictures."""

    @property
    def size(self) -> int:
        """Characters that its pictures take."""
        ...


T = TypeVar("T", bound=Sized)


def take_turns(waiting: Sequence[Iterator[T]], budget: int) -> list[list[T]]:
    """As many of each as all may take together; they take turns, so that each has some."""
    taken: list[list[T]] = [[] for _ in waiting]
    places = list(range(len(waiting)))
    while places:
        for place in list(places):
            one = next(waiting[place], None)
            if one is None or one.size > budget:
                places.remove(place)
                continue
            budget -= one.size
            taken[place].append(one)
    return taken


def exact(image: np.ndarray, **options: object) -> str:
    """An image (1 or 3, height, width) of 8 bits, every pixel unchanged."""
    return _address(_encode(_reduced(image), "PNG", optimize=True, **options), "png")


def faithful(image: np.ndarray) -> str:
    """An image whose pixels matter: unchanged up to `SHARP` pixels, compressed beyond, where none is seen."""
    return exact(image) if max(image.shape[1:]) <= SHARP else small(image)


def small(image: np.ndarray) -> str:
    """An image in whatever is smaller: every pixel unchanged, or compressed as a photograph is."""
    picture = _reduced(image)
    lossless = _encode(picture, "PNG", optimize=True)
    try:
        lossy = _encode(picture.convert("RGB"), "WEBP", quality=_QUALITY, method=6)
    except (KeyError, OSError):  # Pillow may be built without WebP
        return _address(lossless, "png")
    return _address(lossless, "png") if len(lossless) <= len(lossy) else _address(lossy, "webp")


def palette(steps: np.ndarray, colours: list[tuple[int, int, int]], opacity: bytes) -> str:
    """A picture (height, width) of few colours, each with its opacity."""
    image = Image.frombytes("P", steps.shape[::-1], steps.astype(np.uint8).tobytes())
    image.putpalette([part for colour in colours for part in colour])
    return _address(_encode(image, "PNG", optimize=True, bits=4, transparency=opacity), "png")


def _reduced(image: np.ndarray) -> Image.Image:
    picture = Image.fromarray(image[0] if len(image) == 1 else np.ascontiguousarray(np.moveaxis(image, 0, -1)))
    if max(picture.size) > SIDE:
        picture.thumbnail((SIDE, SIDE), Image.Resampling.BOX)
    return picture


def _encode(picture: Image.Image, form: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format=form, **options)
    return buffer.getvalue()


def _address(data: bytes, form: str) -> str:
    return f"data:image/{form};base64,{base64.b64encode(data).decode()}"
