"""Names of classes: those of a file, and those of data matched with those of a network."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from rhobust.data.dataset import Dataset

MOST_CLASSES = 100_000
"""Largest number of classes of a file."""


def are_numbers(classes: Sequence[str]) -> bool:
    """Whether classes are called 0, 1, 2, ... in this order, so that their names and their places are the same."""
    return list(classes) == [str(place) for place in range(len(classes))]


def class_names(names: np.ndarray | None, count: int, name: str) -> tuple[str, ...]:
    """The names of the classes, at least `count`; numbers where there are no names.

    Args:
        names: The stored names, strings.
        count: Number of classes that the labels need.
        name: Name of the array, for messages.
    """
    if names is None:
        return tuple(map(str, range(count)))
    if names.dtype.kind != "U" or names.ndim != 1 or not count <= len(names) <= MOST_CLASSES:
        raise ValueError(f"{name} must be strings, one per label 0..{count - 1}, got {names.dtype} {names.shape}")
    found = tuple(names.tolist())
    if len(set(found)) < len(found) or not all(found):
        raise ValueError(f"{name} must be different names, but two are equal or one is empty")
    return found


def match_classes(data: Dataset, classes: tuple[str, ...], folder: Path) -> Dataset:
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
    numbers = tuple(map(str, range(width)))
    if data.num_classes != width and data.classes != numbers[: data.num_classes]:
        raise ValueError(
            f"{data.name} must hold the classes of {name}, which returns {width} logits per image, got"
            f" {data.num_classes} classes; an .npz file with class numbers may leave some out"
        )
    return data if data.num_classes == width else replace(data, classes=numbers)
