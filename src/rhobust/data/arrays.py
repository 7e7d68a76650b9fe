"""An `.npz` file with images x and labels y."""

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from rhobust.data.dataset import Dataset, DatasetCheck, Split, summarise_check
from rhobust.data.folders import choose_test_part
from rhobust.progress import ProgressCallback

_NAMES = ("x", "y", "x_test", "y_test")
_MOST_CLASSES = 100_000


@dataclass(frozen=True)
class ArrayFile:
    """`x` uint8 (n, h, w), (n, h, w, c) or (n, c, h, w), and `y` integers (n,); optionally `x_test` and `y_test`.

    `x_test` and `y_test` without `x` and `y` are for networks that were trained elsewhere.
    Without `x_test` a fifth of each class is the test split, chosen by the indices in the file (`choose_test_part`).
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

        Warns about classes without a training image: labels that count from 1 leave class 0 empty.
        """
        arrays = read_arrays(self.path)
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
        num_classes = 1 + max(int(y.max()) for _, y in parts.values())
        if "test" not in parts:
            parts = _divide(*parts["train"])
        if split not in parts:
            raise ValueError(f"{self.path} must hold x and y to be trained on, got {', '.join(arrays)}")
        images, labels = parts[split]
        if not len(labels):
            raise ValueError(f"y in {self.path} must have a class of two images or more to split, but it has none")
        if split == "train" and (empty := sorted(set(range(num_classes)) - set(labels.tolist()))):
            shown = ", ".join(map(str, empty[:5])) + (", ..." if len(empty) > 5 else "")
            progress(
                f"warning: {self.path} has no training image of {len(empty)} of its {num_classes} classes ({shown}); "
                "labels count from 0"
            )
        classes = tuple(str(label) for label in range(num_classes))
        return Dataset(self.name, split, torch.from_numpy(images), torch.from_numpy(labels), classes)

    def check(self, root: Path, progress: ProgressCallback) -> DatasetCheck:
        """Read every array."""
        train = self.load(root, "train", progress) if "x" in read_arrays(self.path) else None
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
    if int(y.min()) < 0 or int(y.max()) >= _MOST_CLASSES:
        raise ValueError(f"{name} must be labels 0, 1, 2, ..., got {y.min()}..{y.max()}")
    return y.astype(np.int64)


def _divide(x: np.ndarray, y: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    test = np.zeros(len(y), bool)
    for label in np.unique(y):
        chosen = choose_test_part(str(place) for place in np.flatnonzero(y == label))
        test[[int(place) for place in chosen]] = True
    return {"train": (x[~test], y[~test]), "test": (x[test], y[test])}


def read_arrays(path: Path, *, bare: str | None = None) -> dict[str, np.ndarray]:
    """The arrays of an `.npz` file, or the array of an `.npy` file; pickled arrays are not read.

    Args:
        path: The file.
        bare: Name given to the array of an `.npy` file; None: such a file is an error.
    """
    kind = ".npz" if bare is None else ".npz or .npy"
    if not path.is_file():
        raise ValueError(f"{path} must be an {kind} file, but there is no such file")
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.lib.npyio.NpzFile):
                return {name: archive[name] for name in archive.files if name in _NAMES}
            if bare is None:
                raise ValueError("it is a single array")
            return {bare: archive}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(
            f"{path} must be a whole {kind} of plain arrays, but it is damaged or holds pickled objects: {reason}; "
            f"write it again with {'np.savez' if bare is None else 'np.savez or np.save'}"
        ) from None
