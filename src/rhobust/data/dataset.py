"""A data set as two tensors and a description; batches, augmentation, and checks of inputs."""

import dataclasses
import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import torch
from torch import Generator, Tensor

from rhobust.progress import ProgressCallback

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


def to_unit(images: Tensor) -> Tensor:
    """Images in [0, 1]: the float32 nearest to images / 255, the same on every device.

    Args:
        images: uint8, any shape.
    """
    if images.dtype != torch.uint8:
        raise ValueError(f"images must be uint8, got {str(images.dtype).removeprefix('torch.')}")
    # CUDA multiplies by the rounded reciprocal of a Python number; by a tensor it divides.
    return images.to(torch.float32) / torch.full((), 255.0, device=images.device)


def augment(images: Tensor, *, crop: int, flip: bool, rng: Generator) -> Tensor:
    """Each image cropped at its own place out of its reflected border, and mirrored or not.

    The result is what padding by `crop` pixels in reflection, cropping to the old size at a uniform offset and
    mirroring left to right with probability 1/2 gives. It is a gather of rows and one of columns; no pixel is ever
    interpolated.

    Args:
        images: uint8, (n, channels, height, width).
        crop: width of the reflected border; 0 for no crop.
        flip: whether to mirror.
        rng: where offsets and flips come from, on any device.
    """
    n, _, height, width = images.shape
    if not 0 <= crop < min(height, width):
        raise ValueError(f"crop must be >= 0 and less than the image's side {min(height, width)}, got {crop}")
    if crop == 0 and not flip:
        return images
    device = images.device
    rows = torch.arange(height, device=device).expand(n, height)
    columns = torch.arange(width, device=device).expand(n, width)
    if flip:
        mirrored = _draw(2, (n, 1), rng, device).bool()
        columns = torch.where(mirrored, columns.flip(1), columns)
    if crop:
        offsets = _draw(2 * crop + 1, (2, n, 1), rng, device) - crop
        rows = _reflect(rows + offsets[0], height)
        columns = _reflect(columns + offsets[1], width)
    moved = images.gather(2, rows[:, None, :, None].expand(images.shape))
    return moved.gather(3, columns[:, None, None, :].expand(images.shape))


def epoch_batches(n: int, batch_size: int, *, rng: Generator, device: torch.device | str) -> Iterator[Tensor]:
    """Batches of indices that together are 0..n-1 once each, shuffled; the last one may be smaller.

    The whole order is drawn at the call, so `rng` moves on by one permutation however many batches are used.

    Args:
        n: number of examples.
        batch_size: examples in a batch.
        rng: where the order comes from, on any device.
        device: where the indices go.
    """
    if n < 1:
        raise ValueError(f"n must be >= 1, got {n}")
    if batch_size < 1:
        raise ValueError(f"batch_size must be >= 1, got {batch_size}")
    order = torch.randperm(n, generator=rng, device=rng.device).to(device)
    return iter(order.split(batch_size))


def _draw(bound: int, shape: tuple[int, ...], rng: Generator, device: torch.device) -> Tensor:
    return torch.randint(bound, shape, generator=rng, device=rng.device).to(device)


def _reflect(index: Tensor, size: int) -> Tensor:
    # Mirrored at the first and at the last pixel, neither of them doubled; enough while crop < size.
    return (size - 1) - ((size - 1) - index.abs()).abs()


def check_images(x: Tensor) -> None:
    """Refuse what is not a batch of images, uint8 or float in [0, 1], on a CPU or a GPU."""
    if not isinstance(x, Tensor):
        raise ValueError(f"x must be a tensor, got a {type(x).__name__}")
    if x.dim() < 2 or len(x) == 0:
        raise ValueError(f"x must be a batch of inputs (n, ...), got the shape {tuple(x.shape)}")
    if x.device.type not in ("cpu", "cuda"):
        raise ValueError(f"x must be on a cpu or cuda device, got {x.device}")
    if x.dtype == torch.uint8:
        return
    if not x.is_floating_point():
        raise ValueError(f"x must be uint8 or floating point, got {x.dtype}")
    if x.isnan().any() or x.min() < 0 or x.max() > 1:
        raise ValueError(f"x must be in [0, 1], got values from {x.min().item():.4g} to {x.max().item():.4g}")


def as_float(x: Tensor) -> Tensor:
    """Images as the network takes them: uint8 in [0, 1], floats as they are; their range is not looked at."""
    if not isinstance(x, Tensor) or not (x.dtype == torch.uint8 or x.is_floating_point()):
        given = x.dtype if isinstance(x, Tensor) else f"a {type(x).__name__}"
        raise ValueError(f"x must be a tensor, uint8 or floating point, got {given}")
    return x if x.is_floating_point() else to_unit(x)


def class_numbers(y: Tensor, x: Tensor) -> Tensor:
    """The labels of inputs as int64, on the inputs' device; what is not one class number an input is refused."""
    if not isinstance(y, Tensor) or y.shape != (len(x),) or y.is_floating_point():
        given = f"{y.dtype} of shape {tuple(y.shape)}" if isinstance(y, Tensor) else f"a {type(y).__name__}"
        raise ValueError(f"y must be a tensor of one label an input ({len(x)}), a class number, got {given}")
    return y.to(x.device, torch.int64)


def check_labels(y: Tensor, num_classes: int) -> None:
    """Refuse labels that the network has no class for."""
    if y.min() < 0 or y.max() >= num_classes:
        raise ValueError(f"labels must be in [0, {num_classes}), got {int(y.min())} to {int(y.max())}")


@dataclass(frozen=True)
class Checked:
    """What was found when every file of a data set was verified."""

    name: str
    """The data set's name."""
    where: Path
    """The folder or file it lies in."""
    files: int
    """How many files were verified."""
    train: int
    """Training images."""
    test: int
    """Test images."""
    classes: int
    """Classes found."""
    published_classes: int
    """Classes the published data set has; more than `classes` where only a part of it is there."""
    shape: tuple[int, int, int]
    """Channels, height and width of an image."""


class Source(Protocol):
    """A data set that may lie under a root folder."""

    @property
    def name(self) -> str:
        """The name it goes by."""
        ...

    @property
    def description(self) -> str:
        """One line for a list."""
        ...

    def locate(self, root: Path) -> Path | None:
        """Where it lies under the root, or None when a file of it is missing; nothing is read."""
        ...

    def load(self, root: Path, split: Split, progress: ProgressCallback) -> Dataset:
        """One split, its files verified first; a ValueError of one line when one is damaged or missing."""
        ...

    def check(self, root: Path, progress: ProgressCallback) -> Checked:
        """Verify every file; a ValueError of one line when one is damaged or missing."""
        ...

    def fetch(self, root: Path, progress: ProgressCallback) -> str:
        """Bring what is missing under the root and say where it came from."""
        ...


def checked(name: str, where: Path, files: int, train: Dataset | None, test: Dataset, published: int) -> Checked:
    """What two verified splits, or a test split alone, amount to."""
    trained = 0 if train is None else len(train)
    return Checked(
        name, where, files, trained, len(test), test.num_classes, published_classes=published, shape=test.shape
    )


def data_root(root: Path | str | None) -> Path:
    """The folder data sets lie in: the one given, else $RHOBUST_DATA, else the platform's cache folder."""
    if root is not None:
        return Path(root).expanduser()
    if named := os.environ.get("RHOBUST_DATA"):
        return Path(named).expanduser()
    import platformdirs

    return platformdirs.user_cache_path("rhobust") / "data"
