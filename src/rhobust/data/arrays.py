"""An `.npz` file with images x and labels y."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from rhobust.data.classes import MOST_CLASSES, class_names
from rhobust.data.content import content_keys, in_test_part
from rhobust.data.dataset import Dataset, Split
from rhobust.data.npy import read_arrays
from rhobust.data.source import DatasetCheck, split_message, summarise_check, warn_missing
from rhobust.progress import ProgressCallback

_NAMES = ("x", "y", "x_test", "y_test")
_CLASSES = "classes"


@dataclass(frozen=True)
class ArrayFile:
    """`x` uint8 (n, h, w), (n, h, w, c) or (n, c, h, w), and `y` integers (n,); optionally `x_test` and `y_test`.

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
        """One split; all arrays are read, so that both splits have the same classes.

        Messages say how a file without a test part was split, which classes have no image in the split, and that no
        image has label 0: labels count from 0.
        """
        arrays = read_arrays(self.path, (*_NAMES, _CLASSES))
        parts: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        if "x_test" in arrays or "y_test" in arrays:
            parts["test"] = self._part(arrays, "x_test", "y_test")
        if not parts or "x" in arrays or "y" in arrays:
            parts["train"] = self._part(arrays, "x", "y")
            if "test" in parts and parts["test"][0].shape[1:] != parts["train"][0].shape[1:]:
                raise ValueError(
                    f"x_test in {self.path} must have the images' shape of x, {parts['train'][0].shape[1:]} "
                    f"(channels, height, width), got {parts['test'][0].shape[1:]}"
                )
        present = {label for _, y in parts.values() for label in y.tolist()}
        classes = class_names(arrays.get(_CLASSES), 1 + max(present), f"{_CLASSES} in {self.path}")
        unsplit = "test" not in parts
        if unsplit:
            parts = _divide(*parts["train"])
        if split not in parts:
            raise ValueError(f"{self.path} must hold x and y to be trained on, got {', '.join(arrays)}")
        images, labels = parts[split]
        if not len(labels):
            raise ValueError(
                f"{self.path} must have an image for its {split} split, but the pixels of none choose it: store a test "
                "part, x_test and y_test"
            )
        if unsplit:
            progress(split_message(self.path, split, len(labels), sum(len(y) for _, y in parts.values())))
        if 0 not in present:
            progress(f"warning: {self.path} has no image with label 0: labels count from 0")
        if unsplit or split == "train":
            missing = [classes[label] for label in sorted(set(range(len(classes))) - set(labels.tolist()))]
            warn_missing(self.path, split, missing, len(classes), progress)
        named = _CLASSES in arrays
        return Dataset(self.name, split, torch.from_numpy(images), torch.from_numpy(labels), classes, named=named)

    def check(self, root: Path, progress: ProgressCallback) -> DatasetCheck:
        """Read every array."""
        train = self.load(root, "train", progress) if "x" in read_arrays(self.path, _NAMES) else None
        test = self.load(root, "test", progress)
        return summarise_check(self.name, self.path, 1, train, test, test.num_classes)

    def fetch(self, root: Path, progress: ProgressCallback) -> str:
        """A user's file cannot be downloaded."""
        raise ValueError(f"the data set to get must be a known one, got the file {self.path}")

    def _part(self, arrays: dict[str, np.ndarray], images: str, labels: str) -> tuple[np.ndarray, np.ndarray]:
        for name in (images, labels):
            if name not in arrays:
                raise ValueError(
                    f"{self.path} must hold an array {name}, got {', '.join(arrays) or 'none of ' + ', '.join(_NAMES)}"
                )
        x, y = arrays[images], arrays[labels]
        x = channels_first(x, f"{images} in {self.path}")
        return x, integer_labels(y, len(x), f"{labels} in {self.path}")


def channels_first(x: np.ndarray, name: str) -> np.ndarray:
    """8-bit images as (n, channels, height, width), from (n, h, w), (n, h, w, c) or (n, c, h, w) with 1 or 3 channels.

    Args:
        x: The images.
        name: Their name, for messages.
    """
    if x.dtype != np.uint8:
        raise ValueError(
            f"{name} must be uint8 (values 0..255), got {x.dtype}: the certificates' noise "
            f"is on the 1/255 grid; {_as_bytes(x)}"
        )
    if x.ndim == 3:
        return x[:, None]
    places = [axis for axis in (1, 3) if x.ndim == 4 and x.shape[axis] in (1, 3)]
    if len(places) != 1:
        trouble = "either may be the channels" if places else "no axis has 1 or 3 channels"
        raise ValueError(f"{name} must be (n, h, w), (n, h, w, c) or (n, c, h, w), got {x.shape}: {trouble}")
    return x if places == [1] else np.ascontiguousarray(x.transpose(0, 3, 1, 2))


def _as_bytes(x: np.ndarray) -> str:
    """Advice how to convert to uint8; a wrong factor would silently overflow."""
    low, high = (float(x.min()), float(x.max())) if x.dtype.kind in "fiu" and x.size else (0.0, 1.0)
    if 0 <= low <= high <= 255:
        return f"store np.round({'255 * x' if high <= 1 else 'x'}).astype(np.uint8)"
    return f"its values run from {low:.4g} to {high:.4g}, so undo the normalisation first"


def integer_labels(y: np.ndarray, count: int, name: str) -> np.ndarray:
    """Labels as int64, one per image.

    Args:
        y: The labels.
        count: Number of images.
        name: Name of the labels, for messages.
    """
    if y.dtype.kind not in "iu" or y.ndim != 1 or len(y) != count or not len(y):
        raise ValueError(f"{name} must be integers, one per image, got {y.dtype} {y.shape} for {count} images")
    if int(y.min()) < 0 or int(y.max()) >= MOST_CLASSES:
        raise ValueError(f"{name} must be labels 0, 1, 2, ..., got {y.min()}..{y.max()}")
    return y.astype(np.int64)


def _divide(x: np.ndarray, y: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    test = in_test_part(content_keys(x))
    return {"train": (x[~test], y[~test]), "test": (x[test], y[test])}
