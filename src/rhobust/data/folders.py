"""Image folders with one subfolder per class."""

import hashlib
import math
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from rhobust.data.content import content_keys, in_test_part
from rhobust.data.dataset import Dataset, Split
from rhobust.data.decoded import CacheWriteError, MappedImages
from rhobust.data.images import SUFFIXES, ImageHeader, decode_image, is_image, read_header
from rhobust.data.npy import check_memory
from rhobust.data.sizing import AS_STORED, Sizing
from rhobust.data.source import DatasetCheck, split_message, summarise_check, warn_missing
from rhobust.files import read_file
from rhobust.progress import ProgressCallback, ProgressEvent

_HOW = f"one subfolder per class with images in it ({' '.join(suffix[1:] for suffix in SUFFIXES)})"
_TEST_NAMES = ("test", "val")
_SPLIT_YOURSELF = "put the images into `train` and `test` folders to split them yourself"

SplitFiles = dict[Split | None, list[Path]]
"""The images of each split, and under None those of a folder without splits."""


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
        return self._load(files, split, progress, MappedImages.of(root, self.path, split, self.sizing, _all(files)))

    def _load(
        self,
        files: SplitFiles,
        split: Split,
        progress: ProgressCallback,
        cache: MappedImages | None,
    ) -> Dataset:
        classes = tuple(sorted({path.parent.name for path in files["train"] or files["test"] or files[None]}))
        for path in files["test"]:
            if path.parent.name not in classes:
                raise ValueError(f"{path.parent} must be a class of the training split too, but it is not")
        unsplit, chosen = bool(files[None]), files[None] or files[split]
        found = None if cache is None else cache.read(len(chosen))
        places, images = found or self._decode(files, split, progress, cache)
        if not places:
            raise ValueError(
                f"{self.path} must have an image for its {split} split, but it has none; {_SPLIT_YOURSELF}"
            )
        labels = [classes.index(chosen[place].parent.name) for place in places]
        if unsplit:
            progress(split_message(self.path, split, len(labels), len(chosen)))
            missing = [classes[label] for label in sorted(set(range(len(classes))) - set(labels))]
            warn_missing(self.path, split, missing, len(classes), progress)
        elif not files["train"]:
            progress(f"{self.path} is a test part: all of its {len(labels):,} images are tested")
        name = self.name + str(self.sizing)
        return Dataset(name, split, torch.from_numpy(images), torch.tensor(labels), classes)

    def _decode(
        self,
        files: SplitFiles,
        split: Split,
        progress: ProgressCallback,
        cache: MappedImages | None,
    ) -> tuple[list[int], np.ndarray]:
        """The places of the split's images among its files, and their pixels."""
        header = self._common_header(_all(files))
        shape = (header.channels, header.height, header.width)
        chosen = files[None] or files[split]
        if cache is not None:
            try:
                return cache.write(shape, self._images(chosen, shape, split, bool(files[None]), progress), progress)
            except CacheWriteError as error:
                progress(f"decoded images are not kept: {error}")
        check_memory(str(self.path), len(chosen) * math.prod(shape))
        # Pages of the tail that an unsplit folder leaves unused are never touched.
        images, places = np.empty((len(chosen), *shape), np.uint8), list[int]()
        for place, image in self._images(chosen, shape, split, bool(files[None]), progress):
            images[len(places)] = image
            places.append(place)
        return places, images[: len(places)]

    def _images(
        self, chosen: list[Path], shape: tuple[int, int, int], split: Split, unsplit: bool, progress: ProgressCallback
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Place and pixels of each image of the split; the stored pixels, before resizing, choose the split."""
        for place, path in enumerate(chosen):
            stored = decode_image(read_file(path), path, shape[0])
            if not unsplit or in_test_part(content_keys(stored[None]))[0] == (split == "test"):
                image = self.sizing.apply(stored)
                if image.shape != shape:
                    raise ValueError(f"{path} must keep its size while it is read, but it changed")
                yield place, image
            progress(ProgressEvent(f"{self.name} {split}", place + 1, len(chosen), "images"))

    def check(self, root: Path, progress: ProgressCallback) -> DatasetCheck:
        """Decode every image, whatever was decoded before."""
        files = self._files()
        train = self._load(files, "train", progress, None) if files["train"] or files[None] else None
        test = self._load(files, "test", progress, None)
        return summarise_check(test.name, self.path, len(_all(files)), train, test, test.num_classes)

    def fetch(self, root: Path, progress: ProgressCallback) -> str:
        """A user's folder cannot be downloaded."""
        raise ValueError(f"the data set to get must be a known one, got the folder {self.path}")

    def _files(self) -> SplitFiles:
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
        """Size and channels of all images after resizing and cropping."""
        first: tuple[Path, int, int] | None = None
        channels = 1
        for path in paths:
            header = read_header(path)
            try:
                found = (path, *self.sizing.size(header.height, header.width))
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from None
            first, channels = first or found, max(channels, header.channels)
            if found[1:] != first[1:]:
                after = f" after {str(self.sizing)[1:]}" if self.sizing else ""
                raise ValueError(
                    f"images under {self.path} must have one size{after}, got {_size(*first)} and {_size(*found)}; "
                    "give resize and crop"
                )
        assert first is not None  # a folder without images was refused
        return ImageHeader(channels, *first[1:])


def _all(files: SplitFiles) -> list[Path]:
    return [path for part in files.values() for path in part]


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


def _size(path: Path, height: int, width: int) -> str:
    return f"{path} of {width}x{height}"
