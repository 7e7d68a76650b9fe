"""Labels and names of classes as people have them, and classes of data matched with those of a network."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rhobust.data.dataset import Dataset

LABEL_KEYS = ("label", "labels", "fine_label", "y")
"""Keys of the label of an item that is a mapping."""
MOST_CLASSES = 100_000
"""Largest number of classes of any data."""


def names_of(source: Any) -> tuple[str, ...] | None:
    """Names of the classes as torchvision's and Hugging Face's data sets say them."""
    for holder in (source, getattr(source, "dataset", None)):
        names = getattr(holder, "classes", None)
        features = getattr(holder, "features", None)
        if names is None and isinstance(features, Mapping):
            names = next((getattr(features[key], "names", None) for key in LABEL_KEYS if key in features), None)
        if isinstance(names, Sequence) and not isinstance(names, str) and names:
            return tuple(map(str, names))
    return None


def _is_scalar(labels: Any) -> bool:
    return isinstance(labels, str) or not hasattr(labels, "__len__") or getattr(labels, "ndim", 1) == 0


def label_count(labels: Any) -> int:
    """Number of labels."""
    return 1 if _is_scalar(labels) else len(labels)


def numbered(labels: Any, count: int, classes: tuple[str, ...] | None) -> tuple[Tensor, tuple[str, ...] | None]:
    """Labels as int64 (n,), and the names of the classes where the labels are names."""
    if isinstance(labels, Tensor):
        labels = labels.detach().cpu().numpy()
    elif not isinstance(labels, np.ndarray):
        plain = [labels] if _is_scalar(labels) else list(labels)
        labels = np.array([one.item() if isinstance(one, Tensor) and one.numel() == 1 else one for one in plain])
    labels = np.atleast_1d(labels)
    if labels.dtype.kind in "US" and labels.ndim == 1:
        names = [str(label) for label in labels]
        known = tuple(sorted(set(names))) if classes is None else classes
        if strange := [label for label in names if label not in known]:
            raise ValueError(f"labels must be among the classes {_shown(known)}, got {strange[0]!r}")
        labels, classes = np.array([known.index(label) for label in names]), known
    if labels.ndim == 2 and labels.shape[0] == count and labels.shape[1] > 1:
        raise ValueError(f"labels must be class numbers, got the shape {labels.shape}: pass labels.argmax(1)")
    if labels.dtype.kind not in "iu":
        raise ValueError(f"labels must be integers or names of classes, got {labels.dtype}")
    labels = labels.reshape(-1) if labels.size == count else labels
    if labels.shape != (count,):
        raise ValueError(f"labels must be one per image, got {labels.shape} for {count} images")
    if labels.min() < 0 or labels.max() >= (MOST_CLASSES if classes is None else len(classes)):
        most = "0, 1, 2, ..." if classes is None else f"in 0..{len(classes) - 1}"
        many = "" if labels.max() < MOST_CLASSES else f": at most {MOST_CLASSES:,} classes"
        raise ValueError(f"labels must be {most}, got {labels.min()} to {labels.max()}{many}")
    return torch.from_numpy(labels.astype(np.int64)), classes


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def are_numbers(classes: Sequence[str]) -> bool:
    """Whether classes are called 0, 1, 2, ... in this order, so that their names and their places are the same."""
    return list(classes) == [str(place) for place in range(len(classes))]


def class_names(names: np.ndarray | None, count: int, name: str) -> tuple[str, ...]:
    """The names of the classes, at least `count`; numbers where there are no names."""
    if names is None:
        return tuple(map(str, range(count)))
    if names.dtype.kind != "U" or names.ndim != 1 or not count <= len(names) <= MOST_CLASSES:
        raise ValueError(f"{name} must be strings, one per label 0..{count - 1}, got {names.dtype} {names.shape}")
    found = tuple(names.tolist())
    if len(set(found)) < len(found) or not all(found):
        raise ValueError(f"{name} must be different names, but two are equal or one is empty")
    return found


def places_by_name(classes: Sequence[str] | None, names: Sequence[str]) -> Tensor | None:
    """Where each class is among `names`, if these are the names that the classes have; None where they are new ones.

    Raises:
        ValueError: Some are: a class would get the name of another one.
    """
    if classes is None or are_numbers(classes):
        return None
    if missing := [name for name in classes if name not in names]:
        for place, name in enumerate(names):
            if name in classes and classes.index(name) != place:
                raise ValueError(
                    f"class_names must hold all classes that the images come with ({_shown(classes)}), or new names for"
                    f" them in this order, got {name} at place {place} and no {missing[0]}"
                )
        return None
    return torch.tensor([names.index(name) for name in classes])


def check_shape(data: Dataset, shape: tuple[int, int, int], trained: Path | str) -> None:
    """Refuse images of another shape than a network, called `trained`, was trained for."""
    if data.shape != shape:
        wanted, found = ("x".join(map(str, one)) for one in (shape, data.shape))
        raise ValueError(
            f"{data.name} must hold images of shape {wanted}, which {trained} was trained for, got {found}"
        )


def match_classes(data: Dataset, classes: tuple[str, ...], folder: Path | str) -> Dataset:
    """The data with a run's classes: names are matched with names, and numbers with numbers only."""
    if not data.named and not are_numbers(classes):
        raise ValueError(
            f"{data.name} must name its classes, as {folder} was trained for named ones ({', '.join(classes[:3])},"
            " ...), got class numbers: add the array classes, their names in the order of the numbers, to the .npz file"
        )
    if strange := [name for name in data.classes if name not in classes]:
        raise ValueError(
            f"{data.name} must hold classes that {folder} was trained for ({', '.join(classes[:3])}, ...),"
            f" got {', '.join(strange[:3])}: rename them, or leave them out"
        )
    places = torch.tensor([classes.index(name) for name in data.classes])
    return replace(data, labels=places[data.labels], classes=classes, named=True)


def fit_classes(data: Dataset, width: int, name: str) -> Dataset:
    """The data with a class for each output of the user's own network; numbered classes may leave out the last ones."""
    if width < 2 and data.num_classes < 2:
        raise ValueError(
            f"{data.name} must have two classes at least, for {name} is built for as many as it has, got"
            f" {data.num_classes}: name all classes of the network, also those without an image (by an empty class"
            " folder; an .npz file has the array classes, Python the argument class_names)"
        )
    if width < 2:
        raise ValueError(
            f"{name} must return a logit for each class, two at least, got one: for a single output z return"
            " torch.cat([torch.zeros_like(z), z], 1)"
        )
    numbers = tuple(map(str, range(width)))
    if data.num_classes != width and data.classes != numbers[: data.num_classes]:
        raise ValueError(
            f"{data.name} must hold the classes of {name}, which returns {width} logits per image, got"
            f" {data.num_classes} classes; name all {width} in the order of its outputs (class folders are sorted by"
            f" name and may be empty, an .npz file has the array classes, Python the argument class_names), or give"
            f" class numbers below {width}"
        )
    return data if data.num_classes == width else replace(data, classes=numbers)
