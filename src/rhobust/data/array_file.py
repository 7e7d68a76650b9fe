"""Data sets in `.npz` files."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from rhobust.data.arrays import ArrayHeader, channels_first, integer_labels, read_arrays, read_headers, read_shards
from rhobust.data.dataset import Dataset, Split
from rhobust.data.decoded import MappedImages, SplitImages, decode_once
from rhobust.data.labels import class_names
from rhobust.data.sizing import Sizing
from rhobust.data.source import DatasetCheck, content_keys, in_test_part, split_message, summarise_check, warn_missing
from rhobust.progress import ProgressCallback

_PARTS: dict[str, tuple[tuple[str, str], ...]] = {
    "train": (("x", "y"), ("x_train", "y_train"), ("train_images", "train_labels")),
    "test": (("x_test", "y_test"), ("test_images", "test_labels")),
}
"""Names of the images and the labels of each part: ours, those of Keras, those of MedMNIST."""
_IMAGES, _LABELS = zip(*(pair for pairs in _PARTS.values() for pair in pairs), strict=True)
_CLASSES = "classes"
LARGE = 1 << 30
"""Bytes of images from which on they are read in shards, and not held in memory."""


@dataclass(frozen=True)
class ArrayFile:
    """`x` uint8 (n, h, w), (n, h, w, c) or (n, c, h, w), and `y` integers (n,); optionally `x_test` and `y_test`.

    The names of Keras (`x_train`, `y_train`) and of MedMNIST (`train_images`, `test_labels`, ...) are read as well.
    `x_test` and `y_test` without `x` and `y` are for networks that were trained elsewhere.
    Without `x_test` about a fifth is the test split, chosen by the pixels of each image alone (`in_test_part`).
    `classes`, strings, may name the classes in the order of the labels; without it they are numbers.
    Images keep the file's order. Pickled arrays are never read.
    """

    path: Path
    """The file."""

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.name

    @property
    def description(self) -> str:
        """Where it is."""
        return f"arrays in {self.path}"

    def locate(self, root: Path) -> Path | None:
        """The file; the root is ignored."""
        return self.path if self.path.is_file() else None

    def load(self, root: Path, split: Split, progress: ProgressCallback) -> Dataset:
        """One split; the labels of all are read, so that both splits have the same classes.

        Images of more than `LARGE` bytes are read in shards, once, into a file that all processes map into memory.

        Messages say how a file without a test part was split, which classes have no image in the split, and that no
        image has label 0: labels count from 0.
        """
        headers = read_headers(self.path, _IMAGES)
        large = sum(header.size for header in headers.values()) > LARGE
        # An array that is stored by columns has its images not one after the other.
        stored = headers if large and not any(header.by_column for header in headers.values()) else {}
        arrays = read_arrays(self.path, (*_LABELS, _CLASSES, *(() if stored else _IMAGES)))
        named = {part: self._names((*headers, *arrays), part) for part in _PARTS}
        if not any(named.values()):
            named["train"] = _PARTS["train"][0]
        parts = {part: self._part(arrays, stored, *names) for part, names in named.items() if names}
        if len(parts) == 2 and parts["test"][0].shape[1:] != parts["train"][0].shape[1:]:
            raise ValueError(
                f"the test images in {self.path} must have the shape of its training images, "
                f"{parts['train'][0].shape[1:]} (channels, height, width), got {parts['test'][0].shape[1:]}"
            )
        present = {label for _, y in parts.values() for label in y.tolist()}
        classes = class_names(arrays.get(_CLASSES), 1 + max(present), f"{_CLASSES} in {self.path}")
        unsplit = "test" not in parts
        if not unsplit and split not in parts:
            there = ", ".join(dict.fromkeys((*headers, *arrays)))
            raise ValueError(f"{self.path} must hold x and y to be trained on, got {there}")
        x, y = parts["train" if unsplit else split]
        part = split if unsplit else None
        if isinstance(x, StoredImages):
            places, images, origin = x.map(root, split, part, progress)
        else:
            places, origin = _places(x, part), None
            images = torch.from_numpy(x if part is None else x[places])
        labels = torch.from_numpy(y[places])
        if not len(labels):
            raise ValueError(
                f"{self.path} must have an image for its {split} split, but the pixels of none choose it: store a test "
                "part, x_test and y_test"
            )
        if unsplit:
            progress(split_message(self.path, split, len(labels), len(y)))
        if 0 not in present:
            progress(f"warning: {self.path} has no image with label 0: labels count from 0")
        if unsplit or split == "train":
            missing = [classes[label] for label in sorted(set(range(len(classes))) - set(labels.tolist()))]
            warn_missing(self.path, split, missing, len(classes), progress)
        return Dataset(self.name, split, images, labels, classes, named=_CLASSES in arrays, origin=origin)

    def check(self, root: Path, progress: ProgressCallback) -> DatasetCheck:
        """Read every array."""
        trainable = self._names(read_headers(self.path, _IMAGES), "train")
        train = self.load(root, "train", progress) if trainable else None
        test = self.load(root, "test", progress)
        return summarise_check(self.name, self.path, 1, train, test, test.num_classes)

    def fetch(self, root: Path, progress: ProgressCallback) -> str:
        """A user's file cannot be downloaded."""
        raise ValueError(f"the data set to get must be a known one, got the file {self.path}")

    def _names(self, there: Collection[str], part: str) -> tuple[str, str] | None:
        """What the file calls the images and labels of a part; None: it has no such part."""
        found = [pair for pair in _PARTS[part] if any(name in there for name in pair)]
        if len(found) > 1:
            raise ValueError(f"{self.path} must hold one {part} part, got {' and '.join(pair[0] for pair in found)}")
        return found[0] if found else None

    def _part(
        self, arrays: dict[str, np.ndarray], stored: dict[str, ArrayHeader], images: str, labels: str
    ) -> tuple["np.ndarray | StoredImages", np.ndarray]:
        there = (*stored, *arrays)
        for name in (images, labels):
            if name not in there:
                found = ", ".join(there) or "none of x, y, x_train, y_train, x_test, y_test"
                raise ValueError(f"{self.path} must hold an array {name}, got {found}")
        if images in arrays:
            x: np.ndarray | StoredImages = channels_first(arrays[images], f"{images} in {self.path}")
        else:
            header = stored[images]
            empty = channels_first(np.empty((0, *header.shape[1:]), header.dtype), f"{images} in {self.path}")
            x = StoredImages(self.path, images, (header.shape[0], *empty.shape[1:]))
        return x, integer_labels(arrays[labels], x.shape[0], f"{labels} in {self.path}")


@dataclass(frozen=True)
class StoredImages:
    """Images of an `.npz` file that are not held in memory."""

    path: Path
    """The file."""
    name: str
    """The array."""
    shape: tuple[int, ...]
    """Number of images, channels, height and width."""

    def map(self, root: Path, split: Split, part: Split | None, progress: ProgressCallback) -> SplitImages:
        """The images of a split, in a file that is mapped into memory."""
        count, *shape = self.shape
        cache = MappedImages.of(root, self.path, split, Sizing(), [self.path], count, self.name)
        size = shape[0], shape[1], shape[2]
        return decode_once(cache, lambda: size, lambda _: self._images(part), count, str(self.path), progress)

    def _images(self, part: Split | None) -> Iterator[tuple[int, np.ndarray]]:
        first = 0
        for shard in read_shards(self.path, self.name):
            images = np.ascontiguousarray(channels_first(shard, f"{self.name} in {self.path}"))
            for place in _places(images, part):
                yield first + int(place), images[place]
            first += len(images)


def _places(images: np.ndarray, part: Split | None) -> np.ndarray:
    """Where the images of a part are among others, by their own pixels; None: all of them."""
    if part is None:
        return np.arange(len(images))
    return np.flatnonzero(in_test_part(content_keys(images)) == (part == "test"))
