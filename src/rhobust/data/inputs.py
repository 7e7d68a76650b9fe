"""Images and labels as people have them: arrays, tensors, Pillow images, torch data sets, loaders, folders, names."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rhobust.data.dataset import Dataset, Split, to_unit
from rhobust.data.hugging_face import is_live, take_live
from rhobust.data.images import IMAGE_KEYS, SUFFIXES, pixels_of, read_image
from rhobust.data.labels import LABEL_KEYS, label_count, names_of, numbered, places_by_name
from rhobust.data.registry import load, source
from rhobust.data.sizing import AS_STORED, Sizing
from rhobust.formatting import UNNAMED
from rhobust.noise import LEVELS
from rhobust.progress import ProgressCallback, no_progress, progress_or_default
from rhobust.user_code import UserCode

Layout = Literal["NCHW", "NHWC"]
"""Where the channels of a batch are: before or after height and width."""

_CHANNELS = (1, 3)
_ROUNDING = 1e-6
"""Largest distance from k / 255 that rounding in float32 explains."""
_ACCEPTED = (
    "an array, a tensor, Pillow images, image files, a torch Dataset or DataLoader, a Hugging Face Dataset, a folder or"
    " the name of a data set"
)


class Inputs(NamedTuple):
    """A batch of images and what came with it."""

    images: Tensor
    """(n, channels, height, width), uint8 or float in [0, 1]."""
    labels: Tensor | None
    """Class numbers, int64 (n,); None if there were none."""
    classes: tuple[str, ...] | None
    """Names of the classes; None if unknown."""
    name: str | None
    """Name of the data set; None if it has none."""


def as_dataset(
    images: Any,
    labels: Any = None,
    *,
    class_names: Sequence[str] | None = None,
    name: str | None = None,
    split: Split = "test",
    layout: Layout | None = None,
    limit: int | None = None,
    resize: int | None = None,
    crop: int | None = None,
    root: Path | str | None = None,
    progress: ProgressCallback | None = None,
) -> Dataset:
    """A data set from images and labels in any common form.

    Images are 8-bit: uint8, or floats in [0, 1] that are multiples of 1/255, which become uint8 exactly. Floats between
    them, normalised images and floats from 0 to 255 are refused with a line that says what to pass.

    Args:
        images: An array or a tensor, (n, h, w), (n, h, w, c) or (n, c, h, w), or one image; a Pillow image; a list of
            these, or of image files; a torch Dataset of (image, label); a DataLoader; a live Dataset or DatasetDict of
            Hugging Face; a `Dataset`; an image file; a folder, or a name known to `load`.
        labels: Class numbers or class names, one per image; None if the images come with labels.
        class_names: Names of the classes; default: what the source says, else the numbers. The source's own names in
            another order change the class numbers, other names only rename the classes.
        name: Name of the data set; default: the source's own, else "images".
        split: Which split a folder or a named data set gives, and what the result is called.
        layout: "NCHW" or "NHWC", for batches where the shape does not say it; default: the axis with 1 or 3 channels.
        limit: Largest number of images, the first ones; None: no limit.
        resize: Pixels of the shorter side that 8-bit images are resized to, as in `load`; None: as they are.
        crop: Side of the central square that is kept, after resizing; None: all of the image.
        root: Folder of the named data sets, as in `load`.
        progress: Progress callback of a folder or a named data set; default: shown on stderr.

    >>> import numpy as np
    >>> as_dataset(np.zeros((2, 8, 8, 3), np.uint8), ["cat", "dog"])
    Dataset('images', 'test', 2 images of 3x8x8, 2 classes)
    """
    if isinstance(images, str | Path) and Path(images).suffix.lower() not in SUFFIXES:
        source(images)  # what is no data set is refused first
        if labels is not None:
            raise ValueError(f"labels must be left out for {images}, which has its own")
        images = load(str(images), split, root=root, resize=resize, crop=crop, progress=progress)
        resize, crop = None, None
    elif is_live(images):
        with progress_or_default(progress) as notify:
            images = take_live(images, split, Sizing(resize, crop), limit, notify)
        if isinstance(images, Dataset):
            resize, crop = None, None
    if isinstance(images, Dataset) and labels is None:
        found = Sizing(resize, crop).dataset(images if limit is None else images.take(limit)[1])
        if class_names is not None:
            names = tuple(map(str, class_names))
            places = places_by_name(found.classes, names)
            moved = found.labels if places is None else places.to(found.labels.device)[found.labels]
            found = replace(found, labels=moved, classes=names, named=True)
        return replace(found, name=name or found.name)
    found = as_inputs(images, labels, class_names=class_names, layout=layout, limit=limit, resize=resize, crop=crop)
    if found.labels is None:
        if isinstance(images, str | Path):
            raise ValueError(
                f"{images} must be data with labels, such as a folder with one subfolder per class, got an image:"
                " the commands predict and certify take images without labels"
            )
        raise ValueError("labels must be given, one class number per image, got None and images without labels")
    known = found.classes
    if known is None:
        known = tuple(str(number) for number in range(max(2, int(found.labels.max()) + 1)))
    pixels = found.images if found.images.dtype == torch.uint8 else _to_bytes(found.images)
    return Dataset(name or found.name or f"{UNNAMED}{Sizing(resize, crop)}", split, pixels, found.labels, known)


def as_inputs(
    images: Any,
    labels: Any = None,
    *,
    class_names: Sequence[str] | None = None,
    layout: Layout | None = None,
    limit: int | None = None,
    subject: str = "images",
    resize: int | None = None,
    crop: int | None = None,
) -> Inputs:
    """Images, and labels where there are some, as tensors; floats between the multiples of 1/255 are kept.

    Arguments are those of `as_dataset`; `subject` is what messages call the images.
    """
    sizing = Sizing(resize, crop)
    if layout not in (None, "NCHW", "NHWC"):
        raise ValueError(f"layout must be NCHW or NHWC, got {layout!r}")
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be >= 1, got {limit}")
    if isinstance(images, str | Path):
        if Path(images).suffix.lower() in SUFFIXES:
            images = read_image(images)
        else:
            images, sizing = load(str(images), "test", resize=resize, crop=crop), AS_STORED
    elif is_live(images):
        images = take_live(images, "test", sizing, limit, no_progress)
        sizing = AS_STORED if isinstance(images, Dataset) else sizing
    own_classes, name = None, None
    if isinstance(images, Dataset):
        own_classes, name = images.classes, images.name + str(sizing)
        found, own = images.images, images.labels
    elif isinstance(images, Tensor | np.ndarray) or _is_pillow(images):
        found, own = _tensor(images, subject), None
    elif isinstance(images, Mapping) or not (isinstance(images, Iterable) or _by_place(images)):
        raise ValueError(f"{subject} must be {_ACCEPTED}, got a {type(images).__name__}")
    else:
        own_classes = names_of(images)
        found, own = _collect(images, layout, limit, subject, sizing)
        sizing = AS_STORED  # done, image by image: they may have had different sizes
    if own is not None and labels is not None:
        raise ValueError(f"labels must be left out where {subject} come with labels, got both")
    given = own if labels is None else labels
    found = sizing.images(_batch(found, layout, subject, None if given is None else label_count(given)), subject)
    check_range(found, subject)
    known = own_classes if class_names is None else tuple(map(str, class_names))
    places = None if own is None or known is None else places_by_name(own_classes, known)
    if places is not None:
        numbers = places[numbered(given, len(found), own_classes)[0]]
    else:
        numbers, known = (None, known) if given is None else numbered(given, len(found), known)
    if limit is not None:
        found, numbers = found[:limit], None if numbers is None else numbers[:limit]
    return Inputs(found, None if numbers is None else numbers.to(found.device), known, name)


def check_range(images: Tensor, subject: str = "images") -> None:
    """Raise unless images are uint8 or floats in [0, 1]; the line names what the values look like.

    Args:
        images: The images.
        subject: What the message calls them.
    """
    if images.dtype == torch.uint8:
        return
    if not images.is_floating_point():
        kind = str(images.dtype).removeprefix("torch.")
        raise ValueError(
            f"{subject} must be uint8 or floating point, got {kind}: pass uint8 for values 0..255, floats for [0, 1]"
        )
    low, high = (float(value) for value in images.detach().aminmax())
    if low >= 0 and high <= 1:
        return
    values = f"{subject} must be in [0, 1], got values from {low:.4g} to {high:.4g}"
    if not (np.isfinite(low) and np.isfinite(high)):
        raise ValueError(values)
    if low < 0:
        raise ValueError(
            f"{values}: they look normalised; pass them in [0, 1] (without the Normalize transform) and put mean and "
            "std into the model, as in rhobust.models.Normalised(model, mean, std)"
        )
    if high <= 255:
        whole = bool((images == images.round()).all()) and high > 2
        advice = "they look like 0..255: pass them as uint8, or divided by 255" if whole else "scale them to [0, 1]"
        raise ValueError(f"{values}: {advice}")
    raise ValueError(f"{values}: divide them by their largest possible value")


def _to_bytes(images: Tensor) -> Tensor:
    """Floats that are multiples of 1/255 as uint8; others are refused."""
    levels = (images.double() * LEVELS).round()
    pixels = levels.to(torch.uint8)
    away = (to_unit(pixels).double() - images.double()).abs().amax()
    if away > _ROUNDING:
        raise ValueError(
            f"images must be 8-bit, uint8 or multiples of 1/255, got values up to {float(away):.2g} away from them: "
            "round them with (255 * images).round() as uint8, before any resizing that interpolates in floats"
        )
    return pixels


def copied(array: np.ndarray) -> Tensor:
    """A copy of an array of numbers as a tensor, whatever its byte order and strides, read-only or not."""
    long = array.dtype.kind == "f" and array.dtype.itemsize > np.dtype(np.float64).itemsize
    return torch.from_numpy(np.array(array, dtype=np.float64 if long else array.dtype.newbyteorder("=")))


def _is_pillow(value: object) -> bool:
    """Whether a value is a Pillow image, without importing Pillow for other values."""
    return any(base.__module__ == "PIL.Image" and base.__name__ == "Image" for base in type(value).__mro__)


def _tensor(value: Any, subject: str) -> Tensor:
    """One array, tensor or Pillow image as a tensor."""
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.device.type == "meta":
            kind = "a meta tensor" if value.device.type == "meta" else str(value.layout).removeprefix("torch.")
            raise ValueError(f"{subject} must be a dense tensor with values, got {kind}")
        return value
    if _is_pillow(value):
        return torch.from_numpy(pixels_of(value))
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        return copied(value)
    given = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
    raise ValueError(f"{subject} must be {_ACCEPTED}, got {given}")


def _collect(
    items: Any, layout: Layout | None, limit: int | None, subject: str, sizing: Sizing
) -> tuple[Tensor, list[Any] | None]:
    """Images and labels of a loader's batches, or of the items of a data set or list."""
    batched = isinstance(items, torch.utils.data.DataLoader)
    images: list[Tensor] = []
    labels: list[Any] = []
    total = 0
    for item in _items(items, subject):
        image, label = _pair(item, subject)
        one = read_image(image) if isinstance(image, str | Path) else _tensor(image, subject)
        one = _batch(one, layout, subject, None) if batched else _image(one, layout, subject)
        one = sizing.images(one, subject)
        if images and one.shape[1:] != images[0].shape[1:]:
            shapes = " and ".join("x".join(map(str, found.shape[1:])) for found in (images[0], one))
            raise ValueError(f"{subject} must have one shape, got {shapes}; resize or convert them first")
        if images and one.dtype != images[0].dtype:
            raise ValueError(f"{subject} must have one type, got {images[0].dtype} and {one.dtype}")
        if label is not None:
            labels += list(label) if batched else [label]
        images.append(one)
        total += len(one)
        if limit is not None and total >= limit:
            break
    if not images:
        raise ValueError(f"{subject} must hold at least one image, got none")
    if labels and len(labels) != total:
        raise ValueError(f"labels must be one per image, got {len(labels)} for {total} images")
    return torch.cat(images), labels or None


def _by_place(items: Any) -> bool:
    """Whether items are read by their number, as those of torch's map-style data sets, which need not be its class."""
    if isinstance(items, torch.utils.data.Dataset):
        return not isinstance(items, torch.utils.data.IterableDataset)
    return hasattr(items, "__getitem__") and hasattr(items, "__len__") and not isinstance(items, Iterable)


def _items(items: Any, subject: str) -> Iterator[Any]:
    """Items of an iterable, or of a map-style data set, whose end only its length says."""
    mapped = _by_place(items)
    with UserCode(f"{subject} must be readable, but the data set raised"):
        places = iter(range(len(items)) if mapped else items)  # type: ignore[arg-type]
    while True:
        with UserCode(f"{subject} must be readable, but the data set raised"):
            try:
                found = next(places)
            except StopIteration:
                return
            item = items[found] if mapped else found
        yield item


def _pair(item: Any, subject: str) -> tuple[Any, Any]:
    """Image and label of an item; the label is None if there is none."""
    if isinstance(item, Mapping):
        image = next((key for key in IMAGE_KEYS if key in item), None)
        if image is None:
            raise ValueError(f"{subject} must have a key out of {', '.join(IMAGE_KEYS)}, got {', '.join(item)}")
        label = next((key for key in LABEL_KEYS if key in item), None)
        return item[image], None if label is None else item[label]
    if isinstance(item, tuple | list):
        if isinstance(item[0] if item else 0, int | float | list):
            raise ValueError(
                f"{subject} must be arrays, tensors or Pillow images, got nested lists: pass np.array of them"
            )
        if len(item) not in (1, 2):
            raise ValueError(f"{subject} must come as (image, label), got {len(item)} values")
        return item[0], item[1] if len(item) == 2 else None
    return item, None


def _batch(images: Tensor, layout: Layout | None, subject: str, count: int | None) -> Tensor:
    """Images as (n, channels, height, width); by the number of labels, n grey images or one in colour."""
    if 0 in images.shape or images.ndim < 2:
        raise ValueError(f"{subject} must be a batch of images or one image, got the shape {tuple(images.shape)}")
    if images.ndim == 4:
        return _channels_first(images, layout, subject)
    if images.ndim == 3 and count is not None and count == len(images) != 1:
        return images[:, None]
    if images.ndim == 3 and not any(images.shape[axis] in _CHANNELS for axis in (0, 2)):
        return images[:, None]
    return _image(images, layout, subject)


def _image(image: Tensor, layout: Layout | None, subject: str) -> Tensor:
    """One image as a batch, (1, channels, height, width)."""
    if image.ndim == 2:
        return image[None, None]
    if image.ndim == 4 and len(image) == 1:
        image = image[0]
    if image.ndim != 3:
        raise ValueError(f"each of {subject} must be (h, w), (h, w, c) or (c, h, w), got {tuple(image.shape)}")
    return _channels_first(image[None], layout, subject)


def _channels_first(images: Tensor, layout: Layout | None, subject: str) -> Tensor:
    if layout is None:
        places = [axis for axis in (1, 3) if images.shape[axis] in _CHANNELS]
        if len(places) != 1:
            trouble = "either axis may be the channels" if places else "no axis has 1 or 3 channels"
            raise ValueError(
                f"{subject} must be (n, c, h, w) or (n, h, w, c), got {tuple(images.shape)}: {trouble}; "
                "pass layout='NCHW' or layout='NHWC'"
            )
        layout = "NCHW" if places == [1] else "NHWC"
    return images if layout == "NCHW" else images.permute(0, 3, 1, 2).contiguous()
