"""Image folders with one subfolder per class."""

import hashlib
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from rhobust.data.dataset import Dataset, DatasetCheck, Split, summarise_check
from rhobust.data.images import SUFFIXES, ImageHeader, decode_image, is_image, read_header
from rhobust.progress import ProgressCallback, ProgressEvent

_ONE_IN = 5
_HOW = f"one subfolder per class with images in it ({' '.join(suffix[1:] for suffix in SUFFIXES)})"


def hash_order(key: str) -> bytes:
    """A sorting key that shuffles names in the same way on every machine."""
    return hashlib.sha256(b"rhobust split 0\0" + unicodedata.normalize("NFC", key).encode()).digest()


def choose_test_part(keys: Iterable[str]) -> set[str]:
    """The keys of one class that form its test split: a fifth, at least one of two or more.

    The first fifth (rounded down) in hash order, so the choice depends on the keys and not on their order.
    """
    ordered = sorted(keys, key=hash_order)
    count = max(len(ordered) // _ONE_IN, 1) if len(ordered) > 1 else 0
    return set(ordered[:count])


@dataclass(frozen=True)
class ImageFolder:
    """`FOLDER/train/CLASS/*` with `FOLDER/test/CLASS/*` (or `val`), only the test folder, or `FOLDER/CLASS/*`.

    Only a test folder is for networks that were trained elsewhere. Without `train` and `test` a fifth of each class is
    the test split, chosen by the file names (`choose_test_part`). Classes are sorted by name. Images are in a shuffled
    order that depends on `CLASS/FILE` only, so the first hundred are a fair sample and folders with equal names have
    the same order. All images have one size; they are grey if all are grey, and colour otherwise. Hidden files and
    symbolic links are not read.
    """

    path: Path
    """The folder."""

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    @property
    def description(self) -> str:
        """Where it is."""
        return f"images in {self.path}"

    def locate(self, root: Path) -> Path | None:
        """The folder; the root is ignored."""
        return self.path if self.path.is_dir() else None

    def load(self, root: Path, split: Split, progress: ProgressCallback) -> Dataset:
        """One split; the headers of both are read, so that both have the same size and channels."""
        files = self._files()
        header = self._common_header([path for part in files.values() for path in part])
        classes = tuple(sorted({path.parent.name for path in files["train"] or files["test"]}))
        chosen = files[split]
        if not chosen:
            raise ValueError(f"{self.path} must have an image for its {split} split, but it has none")
        for path in files["test"]:
            if path.parent.name not in classes:
                raise ValueError(f"{path.parent} must be a class of the training split too, but it is not")
        images = np.empty((len(chosen), header.channels, header.height, header.width), np.uint8)
        for done, path in enumerate(chosen):
            images[done] = decode_image(path.read_bytes(), path, header.channels)
            progress(ProgressEvent(f"{self.name} {split}", done + 1, len(chosen), "images"))
        labels = torch.tensor([classes.index(path.parent.name) for path in chosen])
        return Dataset(self.name, split, torch.from_numpy(images), labels, classes)

    def check(self, root: Path, progress: ProgressCallback) -> DatasetCheck:
        """Decode every image."""
        files = self._files()
        train = self.load(root, "train", progress) if files["train"] else None
        test = self.load(root, "test", progress)
        return summarise_check(self.name, self.path, sum(map(len, files.values())), train, test, test.num_classes)

    def fetch(self, root: Path, progress: ProgressCallback) -> str:
        """A user's folder cannot be downloaded."""
        raise ValueError(f"the data set to get must be a known one, got the folder {self.path}")

    def _files(self) -> dict[Split, list[Path]]:
        if not self.path.is_dir():
            raise ValueError(f"{self.path} must be a folder with {_HOW}, but there is no such folder")
        test = next((self.path / name for name in ("test", "val") if (self.path / name).is_dir()), None)
        if test is not None and (self.path / "train").is_dir():
            return {"train": _images_under(self.path / "train"), "test": _images_under(test)}
        if test is not None and _groups(self.path) == [test]:
            return {"train": [], "test": _images_under(test)}
        everything = _images_under(self.path)
        by_class = defaultdict(list)
        for path in everything:
            by_class[path.parent.name].append(path.name)
        test_part = {(folder, name) for folder, names in by_class.items() for name in choose_test_part(names)}
        return {
            "train": [path for path in everything if (path.parent.name, path.name) not in test_part],
            "test": [path for path in everything if (path.parent.name, path.name) in test_part],
        }

    def _common_header(self, paths: list[Path]) -> ImageHeader:
        first, *rest = ((path, read_header(path)) for path in paths)
        for path, header in rest:
            if (header.height, header.width) != (first[1].height, first[1].width):
                raise ValueError(
                    f"images under {self.path} must have one size, got {_size(*first)} and {_size(path, header)}; "
                    "resize or crop them to one size first"
                )
        channels = max(first[1].channels, *(header.channels for _, header in rest), 1)
        return ImageHeader(channels, first[1].height, first[1].width)


def _groups(folder: Path) -> list[Path]:
    """The subfolders without hidden ones and symbolic links."""
    return [
        group
        for group in folder.iterdir()
        if not group.name.startswith((".", "__")) and not group.is_symlink() and group.is_dir()
    ]


def _images_under(folder: Path) -> list[Path]:
    """All images of the class folders, in hash order; raises if a class has no image."""
    found = []
    for group in _groups(folder):
        images = [path for path in group.iterdir() if is_image(path)]
        if not images:
            raise ValueError(
                f"{group} must hold images ({' '.join(suffix[1:] for suffix in SUFFIXES)}), but it has none; "
                "hidden files and symbolic links are not read, and `train` needs a `test` or `val` next to it"
            )
        found += images
    if not found:
        raise ValueError(f"{folder} must hold {_HOW}, but it has none")
    return sorted(found, key=lambda path: hash_order(f"{path.parent.name}/{path.name}"))


def _size(path: Path, header: ImageHeader) -> str:
    return f"{path} of {header.width}x{header.height}"
