"""CIFAR-100: 32x32 colour photographs in 100 classes (Krizhevsky 2009), from the binary version."""

from dataclasses import dataclass
from pathlib import Path

from rhobust.data.cifar10 import parse_batch, read_archive
from rhobust.data.dataset import Dataset, Split
from rhobust.data.download import download, verify_file
from rhobust.data.source import DatasetCheck, check_splits, fetch_command
from rhobust.progress import ProgressCallback

_FOLDER = "cifar-100-binary"
_NAMES = f"{_FOLDER}/fine_label_names.txt"


@dataclass(frozen=True)
class CIFAR100:
    """CIFAR-100 in the publishers' `ROOT/cifar-100-binary.tar.gz`, with its 100 fine classes.

    The archive is read without unpacking: only the archive has a published digest.
    """

    addresses: tuple[str, ...] = ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",)
    """URLs of the archive."""
    archive_digest: str = "md5:03b5dce01913d631647c71ecec9e9cb8"
    """Digest of the archive."""

    name = "cifar100"
    description = "50,000 + 10,000 photographs, colour 32x32, 100 classes (169 MB)"

    def locate(self, root: Path) -> Path | None:
        archive = _archive(root)
        return archive if archive.is_file() else None

    def load(self, root: Path, split: Split, progress: ProgressCallback) -> Dataset:
        archive, command = _archive(root), fetch_command(self.name, root)
        if not archive.is_file():
            raise ValueError(f"{archive} must exist, but it does not; run {command}")
        file = f"{_FOLDER}/{split}.bin"
        contents = read_archive(archive, self.archive_digest, [file, _NAMES], f"delete it and run {command}")
        images, labels = parse_batch(contents[file], file, labels=2)  # coarse, fine
        classes = tuple(contents[_NAMES].decode().split())
        return Dataset(self.name, split, images, labels, classes, crop=4, flip=True)

    def check(self, root: Path, progress: ProgressCallback) -> DatasetCheck:
        return check_splits(self, root, 1, progress)

    def fetch(self, root: Path, progress: ProgressCallback) -> str:
        archive = _archive(root)
        if archive.is_file():
            verify_file(archive, self.archive_digest, f"delete it and run {fetch_command(self.name, root)}")
            return "already there"
        root.mkdir(parents=True, exist_ok=True)
        return download(self.addresses, archive, self.archive_digest, progress)


def _archive(root: Path) -> Path:
    return root / f"{_FOLDER}.tar.gz"
