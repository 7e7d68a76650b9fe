"""Image folders with one subfolder per class."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from rhobust.data.dataset import Dataset, Split
from rhobust.data.decoded import MappedImages, Shape, decode_once
from rhobust.data.images import SUFFIXES, is_image, read_header
from rhobust.data.sizing import AS_STORED, Sizing, common_shape, decode_sized, in_order
from rhobust.data.source import DatasetCheck, content_keys, hash_order, split_message, warn_missing
from rhobust.files import read_file
from rhobust.progress import ProgressCallback, ProgressEvent

_HOW = f"one subfolder per class with images in it ({' '.join(suffix[1:] for suffix in SUFFIXES)})"
_TEST_NAMES = ("test", "val")
_SPLIT_YOURSELF = "put the images into `train` and `test` folders to split them yourself"

SplitFiles = dict[Split | None, list[Path]]
"""The images of each split, and under None those of a folder without splits."""


@dataclass(frozen=True)
class ImageFolder:
    """`FOLDER/train/CLASS/*` with `FOLDER/test/CLASS/*` (or `val`), only the test folder, or `FOLDER/CLASS/*`.

    Only a test folder, or a folder that is itself called `test` or `val`, is for networks that were trained elsewhere:
    all of it is tested. Other folders without `train` and `test` are split: about a fifth of the images is the test
    split, chosen by the decoded pixels of each image alone (`in_test_part`). Classes are sorted by name. Images are in
    a shuffled order that depends on `CLASS/FILE` only, so the first hundred are a fair sample and folders with equal
    names have the same order. All images have one size, their own or after `sizing`; they are grey if all are grey, and
    colour otherwise. Hidden files and symbolic links are not read. The images of a large folder are decoded once, into
    a file under the root that later calls map into memory (`MappedImages`).
    """

    path: Path
    """The folder."""
    sizing: Sizing = AS_STORED
    """How images are resized and cropped."""

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
        classes, chosen = self._classes(files), files[None] or files[split]
        cache = MappedImages.of(root, self.path, split, self.sizing, _all(files))
        found = decode_once(
            cache,
            lambda: self._shape(files),
            lambda shape: self._images(files, split, shape, progress),
            len(chosen),
            str(self.path),
            progress,
        )
        labels = self._labels(files, split, found.places, classes, progress)
        name = self.name + str(self.sizing)
        return Dataset(name, split, found.images, torch.tensor(labels), classes, origin=found.origin)

    def check(self, root: Path, progress: ProgressCallback) -> DatasetCheck:
        """Decode every image, whatever was decoded before; one image is in memory at a time."""
        files, keys = self._files(), dict[Split, np.ndarray]()
        classes, shape = self._classes(files), self._shape(files)
        splits: tuple[Split, ...] = ("train", "test") if files["train"] or files[None] else ("test",)
        for split in splits:
            found = [(place, content_keys(image[None])) for place, image in self._images(files, split, shape, progress)]
            self._labels(files, split, [place for place, _ in found], classes, progress)
            keys[split] = np.concatenate([key for _, key in found])
        train = keys.get("train", np.empty(0, np.uint64))
        return DatasetCheck(
            self.name + str(self.sizing),
            self.path,
            len(_all(files)),
            len(train),
            len(keys["test"]),
            len(classes),
            len(classes),
            shape,
            int(np.isin(keys["test"], train).sum()),
        )

    def _classes(self, files: SplitFiles) -> tuple[str, ...]:
        if files["train"] or files[None]:
            classes = tuple(sorted({path.parent.name for path in files["train"] or files[None]}))
        else:
            classes = tuple(sorted(group.name for group in _groups(files["test"][0].parent.parent)))
        for path in files["test"]:
            if path.parent.name not in classes:
                raise ValueError(f"{path.parent} must be a class of the training split too, but it is not")
        return classes

    def _labels(
        self, files: SplitFiles, split: Split, places: list[int], classes: tuple[str, ...], progress: ProgressCallback
    ) -> list[int]:
        """The labels of the split's images; messages say how it came about."""
        if not places:
            raise ValueError(
                f"{self.path} must have an image for its {split} split, but it has none; {_SPLIT_YOURSELF}"
            )
        chosen, numbers = files[None] or files[split], {name: number for number, name in enumerate(classes)}
        labels = [numbers[chosen[place].parent.name] for place in places]
        if files[None]:
            progress(split_message(self.path, split, len(labels), len(chosen)))
        elif not files["train"]:
            progress(f"{self.path} is a test part: all of its {len(labels):,} images are tested")
        missing = [classes[label] for label in sorted(set(range(len(classes))) - set(labels))]
        warn_missing(self.path, split, missing, len(classes), progress)
        return labels

    def _images(
        self, files: SplitFiles, split: Split, shape: Shape, progress: ProgressCallback
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Place and pixels of each image of the split; the stored pixels, before resizing, choose the split."""
        chosen, part = files[None] or files[split], split if files[None] else None

        def decode(path: Path) -> np.ndarray | None:
            return decode_sized(read_file(path), path, shape, self.sizing, part)

        for place, image in enumerate(in_order(decode, chosen)):
            if image is not None:
                yield place, image
            progress(ProgressEvent(f"{self.name} {split}", place + 1, len(chosen), "images"))

    def fetch(self, root: Path, progress: ProgressCallback) -> str:
        """A user's folder cannot be downloaded."""
        raise ValueError(f"the data set to get must be a known one, got the folder {self.path}")

    def _files(self) -> SplitFiles:
        """The images of each split, and under None those of a folder without splits."""
        if not self.path.is_dir():
            raise ValueError(f"{self.path} must be a folder with {_HOW}, but there is no such folder")
        if (self.path / "val" / "val_annotations.txt").is_file():
            raise ValueError(
                f"{self.path} must hold {_HOW}, but it has the layout of Tiny ImageNet: name the data set"
                f" tiny-imagenet, with the root {self.path.parent}, or move the images of each class into one folder"
            )
        test = next((self.path / name for name in _TEST_NAMES if (self.path / name).is_dir()), None)
        if test is not None and (self.path / "train").is_dir():
            found = _images_under(test, empty=True)
            return {"train": _images_under(self.path / "train"), "test": found, None: []}
        if test is not None and _groups(self.path) == [test]:
            return {"train": [], "test": _images_under(test, empty=True), None: []}
        if self.name in _TEST_NAMES:
            return {"train": [], "test": _images_under(self.path, empty=True), None: []}
        return {"train": [], "test": [], None: _images_under(self.path)}

    def _shape(self, files: SplitFiles) -> Shape:
        """Channels, height and width of all images after resizing and cropping."""
        return common_shape(((path, read_header(path)) for path in _all(files)), self.sizing, f"under {self.path}")


def _all(files: SplitFiles) -> list[Path]:
    return [path for part in files.values() for path in part]


def _groups(folder: Path) -> list[Path]:
    """The subfolders without hidden ones and symbolic links."""
    return [
        group
        for group in folder.iterdir()
        if not group.name.startswith((".", "__")) and not group.is_symlink() and group.is_dir()
    ]


def _images_under(folder: Path, *, empty: bool = False) -> list[Path]:
    """All images of the class folders, in hash order; raises if a class has none, unless empty folders are allowed."""
    found = []
    for group in _groups(folder):
        images = [path for path in group.iterdir() if is_image(path)]
        if not images and not (empty and all(path.name.startswith(".") for path in group.iterdir())):
            raise ValueError(
                f"{group} must hold images ({' '.join(suffix[1:] for suffix in SUFFIXES)}), but it has none; "
                "hidden files and symbolic links are not read, and `train` needs a `test` or `val` next to it"
            )
        found += images
    if not found:
        flat = any(is_image(path) for path in folder.iterdir())
        how = "; its images are in one flat folder: move each into the folder of its class" if flat else ""
        raise ValueError(f"{folder} must hold {_HOW}, but it has none{how}")
    return sorted(found, key=lambda path: hash_order(f"{path.parent.name}/{path.name}"))
