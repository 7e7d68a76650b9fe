"""Images of one size: the shorter side resized, a central crop, and image files decoded so by several threads."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from rhobust.data.arrays import check_memory
from rhobust.data.dataset import Dataset, Split
from rhobust.data.images import MOST_PIXELS, ImageHeader, decode_image, pillow_image
from rhobust.data.source import content_keys, in_test_part

LARGEST_SIDE = 4096
"""Largest side that images are resized or cropped to."""
_AHEAD = 4
"""Images that each thread may be ahead of the one that is needed next."""

Item = TypeVar("Item")
Found = TypeVar("Found")


@dataclass(frozen=True)
class Sizing:
    """How 8-bit images come to the size of a network: first resized, then cropped.

    Both steps are those of torchvision's `Resize(N)` and `CenterCrop(N)` on Pillow images, pixel by pixel.
    """

    resize: int | None = None
    """Pixels of the shorter side after resizing, bilinear with antialiasing; the longer side keeps the ratio, rounded
    down. None: not resized."""
    crop: int | None = None
    """Side of the central square that is kept; None: all of the image."""

    def __post_init__(self) -> None:
        for name, side in (("resize", self.resize), ("crop", self.crop)):
            if side is None:
                continue
            if isinstance(side, bool) or not isinstance(side, int) or not 1 <= side <= LARGEST_SIDE:
                raise ValueError(f"{name} must be a whole number of pixels from 1 to {LARGEST_SIDE}, got {side!r}")
        if self.resize is not None and self.crop is not None and self.crop > self.resize:
            raise ValueError(f"crop must be at most resize, {self.resize}, got {self.crop}")

    def __bool__(self) -> bool:
        """Whether it changes images."""
        return self.resize is not None or self.crop is not None

    def __str__(self) -> str:
        """What it adds to a data set's name.

        >>> str(Sizing(256, 224))
        '-resize256-crop224'
        """
        parts = (("resize", self.resize), ("crop", self.crop))
        return "".join(f"-{name}{side}" for name, side in parts if side is not None)

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of an image afterwards; raises if it is smaller than the crop, or becomes too large."""
        height, width = self._resized(height, width)
        if self.crop is None:
            return height, width
        if min(height, width) < self.crop:
            raise ValueError(f"an image must have {self.crop} pixels per side to be cropped, got {width}x{height}")
        return self.crop, self.crop

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        short, long = sorted((height, width))
        if self.resize is None or short == self.resize:
            return height, width
        longer = int(self.resize * long / short)
        if self.resize * longer > MOST_PIXELS:
            raise ValueError(f"an image must have {MOST_PIXELS:,} pixels at most, got {self.resize}x{longer}")
        return (self.resize, longer) if height <= width else (longer, self.resize)

    def apply(self, image: np.ndarray) -> np.ndarray:
        """One image, uint8 (channels, height, width), resized and cropped."""
        _, height, width = image.shape
        rows, columns = self.size(height, width)
        between = self._resized(height, width)
        if between != (height, width):
            image = _resize(image, *between)
        top, left = round((between[0] - rows) / 2), round((between[1] - columns) / 2)
        return np.ascontiguousarray(image[:, top : top + rows, left : left + columns])

    def images(self, images: Tensor, subject: str = "images") -> Tensor:
        """A batch, uint8 (n, channels, height, width), resized and cropped."""
        if not self:
            return images
        if images.dtype != torch.uint8:
            raise ValueError(f"{subject} must be uint8 to be resized or cropped, got {images.dtype}: resize them first")
        count, channels, height, width = images.shape
        rows, columns = self.size(height, width)
        check_memory(subject, count * channels * rows * columns)
        found = np.empty((count, channels, rows, columns), np.uint8)
        for place, image in enumerate(images.cpu().numpy()):
            found[place] = self.apply(image)
        return torch.from_numpy(found).to(images.device)

    def dataset(self, data: Dataset) -> Dataset:
        """A data set, resized and cropped; its name says so."""
        if not self:
            return data
        return replace(data, name=data.name + str(self), images=self.images(data.images, data.name))


AS_STORED = Sizing()
"""Neither resized nor cropped."""


def _resize(image: np.ndarray, height: int, width: int) -> np.ndarray:
    from PIL import Image

    found = np.asarray(pillow_image(image).resize((width, height), Image.Resampling.BILINEAR))
    return found[None] if len(image) == 1 else found.transpose(2, 0, 1)


def common_shape(headers: Iterable[tuple[Path, ImageHeader]], sizing: Sizing, where: str) -> tuple[int, int, int]:
    """Channels, height and width of all images after resizing and cropping; raises unless they have one size."""
    first: tuple[Path, int, int] | None = None
    channels = 1
    for path, header in headers:
        try:
            height, width = sizing.size(header.height, header.width)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        first, channels = first or (path, height, width), max(channels, header.channels)
        if (height, width) != first[1:]:
            after = f" after {str(sizing)[1:]}" if sizing else ""
            raise ValueError(
                f"images {where} must have one size{after}, got {first[0]} of {first[2]}x{first[1]} and {path} of"
                f" {width}x{height}; give resize and crop"
            )
    if first is None:
        raise ValueError(f"images {where} must be one at least, got none")
    return channels, *first[1:]


def decode_sized(
    content: bytes, path: Path, shape: tuple[int, int, int], sizing: Sizing, part: Split | None
) -> np.ndarray | None:
    """The pixels of an image file, resized and cropped; None if it is in the other part of an unsplit source.

    With a `part`, the stored pixels, before resizing, must choose that part.
    """
    stored = decode_image(content, path, shape[0])
    if part is not None and in_test_part(content_keys(stored[None]))[0] != (part == "test"):
        return None
    image = sizing.apply(stored)
    if image.shape != shape:
        raise ValueError(f"{path} must keep its size while it is read, but it changed")
    return image


def in_order(function: Callable[[Item], Found], items: Iterable[Item]) -> Iterator[Found]:
    """The results of a function in the order of the items, computed by as many threads as torch has.

    Pillow decodes without the interpreter's lock. Items are taken as they are needed; an error is raised in its place.
    """
    threads = torch.get_num_threads()
    if threads == 1:
        yield from map(function, items)
        return
    waiting: deque[Future[Found]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > _AHEAD * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for rest in waiting:
                rest.cancel()
