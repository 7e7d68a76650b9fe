"""Images of one size: resizing of the shorter side and a central crop."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from rhobust.data.dataset import Dataset
from rhobust.data.images import MOST_PIXELS
from rhobust.data.npy import check_memory

LARGEST_SIDE = 4096
"""Largest side that images are resized or cropped to."""


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
        """A batch, uint8 (n, channels, height, width), resized and cropped.

        Args:
            images: The batch.
            subject: What messages call it.
        """
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

    grey = len(image) == 1
    pixels = Image.fromarray(image[0] if grey else np.ascontiguousarray(image.transpose(1, 2, 0)))
    found = np.asarray(pixels.resize((width, height), Image.Resampling.BILINEAR))
    return found[None] if grey else found.transpose(2, 0, 1)
