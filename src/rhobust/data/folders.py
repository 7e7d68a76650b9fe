"""Image folders with one subfolder per class."""

import hashlib
import math
import unicodedata
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from rhobust.data.content import content_keys, in_test_part
from rhobust.data.dataset import Dataset, Split
from rhobust.data.images import SUFFIXES, ImageHeader, decode_image, is_image, read_header
from rhobust.data.npy import check_memory
from rhobust.data.source import DatasetCheck, split_message, summarise_check, warn_missing
from rhobust.files import read_file
from rhobust.progress import ProgressCallback, ProgressEvent

_HOW = f"one subfolder per class with images in it ({' '.join(suffix[1:] for suffix in SUFFIXES)})"
_TEST_NAMES = ("test", "val")
_SPLIT_YOURSELF = "put the images into `train` and `test` folders to split them yourself"


def hash_order(key: str) -> bytes:
    """A sorting key that shuffles names in the same way on every machine."""
    name = unicodedata.normalize("NFC", key).encode(errors="surrogateescape")
    return hashlib.sha256(b"rhobust split 0\0" + name).digest()


@dataclass(frozen=True)
class ImageFolder:
    """`FOLDER/train/CLASS/*` with `FOLDER/test/CLASS/*` (or `val`), only the test folder, or `FOLDER/CLASS/*`.

    Only a test folder, or a folder that is itself called `test` or `val`, is for networks that were trained elsewhere:
    all of it is tested. Other folders without `train` and `test` are split: about a fifth of the images is the test
    split, chosen by the decoded pixels of each image alone (`in_test_part`). Classes are sorted by name. Images are in
    a shuffled order that depends on `CLASS/FILE` only, so the first hundred are a fair sample and folders with equal
    names have the same order. All images have one size; they are grey if all are grey, and colour otherwise. Hidden
    files and symbolic links are not read.
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
        """One split; the headers of both are read, so that both have the same size and channels.

        Messages say that a test folder is tested whole, or how a folder without one was split, and which classes have
        no image in the split.
        """
        files = self._files()
        header = self._common_header([path for part in files.values() for path in part])
        classes = tuple(sorted({path.parent.name for path in files["train"] or files["test"] or files[None]}))
        for path in files["test"]:
            if path.parent.name not in classes:
                raise ValueError(f"{path.parent} must be a class of the training split too, but it is not")
        unsplit, chosen = bool(files[None]), files[None] or files[split]
        shape = (header.channels, header.height, header.width)
        check_memory(str(self.path), len(chosen) * math.prod(shape))
        # Pages of the tail that an unsplit folder leaves unused are never touched.
        images, labels = np.empty((len(chosen), *shape), np.uint8), list[int]()
        for done, path in enumerate(chosen):
            image = decode_image(read_file(path), path, header.channels)
            if image.shape != shape:
                raise ValueError(f"{path} must keep its size while it is read, but it changed")
            if not unsplit or in_test_part(content_keys(image[None]))[0] == (split == "test"):
                images[len(labels)] = image
                labels.append(classes.index(path.parent.name))
            progress(ProgressEvent(f"{self.name} {split}", done + 1, len(chosen), "images"))
        if not labels:
            raise ValueError(
                f"{self.path} must have an image for its {split} split, but it has none; {_SPLIT_YOURSELF}"
            )
        if unsplit:
            progress(split_message(self.path, split, len(labels), len(chosen)))
            missing = [classes[label] for label in sorted(set(range(len(classes))) - set(labels))]
            warn_missing(self.path, split, missing, len(classes), progress)
        elif not files["train"]:
            progress(f"{self.path} is a test part: all of its {len(labels):,} images are tested")
        return Dataset(self.name, split, torch.from_numpy(images[: len(labels)]), torch.tensor(labels), classes)

    def check(self, root: Path, progress: ProgressCallback) -> DatasetCheck:
        """Decode every image."""
        files = self._files()
        train = self.load(root, "train", progress) if files["train"] or files[None] else None
        test = self.load(root, "test", progress)
        return summarise_check(self.name, self.path, sum(map(len, files.values())), train, test, test.num_classes)

    def fetch(self, root: Path, progress: ProgressCallback) -> str:
        """A user's folder cannot be downloaded."""
        raise ValueError(f"the data set to get must be a known one, got the folder {self.path}")

    def _files(self) -> dict[Split | None, list[Path]]:
        """The images of each split, and under None those of a folder without splits."""
        if not self.path.is_dir():
            raise ValueError(f"{self.path} must be a folder with {_HOW}, but there is no such folder")
        test = next((self.path / name for name in _TEST_NAMES if (self.path / name).is_dir()), None)
        if test is not None and (self.path / "train").is_dir():
            return {"train": _images_under(self.path / "train"), "test": _images_under(test), None: []}
        if test is not None and _groups(self.path) == [test]:
            return {"train": [], "test": _images_under(test), None: []}
        if self.name in _TEST_NAMES:
            return {"train": [], "test": _images_under(self.path), None: []}
        return {"train": [], "test": [], None: _images_under(self.path)}

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
