"""Arrays of `.npz` and `.npy` files, and data sets of them.

Sizes are checked before anything is unpacked, and pickles are never read.
"""

import io
import math
import os
import struct
import zipfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import torch

from rhobust.data.dataset import Dataset, Split
from rhobust.data.labels import MOST_CLASSES, class_names
from rhobust.data.source import DatasetCheck, content_keys, in_test_part, split_message, summarise_check, warn_missing
from rhobust.files import open_regular
from rhobust.progress import ProgressCallback

_ZIP_MAGIC = (b"PK\x03\x04", b"PK\x05\x06")
_MOST_HEADER = 10_000
"""Largest header of an array in bytes, numpy's own limit."""
_LONGEST = 300
"""Characters of an error that are shown: numpy's quote the whole header."""
_KINDS = "biufU"
"""Kinds of numpy's types that are read: numbers, and names of classes."""
_PARTS: dict[str, tuple[tuple[str, str], ...]] = {
    "train": (("x", "y"), ("x_train", "y_train"), ("train_images", "train_labels")),
    "test": (("x_test", "y_test"), ("test_images", "test_labels")),
}
"""Names of the images and the labels of each part: ours, those of Keras, those of MedMNIST."""
_NAMES = tuple(name for pairs in _PARTS.values() for pair in pairs for name in pair)
_CLASSES = "classes"


def check_memory(name: str, size: int) -> None:
    """Raise a one-line ValueError if so many bytes take more than half of the memory: splitting makes a copy.

    Args:
        name: What takes them, for the message.
        size: Number of bytes.
    """
    try:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not every platform says
        return
    if 2 * size > there:
        raise ValueError(
            f"{name} must fit into half of the memory, but takes {size / 2**30:,.1f} GiB of {there / 2**30:,.1f}"
        )


def read_arrays(path: Path, names: Collection[str], *, bare: str | None = None) -> dict[str, np.ndarray]:
    """The arrays of an `.npz` file, or the array of an `.npy` file.

    The size that a header promises is compared with the bytes that are there before memory is taken. Encrypted
    archives, other compressions than numpy's, and pickled objects are refused.

    Args:
        path: The file.
        names: Arrays to read; others are left out.
        bare: Name given to the array of an `.npy` file; None: such a file is an error.
    """
    kind = ".npz" if bare is None else ".npz or .npy"
    if not path.is_file():
        found = "it is no regular file" if path.exists() else "there is no such file"
        raise ValueError(f"{path} must be an {kind} file, but {found}")
    try:
        with open_regular(path) as file:
            start = file.read(4)
            file.seek(0)
            if start in _ZIP_MAGIC:
                return _read_zip(file, names)
            if bare is None:
                raise ValueError("it is no archive of arrays")
            return {bare: _read_array(file, path.stat().st_size, bare)}
    except Exception as error:  # an archive can be wrong in every way
        reason = " ".join(str(error).split())[:_LONGEST] or type(error).__name__
        raise ValueError(
            f"{path} must be a whole {kind} of plain arrays, but it is damaged or holds something else: {reason}; "
            f"write it again with {'np.savez' if bare is None else 'np.savez or np.save'}"
        ) from None


def _read_zip(file: IO[bytes], names: Collection[str]) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if name not in names:
                continue
            if name in arrays:
                raise ValueError(f"it holds two arrays {name}")
            if info.flag_bits & 1:
                raise ValueError(f"{name} is encrypted")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(f"{name} is compressed by method {info.compress_type}, which numpy does not write")
            with archive.open(info) as member:
                arrays[name] = _read_array(member, info.file_size, name)
    return arrays


def _read_array(file: IO[bytes], size: int, name: str) -> np.ndarray:
    """The array of an open `.npy` file of this size."""
    version = np.lib.format.read_magic(file)
    layout = {(1, 0): "<H", (2, 0): "<I"}.get(version)
    if layout is None:
        raise ValueError(f"{name} has version {version[0]}.{version[1]} of the format, only 1.0 and 2.0 are read")
    prefix = file.read(struct.calcsize(layout))
    (length,) = struct.unpack(layout, prefix)
    if length > _MOST_HEADER:
        raise ValueError(f"the header of {name} has {length:,} bytes, at most {_MOST_HEADER:,} are read")
    header = io.BytesIO(prefix + file.read(length))
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_column, dtype = read_header(header)
    if dtype.hasobject:
        raise ValueError(f"{name} holds pickled objects")
    if dtype.kind not in _KINDS or not dtype.itemsize or dtype.shape:
        raise ValueError(f"{name} must hold numbers, got the type {dtype}")
    if any(side < 0 for side in shape):
        raise ValueError(f"{name} must have sides >= 0, got {shape}")
    promised, there = math.prod(shape) * dtype.itemsize, size - len(np.lib.format.magic(*version)) - header.tell()
    if promised != there:
        raise ValueError(f"the header of {name} promises {promised:,} bytes, but {there:,} are there")
    check_memory(name, promised)
    flat = np.empty(math.prod(shape), dtype)
    rest = flat.view(np.uint8).data if flat.size else memoryview(b"")
    while rest:
        done = file.readinto(rest)  # type: ignore[attr-defined]
        if not done:
            raise EOFError(f"{name} is cut off")
        rest = rest[done:]
    if file.read(1):  # at its end an archive compares the checksum
        raise ValueError(f"{name} is longer than its header promises")
    return flat.reshape(shape[::-1]).transpose() if by_column else flat.reshape(shape)


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
        """One split; all arrays are read, so that both splits have the same classes.

        Messages say how a file without a test part was split, which classes have no image in the split, and that no
        image has label 0: labels count from 0.
        """
        arrays = read_arrays(self.path, (*_NAMES, _CLASSES))
        named = {part: self._names(arrays, part) for part in _PARTS}
        if not any(named.values()):
            named["train"] = _PARTS["train"][0]
        parts = {part: self._part(arrays, *names) for part, names in named.items() if names}
        if len(parts) == 2 and parts["test"][0].shape[1:] != parts["train"][0].shape[1:]:
            raise ValueError(
                f"the test images in {self.path} must have the shape of its training images, "
                f"{parts['train'][0].shape[1:]} (channels, height, width), got {parts['test'][0].shape[1:]}"
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
        images, labels = torch.from_numpy(images), torch.from_numpy(labels)
        return Dataset(self.name, split, images, labels, classes, named=_CLASSES in arrays)

    def check(self, root: Path, progress: ProgressCallback) -> DatasetCheck:
        """Read every array."""
        trainable = self._names(read_arrays(self.path, _NAMES), "train")
        train = self.load(root, "train", progress) if trainable else None
        test = self.load(root, "test", progress)
        return summarise_check(self.name, self.path, 1, train, test, test.num_classes)

    def fetch(self, root: Path, progress: ProgressCallback) -> str:
        """A user's file cannot be downloaded."""
        raise ValueError(f"the data set to get must be a known one, got the file {self.path}")

    def _names(self, arrays: dict[str, np.ndarray], part: str) -> tuple[str, str] | None:
        """What the file calls the images and labels of a part; None: it has no such part."""
        found = [pair for pair in _PARTS[part] if not arrays.keys().isdisjoint(pair)]
        if len(found) > 1:
            raise ValueError(f"{self.path} must hold one {part} part, got {' and '.join(pair[0] for pair in found)}")
        return found[0] if found else None

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
        y: The labels, also in one column.
        count: Number of images.
        name: Name of the labels, for messages.
    """
    if y.dtype.kind not in "iu" or y.shape not in ((count,), (count, 1)) or not len(y):
        raise ValueError(f"{name} must be integers, one per image, got {y.dtype} {y.shape} for {count} images")
    y = y.reshape(count)
    if int(y.min()) < 0 or int(y.max()) >= MOST_CLASSES:
        raise ValueError(f"{name} must be labels 0, 1, 2, ..., got {y.min()}..{y.max()}")
    return y.astype(np.int64)


def _divide(x: np.ndarray, y: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    test = in_test_part(content_keys(x))
    return {"train": (x[~test], y[~test]), "test": (x[test], y[test])}
