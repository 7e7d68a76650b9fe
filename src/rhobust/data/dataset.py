"""A data set is two tensors and a description."""

import dataclasses
import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Split = Literal["train", "test"]

# Images looked at together where the whole set would need a wider copy of itself.
_CHUNK = 4096


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """One split of a data set, whole in memory and on one device."""

    name: str
    """The known name ("mnist"), or the folder's or file's name."""
    split: Split
    """Which part of the data set this is."""
    images: Tensor
    """uint8, (n, channels, height, width)."""
    labels: Tensor
    """int64, (n,), each a place in `classes`."""
    classes: tuple[str, ...]
    """The classes' names."""
    crop: int = 0
    """Width of the reflected border from which training crops at random; 0 for no crop."""
    flip: bool = False
    """Whether training mirrors images left to right at random."""

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        if self.split not in ("train", "test"):
            raise ValueError(f"split must be 'train' or 'test', got {self.split!r}")
        for name, given in (("images", images), ("labels", labels)):
            if not isinstance(given, Tensor):
                raise ValueError(f"{name} must be a tensor, got a {type(given).__name__}")
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise ValueError(f"images must be uint8 (n, channels, height, width), got {_kind(images)}")
        if 0 in images.shape:
            raise ValueError(f"images must hold at least one image, got {_kind(images)}")
        if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
            raise ValueError(f"labels must be int64 ({len(images)},), got {_kind(labels)}")
        if labels.device != images.device:
            raise ValueError(f"labels must be on the images' device {images.device}, got {labels.device}")
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= len(self.classes):
            raise ValueError(f"labels must be in 0..{len(self.classes) - 1}, got {low}..{high}")
        if not 0 <= self.crop < min(images.shape[2:]):
            raise ValueError(f"crop must be >= 0 and less than the image's side, got {self.crop}")

    def __repr__(self) -> str:
        size = "x".join(map(str, self.shape))
        return f"Dataset({self.name!r}, {self.split!r}, {len(self)} images of {size}, {self.num_classes} classes)"

    def __len__(self) -> int:
        return len(self.images)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        _, channels, height, width = self.images.shape
        return channels, height, width

    @property
    def num_classes(self) -> int:
        """How many classes there are, whether or not this split has an image of each."""
        return len(self.classes)

    def to(self, device: torch.device | str) -> "Dataset":
        """The same data set on another device."""
        return dataclasses.replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def select(self, indices: Tensor | Sequence[int]) -> "Dataset":
        """The images at these places, in this order; the classes stay."""
        indices = torch.as_tensor(indices, device=self.images.device)
        return dataclasses.replace(self, images=self.images[indices], labels=self.labels[indices])

    def take(self, limit: int | None = None, stride: int = 1) -> tuple[Tensor, "Dataset"]:
        """The places of `places(limit, stride)`, and the images there."""
        indices = torch.tensor(self.places(limit, stride))
        return indices, self.select(indices)

    def places(self, limit: int | None = None, stride: int = 1) -> range:
        """Where every `stride`-th image stands, for at most `limit` of them.

        Args:
            limit: at most so many images; None for no limit.
            stride: distance between two images taken; the first image is always taken.
        """
        if limit is not None and limit < 1:
            raise ValueError(f"limit must be >= 1, got {limit}")
        if stride < 1:
            raise ValueError(f"stride must be >= 1, got {stride}")
        return range(0, len(self), stride)[:limit]

    def fingerprint(self) -> str:
        """Sixteen hex digits that name these images and labels: equal data, equal name, on any device."""
        digest = hashlib.sha256(repr(tuple(self.images.shape)).encode())
        for images in _chunks(self.images):
            digest.update(images.cpu().contiguous().numpy().data)
        digest.update(self.labels.cpu().contiguous().numpy().astype("<i8").data)
        return digest.hexdigest()[:16]


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, in the unit of [0, 1].

    Values are counted, so the result does not depend on the device or on the order of the images.
    The deviation is at least 1/255, one step of the grid, so that dividing by it is always safe.

    Args:
        images: uint8, (n, channels, height, width).
    """
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise ValueError(f"images must be uint8 (n, channels, height, width), got {_kind(images)}")
    count = images[:, 0].numel()
    if count == 0:
        raise ValueError(f"images must hold at least one image, got {_kind(images)}")
    means, deviations = [], []
    for channel in images.unbind(1):
        histogram = torch.zeros(256, dtype=torch.int64, device=images.device)
        for chunk in _chunks(channel):
            histogram += torch.bincount(chunk.reshape(-1), minlength=256)
        counts = histogram.tolist()
        first = sum(value * times for value, times in enumerate(counts))
        second = sum(value * value * times for value, times in enumerate(counts))
        means.append(first / count / 255)
        # Python's integers are exact: no cancellation before the square root.
        deviations.append(max(math.sqrt(count * second - first * first) / count, 1.0) / 255)
    return tuple(means), tuple(deviations)


def _chunks(images: Tensor) -> Iterator[Tensor]:
    return iter(images.split(_CHUNK))


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
