"""Tiny ImageNet: 64x64 photographs of 200 ImageNet classes (Stanford CS231n 2015), unpacked or in its zip archive."""

import os
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch

from rhobust.data.dataset import Dataset, Split
from rhobust.data.decoded import MappedImages, decode_once
from rhobust.data.download import download, verify_file
from rhobust.data.images import decode_image
from rhobust.data.sizing import AS_STORED
from rhobust.data.source import DatasetCheck, fetch_command, summarise_check
from rhobust.files import read_file, read_json, write_json
from rhobust.progress import ProgressCallback, ProgressEvent

PUBLISHED = 200
"""Classes of the published data set."""
_FOLDER = "tiny-imagenet-200"
_SIDE = 64
# The published test images have no labels.
_EXCLUDED = ("test",)
_MOST_BYTES = 1 << 28
"""Largest size of a file in an archive after unpacking."""
_DEEPEST = 8
"""Levels of folders that are searched."""
_TRAIN_IMAGE = re.compile(r"train/([^/]+)/images/[^/]+\.jpe?g", re.IGNORECASE)


class FolderTree:
    """A folder, without the excluded subfolders."""

    def __init__(self, path: Path, exclude: Sequence[str] = ()) -> None:
        self.path = path
        self.stamps = dict(sorted(self._walk(path, "", exclude)))

    def _walk(self, folder: Path, prefix: str, exclude: Sequence[str]) -> list[tuple[str, str]]:
        found = []
        if prefix.count("/") > _DEEPEST:
            raise ValueError(
                f"{folder} must be at most {_DEEPEST} levels below {self.path}, but it is deeper; remove it"
            )
        with os.scandir(folder) as entries:
            for entry in entries:
                name = prefix + entry.name
                if entry.name.startswith(".") or name in exclude:
                    continue
                if entry.is_dir():
                    found += self._walk(Path(entry.path), f"{name}/", exclude)
                elif entry.is_file():
                    status = entry.stat()
                    found.append((name, f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"))
        return found

    def read(self, name: str) -> bytes:
        """The whole file."""
        try:
            return read_file(self.path / name)
        except OSError as error:
            raise ValueError(f"{self.path / name} must be readable, but it is not: {error.strerror}") from None


class ZipTree:
    """A folder inside a zip archive; nothing is unpacked, and each file's checksum is verified when it is read."""

    def __init__(self, path: Path, folder: str, exclude: Sequence[str] = ()) -> None:
        self.path = path
        self._prefix = f"{folder}/"
        try:
            self._zip = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path} must be a whole zip archive, but it is damaged: {error}; delete it") from None
        self.stamps = {
            info.filename.removeprefix(self._prefix): f"{info.file_size} {info.CRC:08x}"
            for info in sorted(self._zip.infolist(), key=lambda info: info.filename)
            if info.filename.startswith(self._prefix)
            and not info.is_dir()
            and not info.filename.startswith(tuple(f"{self._prefix}{name}/" for name in exclude))
        }

    def read(self, name: str) -> bytes:
        """The whole file; an encrypted one, one in an unknown compression and one that is too large are refused."""
        try:
            if (size := self._zip.getinfo(self._prefix + name).file_size) > _MOST_BYTES:
                raise ValueError(f"it has {size:,} bytes, at most {_MOST_BYTES:,} are unpacked")
            return self._zip.read(self._prefix + name)
        except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, RuntimeError, MemoryError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"{self.path} must be whole, but {name} in it is damaged: {reason}; delete it") from None


Tree: TypeAlias = FolderTree | ZipTree
"""The files of the data set: `stamps` has each file's name and a stamp that changes with the file."""


class FirstContents:
    """Size and checksum of each file when it was first decoded: a file that has changed since then is refused.

    There are no published digests of single files.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known = self._read()
        self._found: dict[str, str] = {}

    def _read(self) -> dict[str, str]:
        if not self.path.is_file():
            return {}
        try:
            description = read_json(self.path)
        except ValueError as error:
            raise ValueError(f"{error}; delete it") from None
        known = description.get("files", {}) if isinstance(description, dict) else None
        if not isinstance(known, dict):
            raise ValueError(f"{self.path} must describe decoded images, but it is damaged; delete it")
        return known

    def check(self, name: str, content: bytes, path: Path) -> None:
        """Refuse a file that is known with other contents; `path` is what the message calls it."""
        found = f"{len(content)} {zlib.crc32(content):08x}"
        if self._known.get(name, found) != found:
            raise ValueError(
                f"{path} must have the contents it was first decoded with, but they changed: "
                f"restore it, or delete {self.path} to accept it"
            )
        self._found[name] = found

    def keep(self, progress: ProgressCallback) -> None:
        """Write down those that were checked, once all files are decoded; nothing where none was."""
        if self._found in ({}, self._known):
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.path, {"files": self._found})
        except OSError as error:
            progress(f"checksums of the images are not cached: {self.path} cannot be written ({error.strerror})")


@dataclass(frozen=True)
class TinyImageNet:
    """Tiny ImageNet in `ROOT/tiny-imagenet-200` or `ROOT/tiny-imagenet-200.zip`, with any number of its classes.

    A class is a folder under `train`; the test split is the published validation split with its annotations.
    `TinyImageNet(first=50)` is a separate data set, `tiny-imagenet-50`: the first 50 classes in the order of
    `wnids.txt`, regardless of other classes in the folder.
    Images are decoded once, into a file under the root that later calls map into memory (`MappedImages`). There are no
    published digests of single files, so the first decoding stores a checksum of each in `ROOT/tiny-imagenet-decoded`,
    and a later change of a file is an error.
    """

    addresses: tuple[str, ...] = (
        "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        "https://cs231n.stanford.edu/tiny-imagenet-200.zip",
    )
    """URLs of the archive."""
    archive_digest: str = "md5:90528d7ca1a48142e341f4ef8d21d0de"
    """Digest of the archive."""
    first: int | None = None
    """Number of classes, in the order of `wnids.txt`; None: all classes in the folder."""

    @property
    def name(self) -> str:
        """The name; includes the number of classes if they were chosen."""
        return "tiny-imagenet" if self.first is None else f"tiny-imagenet-{self.first}"

    @property
    def description(self) -> str:
        """The published numbers; 500 and 50 images per class."""
        classes = PUBLISHED if self.first is None else self.first
        part = "" if self.first is None else f"the first of {PUBLISHED}, "
        return f"{500 * classes:,} + {50 * classes:,} photographs, colour 64x64, {classes} classes ({part}248 MB)"

    def locate(self, root: Path) -> Path | None:
        """The folder, else the archive."""
        if (root / _FOLDER / "train").is_dir():
            return root / _FOLDER
        archive = root / f"{_FOLDER}.zip"
        return archive if archive.is_file() else None

    def load(self, root: Path, split: Split, progress: ProgressCallback) -> Dataset:
        """One split, from the cache of decoded images if it is valid."""
        return self._dataset(self._tree(root), root, split, progress, again=False)

    def check(self, root: Path, progress: ProgressCallback) -> DatasetCheck:
        """Decode every image and compare its checksum with the first decoding; an archive's digest is verified too."""
        tree = self._tree(root)
        if isinstance(tree, ZipTree):
            self._verify_archive(tree.path)
        train, test = (self._dataset(tree, root, split, progress, again=True) for split in ("train", "test"))
        return summarise_check(
            self.name, tree.path, len(train) + len(test), train, test, published=self.first or PUBLISHED
        )

    def fetch(self, root: Path, progress: ProgressCallback) -> str:
        """Download the archive; it is read without unpacking."""
        where = self.locate(root)
        if where is not None:
            if where.is_file():
                self._verify_archive(where)
            return "already there"
        root.mkdir(parents=True, exist_ok=True)
        return download(self.addresses, root / f"{_FOLDER}.zip", self.archive_digest, progress)

    def _tree(self, root: Path) -> Tree:
        where = self.locate(root)
        if where is None:
            raise ValueError(
                f"{root / _FOLDER} or {_FOLDER}.zip must exist, but neither does; run {fetch_command(self.name, root)}"
            )
        return ZipTree(where, _FOLDER, _EXCLUDED) if where.is_file() else FolderTree(where, _EXCLUDED)

    def _verify_archive(self, path: Path) -> None:
        remedy = f"delete it and run {fetch_command(self.name, path.parent)}"
        verify_file(path, self.archive_digest, remedy)

    def _dataset(self, tree: Tree, root: Path, split: Split, progress: ProgressCallback, *, again: bool) -> Dataset:
        train = train_images(tree)
        if self.first is not None:
            chosen = first_classes(tree, self.first, set(train.values()))
            train = {name: wnid for name, wnid in train.items() if wnid in chosen}
        wnids = sorted(set(train.values()))
        members = train if split == "train" else validation_images(tree, wnids)
        names, label = sorted(members), f"{self.name}-{split}"
        first = FirstContents(root / "tiny-imagenet-decoded" / f"{label}.json")
        # Named apart: all classes and the first of them are decoded from one folder.
        source, stamp = tree.path / self.name, "\n".join(f"{name}\0{tree.stamps[name]}" for name in names)
        # The stamps have the size and the times of every file, which need not be asked for again.
        cache = MappedImages.of(root, source, split, AS_STORED, [tree.path], len(names), stamp)
        _, images, origin = decode_once(
            cache,
            lambda: (3, _SIDE, _SIDE),
            lambda _: _decode(tree, names, first, label, progress),
            len(names),
            str(tree.path),
            progress,
            again=again,
        )
        first.keep(progress)
        places = {wnid: place for place, wnid in enumerate(wnids)}
        labels = torch.tensor([places[members[name]] for name in names])
        words = _class_names(tree)
        classes = tuple(words.get(wnid, wnid) for wnid in wnids)
        return Dataset(self.name, split, images, labels, classes, crop=8, flip=True, origin=origin)


def _decode(
    tree: Tree, names: Sequence[str], first: FirstContents, label: str, progress: ProgressCallback
) -> Iterator[tuple[int, np.ndarray]]:
    """Place and pixels of each file of the tree, if it has the contents of its first decoding."""
    for place, name in enumerate(names):
        path, content = tree.path / name, tree.read(name)
        first.check(name, content, path)
        pixels = decode_image(content, path, 3)
        if pixels.shape != (3, _SIDE, _SIDE):
            _, height, width = pixels.shape
            raise ValueError(f"{path} must be {_SIDE}x{_SIDE} pixels, got {width}x{height}; replace it")
        yield place, pixels
        progress(ProgressEvent(f"decoding {label}", place + 1, len(names), "images"))


def train_images(tree: Tree) -> dict[str, str]:
    """The class (its WordNet id) of every training image, by the image's name in the tree."""
    images = {name: match[1] for name in tree.stamps if (match := _TRAIN_IMAGE.fullmatch(name))}
    if not images:
        raise ValueError(f"{tree.path} must hold train/CLASS/images/*.JPEG, but it has none; unpack it again")
    classes = set(images.values())
    if "wnids.txt" in tree.stamps:
        listed = set(_text(tree, "wnids.txt").split())
        if unknown := sorted(classes - listed):
            raise ValueError(
                f"{tree.path / 'train' / unknown[0]} must be a class listed in wnids.txt, but it is not; "
                "remove it or unpack the data set again"
            )
    for wnid in sorted(classes):
        boxes = f"train/{wnid}/{wnid}_boxes.txt"
        if boxes not in tree.stamps:
            continue
        for line in _text(tree, boxes).splitlines():
            image = f"train/{wnid}/images/{line.split(chr(9))[0]}"
            if line and image not in images:
                raise ValueError(f"{tree.path / image} must exist, as {boxes} lists it; unpack the data set again")
    return images


def first_classes(tree: Tree, number: int, present: set[str]) -> set[str]:
    """The first classes in the order of `wnids.txt`; raises if one is missing."""
    listed = _text(tree, "wnids.txt").split() if "wnids.txt" in tree.stamps else []
    chosen = listed[:number]
    if len(chosen) < number:
        raise ValueError(f"{tree.path / 'wnids.txt'} must list {number} classes at least, but it has {len(chosen)}")
    if missing := [wnid for wnid in chosen if wnid not in present]:
        raise ValueError(f"{tree.path / 'train' / missing[0]} must hold the images of a class, but it has none")
    return set(chosen)


def validation_images(tree: Tree, wnids: list[str]) -> dict[str, str]:
    """The class of every validation image of these classes, by the image's name in the tree."""
    annotations = "val/val_annotations.txt"
    if annotations not in tree.stamps:
        raise ValueError(f"{tree.path / annotations} must exist, but it does not; unpack the data set again")
    wanted, images = set(wnids), {}
    for number, line in enumerate(_text(tree, annotations).splitlines(), start=1):
        fields = line.split("\t")
        if len(fields) < 2:
            raise ValueError(f"{tree.path / annotations}, line {number} must be FILE tab CLASS, got {line[:80]!r}")
        if fields[1] in wanted:
            images[f"val/images/{fields[0]}"] = fields[1]
    for image in images:
        if image not in tree.stamps:
            raise ValueError(f"{tree.path / image} must exist, as {annotations} lists it; unpack the data set again")
    if not images:
        raise ValueError(f"{tree.path / annotations} must list an image of the classes under train, but it has none")
    return images


def _class_names(tree: Tree) -> dict[str, str]:
    if "words.txt" not in tree.stamps:
        return {}
    lines = (line.partition("\t") for line in _text(tree, "words.txt").splitlines())
    return {wnid: words for wnid, _, words in lines if words}


def _text(tree: Tree, name: str) -> str:
    try:
        return tree.read(name).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{tree.path / name} must be a text file, but it is damaged: {error}") from None
