"""A data set as two tensors and a description; batches, augmentation, CutMix, and validation of inputs."""

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

Split = Literal["train", "test"]
"""The parts of a data set."""
EvaluationSplit = Literal["test", "validation"]
"""What networks are evaluated on: test images, or training images that were held out of the training."""

# Images per block where the whole set would need a copy in a wider type.
_CHUNK = 4096


class ImageFile(Protocol):
    """The file that images are mapped from, which keeps their fingerprint."""

    def fingerprint(self, labels: Tensor, compute: Callable[[], str]) -> str:
        """The fingerprint of all its images with these labels; computed at the first call only."""
        ...


@dataclass(frozen=True)
class Origin:
    """Images that are those of a file, as long as nobody writes to them."""

    file: ImageFile
    """The file."""
    images: Tensor
    """All of its images."""
    version: int
    """Number of writes to them when they were mapped."""


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """One split of a data set: on one device, in memory or mapped from a file of decoded images."""

    name: str
    """Name of the data set ("mnist"), of the folder or of the file."""
    split: Split | EvaluationSplit
    """Train or test split; validation: images of the train split that a run held out of its training."""
    images: Tensor
    """uint8, (n, channels, height, width)."""
    labels: Tensor
    """int64, (n,), indices into `classes`."""
    classes: tuple[str, ...]
    """Names of the classes."""
    crop: int = 0
    """Reflection padding of the random crops in training; 0: no crops."""
    flip: bool = False
    """Whether training flips images horizontally at random."""
    named: bool = True
    """Whether `classes` are names; False for the class numbers of an `.npz` file without names."""
    origin: Origin | None = None
    """The file that all images are mapped from; None: memory."""

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        if self.split not in ("train", "test", "validation"):
            raise ValueError(f"split must be 'train', 'test' or 'validation', got {self.split!r}")
        for name, given in (("images", images), ("labels", labels)):
            if not isinstance(given, Tensor):
                raise ValueError(f"{name} must be a tensor, got a {type(given).__name__}")
        _check_stored(images)
        if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
            raise ValueError(f"labels must be int64 ({len(images)},), got {_kind(labels)}")
        if labels.device != images.device:
            raise ValueError(f"labels must be on the images' device {images.device}, got {labels.device}")
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= len(self.classes):
            raise ValueError(f"labels must be in 0..{len(self.classes) - 1}, got {low}..{high}")
        if not 0 <= self.crop < min(images.shape[2:]):
            raise ValueError(f"crop must be >= 0 and less than the image's side, got {self.crop}")
        # Sums of floats depend on the order in memory, which must not decide a number; one pixel for all has none.
        object.__setattr__(self, "images", images.contiguous() if any(images.stride()) else images)

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
    def dimension(self) -> int:
        """Numbers per image."""
        return self.images.shape[1:].numel()

    @property
    def num_classes(self) -> int:
        """Number of classes, including those without an image in this split."""
        return len(self.classes)

    def to(self, device: torch.device | str) -> "Dataset":
        """The same data set on another device."""
        return dataclasses.replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def select(self, indices: Tensor | Sequence[int]) -> "Dataset":
        """The images with these indices, in this order; all classes are kept."""
        indices = torch.as_tensor(indices, device=self.images.device)
        return dataclasses.replace(self, images=self.images[indices], labels=self.labels[indices])

    def take(self, limit: int | None = None, stride: int = 1) -> tuple[Tensor, "Dataset"]:
        """The indices of `places(limit, stride)`, and the images with these indices."""
        indices = torch.tensor(self.places(limit, stride))
        return indices, self.select(indices)

    def places(self, limit: int | None = None, stride: int = 1) -> range:
        """The indices of every `stride`-th image, at most `limit` of them.

        Args:
            limit: Largest number of images; None: no limit.
            stride: Distance between two indices; the first is 0.
        """
        if limit is not None and limit < 1:
            raise ValueError(f"limit must be >= 1, got {limit}")
        if stride < 1:
            raise ValueError(f"stride must be >= 1, got {stride}")
        return range(0, len(self), stride)[:limit]

    def fingerprint(self) -> str:
        """Fingerprint of images and labels, sixteen hex digits; independent of the device."""
        origin = self.origin
        if origin is None or origin.images is not self.images or origin.version != self.images._version:
            return self._hash()
        return origin.file.fingerprint(self.labels, self._hash)

    def _hash(self) -> str:
        digest = hashlib.sha256(repr(tuple(self.images.shape)).encode())
        for images in _chunks(self.images):
            digest.update(images.cpu().contiguous().numpy().data)
        digest.update(self.labels.cpu().contiguous().numpy().astype("<i8").data)
        return digest.hexdigest()[:16]


def _check_stored(images: Tensor) -> None:
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise ValueError(f"images must be uint8 (n, channels, height, width), got {_kind(images)}")
    if 0 in images.shape:
        raise ValueError(f"images must hold at least one image, got {_kind(images)}")


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, for images scaled to [0, 1].

    Computed from integer histograms, so the result does not depend on the device or on the order of the images.
    The deviation is at least 1/255, one grid step, to avoid division by zero.

    Args:
        images: uint8, (n, channels, height, width).
    """
    _check_stored(images)
    count = images[:, 0].numel()
    means, deviations = [], []
    for channel in images.unbind(1):
        histogram = torch.zeros(256, dtype=torch.int64, device=images.device)
        for chunk in _chunks(channel):
            histogram += torch.bincount(chunk.reshape(-1), minlength=256)
        counts = histogram.tolist()
        first = sum(value * times for value, times in enumerate(counts))
        second = sum(value * value * times for value, times in enumerate(counts))
        means.append(first / count / 255)
        # Python integers are exact: no cancellation before the square root.
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
    # CUDA multiplies by the rounded reciprocal of a Python number; it divides by a tensor.
    return images.to(torch.float32) / torch.full((), 255.0, dtype=torch.float32, device=images.device)


def augment(images: Tensor, *, crop: int, flip: bool, rng: Generator) -> Tensor:
    """Random crops and horizontal flips, independent per image.

    Reflection padding by `crop` pixels, a crop to the original size at a uniform offset, and a horizontal flip with
    probability 1/2. Implemented as a gather of rows and one of columns, without interpolation.

    Args:
        images: uint8, (n, channels, height, width).
        crop: Width of the reflection padding; 0: no crop.
        flip: Whether to flip.
        rng: Generator of offsets and flips, on any device.
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
        mirrored = _random_integers(2, (n, 1), rng, device).bool()
        columns = torch.where(mirrored, columns.flip(1), columns)
    if crop:
        offsets = _random_integers(2 * crop + 1, (2, n, 1), rng, device) - crop
        rows = _reflect(rows + offsets[0], height)
        columns = _reflect(columns + offsets[1], width)
    shifted = images.gather(2, rows[:, None, :, None].expand(images.shape))
    return shifted.gather(3, columns[:, None, None, :].expand(images.shape))


def epoch_batches(n: int, batch_size: int, *, rng: Generator, device: torch.device | str) -> Iterator[Tensor]:
    """Shuffled batches of the indices 0..n-1; the last one may be smaller.

    The permutation is generated at the call, so `rng` advances by one permutation however many batches are used.

    Args:
        n: Number of examples.
        batch_size: Examples per batch.
        rng: Generator of the order, on any device.
        device: Device of the indices.
    """
    if n < 1:
        raise ValueError(f"n must be >= 1, got {n}")
    if batch_size < 1:
        raise ValueError(f"batch_size must be >= 1, got {batch_size}")
    order = torch.randperm(n, generator=rng, device=rng.device).to(device)
    return iter(order.split(batch_size))


def _random_integers(bound: int, shape: tuple[int, ...], rng: Generator, device: torch.device) -> Tensor:
    return torch.randint(bound, shape, generator=rng, device=rng.device).to(device)


def _reflect(index: Tensor, size: int) -> Tensor:
    # Reflection at the first and the last pixel, without repeating them; valid for crop < size.
    return (size - 1) - ((size - 1) - index.abs()).abs()


def check_images(x: Tensor) -> None:
    """Raise unless x is a batch of images, uint8 or float in [0, 1], on a CPU or a GPU."""
    if not isinstance(x, Tensor):
        raise ValueError(f"x must be a tensor, got a {type(x).__name__}")
    if x.layout != torch.strided:
        raise ValueError(f"x must be a dense tensor, got {str(x.layout).removeprefix('torch.')}")
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
    """Images as floats: uint8 scaled to [0, 1], floats unchanged; their range is not checked."""
    if not isinstance(x, Tensor) or not (x.dtype == torch.uint8 or x.is_floating_point()):
        given = x.dtype if isinstance(x, Tensor) else f"a {type(x).__name__}"
        raise ValueError(f"x must be a tensor, uint8 or floating point, got {given}")
    return x if x.is_floating_point() else to_unit(x)


def class_numbers(y: Tensor, x: Tensor) -> Tensor:
    """The labels as int64 on the inputs' device; raises unless there is one class number per input."""
    if not isinstance(y, Tensor) or y.shape != (len(x),) or y.is_floating_point():
        given = f"{y.dtype} of shape {tuple(y.shape)}" if isinstance(y, Tensor) else f"a {type(y).__name__}"
        raise ValueError(f"y must be a tensor of one class number per input ({len(x)}), got {given}")
    return y.to(x.device, torch.int64)


def check_labels(y: Tensor, num_classes: int) -> None:
    """Raise if a label exceeds the number of classes."""
    if y.min() < 0 or y.max() >= num_classes:
        raise ValueError(f"labels must be in [0, {num_classes}), got {int(y.min())} to {int(y.max())}")


def cutmix(
    images: Tensor, labels: Tensor, *, classes: int, probability: float, rng: Generator
) -> tuple[Tensor, Tensor]:
    """CutMix (Yun et al., 2019) of a batch: the images, and their labels as probabilities `(n, classes)`.

    An image gets a rectangle of another image of the batch at the same place, and of its label the rectangle's
    fraction a of the image: (1 - a) one_hot(y) + a one_hot(y'). The rectangle has the image's proportions, a uniform
    area (Beta(1, 1), as in the paper) and a uniform centre; what lies outside the image is cut off.

    Args:
        images: `(n, channels, height, width)`.
        labels: int64, `(n,)`.
        classes: Number of classes.
        probability: Probability of a rectangle, for each image on its own.
        rng: Generator on the device of the images.
    """
    count, _, height, width = images.shape
    area, row, column, chosen = torch.rand(4, count, 1, generator=rng, dtype=torch.float32, device=images.device)
    other = torch.randperm(count, generator=rng, device=images.device)
    side = area.sqrt() * (chosen < probability)
    rows, columns = (
        _inside(size, (centre * size).long(), (side * size).long() // 2)
        for size, centre in ((height, row), (width, column))
    )
    mixed = torch.where((rows[:, :, None] & columns[:, None, :])[:, None], images[other], images)
    fraction = rows.sum(1, keepdim=True) * columns.sum(1, keepdim=True) / (height * width)
    hard = F.one_hot(labels, classes)
    return mixed, hard * (1 - fraction) + hard[other] * fraction


def _inside(size: int, centre: Tensor, half: Tensor) -> Tensor:
    """Which of `size` places lie within centre - half <= place < centre + half, `(n, size)`."""
    place = torch.arange(size, device=centre.device)
    return (place >= centre - half) & (place < centre + half)
