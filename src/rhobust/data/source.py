"""Where data sets come from: what every source can do, how data is split, and images by their content."""

import hashlib
import os
import struct
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from torch import Tensor

from rhobust.data.dataset import Dataset, Split
from rhobust.files import read_file
from rhobust.progress import ProgressCallback

_ONE_IN = 5
_CHUNK = 4096
_MAGIC = b"rho-img1"
_HEADER = struct.Struct(">8sQQ32s")
"""Magic, number of images, number of different ones, SHA-256 of both numbers and of the keys."""
TRAINING_IMAGES = "training-images.bin"
"""File that lists the images a network was trained on, those of its validation too, in the folder of its weights."""
HELD_OUT_IMAGES = "held-out-images.bin"
"""File that lists those of its validation alone."""


def content_keys(images: Tensor | np.ndarray) -> np.ndarray:
    """The key of each image, uint64: the first eight bytes of the SHA-256 of its shape and its pixels.

    Equal pixels, equal key, whatever the file's name, format or place. A grey image has the key of its colour version
    with three equal channels, so that a colour image among grey ones changes no key. Two different images of a million
    share a key with probability below 1e-7.
    """
    keys = np.empty(len(images), np.uint64)
    for start in range(0, len(images), _CHUNK):
        chunk = images[start : start + _CHUNK]
        pixels = np.ascontiguousarray(chunk.cpu().numpy() if isinstance(chunk, Tensor) else chunk)
        grey = (pixels == pixels[:, :1]).all(axis=(1, 2, 3))
        shape = f"{pixels.shape[2]}x{pixels.shape[3]} ".encode()
        for place, image in enumerate(pixels):
            digest = hashlib.sha256(shape)
            digest.update(image[0].data if grey[place] else image.data)
            keys[start + place] = int.from_bytes(digest.digest()[:8], "big")
    return keys


def hash_order(key: str) -> bytes:
    """A sorting key that shuffles names in the same way on every machine."""
    name = unicodedata.normalize("NFC", key).encode(errors="surrogateescape")
    return hashlib.sha256(b"rhobust split 0\0" + name).digest()


def in_test_part(keys: np.ndarray) -> np.ndarray:
    """Which images of data without a test part form it: a fifth of all keys, whatever other images there are.

    Guarantee: the answer for an image depends on its pixels alone. Adding, removing, renaming or reordering images
    moves no other image between the parts, and equal images are in the same part.
    """
    return keys < np.uint64(2**64 // _ONE_IN)


@dataclass(frozen=True, eq=False)
class ImageSet:
    """The images that a network was trained on, by their keys; the images themselves are not in it."""

    keys: np.ndarray
    """uint64, increasing, one per different image."""
    count: int
    """Number of images, repeated ones too."""

    @classmethod
    def of(cls, images: Tensor) -> "ImageSet":
        """The set of some images, uint8 (n, channels, height, width)."""
        keys = content_keys(images)
        return cls(np.unique(keys), len(keys))

    def contains(self, images: Tensor) -> np.ndarray:
        """Which of these images, uint8 (n, channels, height, width), are in the set; changed copies are not."""
        return np.isin(content_keys(images), self.keys)

    def to_bytes(self) -> bytes:
        """The content of its file."""
        body = self.keys.astype(">u8").tobytes()
        return _HEADER.pack(_MAGIC, self.count, len(self.keys), _digest(self.count, len(self.keys), body)) + body

    @classmethod
    def in_folder(cls, folder: Path, name: str = TRAINING_IMAGES) -> "ImageSet | None":
        """The training images of the network whose weights are in a folder; None where there is no list of them."""
        path = folder / name
        return cls.read(path) if path.exists() else None

    @classmethod
    def read(cls, path: Path) -> "ImageSet":
        """Read its file; raises a one-line ValueError unless it is whole and as it was written."""
        content = read_file(path, own=True)
        magic, count, distinct, digest = (
            _HEADER.unpack_from(content) if len(content) >= _HEADER.size else (b"", 0, 0, b"")
        )
        body = content[_HEADER.size :]
        whole = magic == _MAGIC and 8 * distinct == len(body) and 1 <= distinct <= count
        keys = np.frombuffer(body, ">u8").astype(np.uint64) if whole else np.empty(0, np.uint64)
        if not whole or digest != _digest(count, distinct, body) or not (keys[1:] > keys[:-1]).all():
            raise ValueError(f"{path} must list the training images as it was written, but it is damaged or changed")
        return cls(keys, count)


def _digest(count: int, distinct: int, body: bytes) -> bytes:
    return hashlib.sha256(struct.pack(">QQ", count, distinct) + body).digest()


@dataclass(frozen=True)
class DatasetCheck:
    """Result of the verification of every file of a data set."""

    name: str
    """The data set's name."""
    where: Path
    """Its folder or file."""
    files: int
    """Number of verified files."""
    train: int
    """Number of training images."""
    test: int
    """Number of test images."""
    classes: int
    """Number of classes found."""
    published_classes: int
    """Number of classes of the published data set; more than `classes` if only a part of it is present."""
    shape: tuple[int, int, int]
    """Channels, height and width of an image."""
    repeated: int
    """Number of test images that are training images too, pixel by pixel."""


def split_message(path: Path, split: Split, chosen: int, images: int) -> str:
    """How data without a test part is split, in one line."""
    return (
        f"{path} has no test part: the {split} split is {chosen:,} of its {images:,} images, chosen by the pixels of "
        "each image alone"
    )


def warn_missing(path: Path, split: Split, missing: Sequence[str], classes: int, progress: ProgressCallback) -> None:
    """Say in one line which classes have no image in a split."""
    if missing:
        shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        part = "training" if split == "train" else "test"
        progress(f"warning: {path} has no {part} image of {len(missing)} of its {classes} classes ({shown})")


class DatasetSource(Protocol):
    """A data set, possibly stored under a root folder."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def description(self) -> str:
        """One line for a list."""
        ...

    def locate(self, root: Path) -> Path | None:
        """Its path under the root, or None if a file is missing; nothing is read."""
        ...

    def load(self, root: Path, split: Split, progress: ProgressCallback) -> Dataset:
        """One split, its files verified first; raises a one-line ValueError if one is damaged or missing."""
        ...

    def check(self, root: Path, progress: ProgressCallback) -> DatasetCheck:
        """Verify every file; raises a one-line ValueError if one is damaged or missing."""
        ...

    def fetch(self, root: Path, progress: ProgressCallback) -> str:
        """Download missing files under the root and return their origin; a damaged one is refused, not replaced."""
        ...


def summarise_check(
    name: str, where: Path, files: int, train: Dataset | None, test: Dataset, published: int
) -> DatasetCheck:
    """The result of a verification from the verified splits; train is None without training images."""
    return DatasetCheck(
        name,
        where,
        files,
        0 if train is None else len(train),
        len(test),
        test.num_classes,
        published_classes=published,
        shape=test.shape,
        repeated=0 if train is None else int(ImageSet.of(train.images).contains(test.images).sum()),
    )


def check_splits(source: DatasetSource, root: Path, files: int, progress: ProgressCallback) -> DatasetCheck:
    """The result of a verification of a whole data set, whose loading verifies its files."""
    train, test = source.load(root, "train", progress), source.load(root, "test", progress)
    return summarise_check(source.name, source.locate(root) or root, files, train, test, train.num_classes)


def fetch_command(name: str, root: Path) -> str:
    """The command that downloads a data set, for messages."""
    return f"`rhobust data get {name} --root {root}`"


def data_root(root: Path | str | None) -> Path:
    """The folder of the data sets: `root` if given, else $RHOBUST_DATA, else the platform's cache folder."""
    if root is not None:
        return Path(root).expanduser()
    if named := os.environ.get("RHOBUST_DATA"):
        return Path(named).expanduser()
    import platformdirs

    return platformdirs.user_cache_path("rhobust") / "data"
