"""SVHN: 32x32 colour photographs of street numbers, cropped to one digit (Netzer et al. 2011), from MATLAB files."""

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from rhobust.data.dataset import Dataset, Split
from rhobust.data.download import download, verify, verify_file
from rhobust.data.source import DatasetCheck, check_splits, fetch_command
from rhobust.progress import ProgressCallback


@dataclass(frozen=True)
class SVHN:
    """SVHN, format 2 (cropped digits), under `ROOT/svhn` or in the root itself; its `extra` images are not used."""

    files: tuple[tuple[str, str], ...] = (
        ("train_32x32.mat", "md5:e26dedcc434d2e4c54c9b2d4a06d8373"),
        ("test_32x32.mat", "md5:eb5a983be6a315427106f1b164d9cef3"),
    )
    """Name and digest of the training split's file and of the test split's."""
    mirrors: tuple[str, ...] = ("http://ufldl.stanford.edu/housenumbers/",)
    """Base URLs of the files."""

    name = "svhn"
    description = "73,257 + 26,032 digits of street numbers, colour 32x32, 10 classes (246 MB)"

    def locate(self, root: Path) -> Path | None:
        """The folder of the first file if both exist."""
        paths = [_find(root, name) for name, _ in self.files]
        return None if None in paths or paths[0] is None else paths[0].parent

    def load(self, root: Path, split: Split, progress: ProgressCallback) -> Dataset:
        """One split; its file is verified. Class 0 is the digit 0, which the file calls 10."""
        name, digest = self.files[0 if split == "train" else 1]
        path, command = _find(root, name), fetch_command(self.name, root)
        if path is None:
            raise ValueError(f"{name} must be under {root}, but it is not; run {command}")
        content = path.read_bytes()
        verify(content, digest, path, f"delete it and run {command}")
        images, labels = parse_matlab(content, path.name)
        return Dataset(self.name, split, images, labels, tuple(str(digit) for digit in range(10)))

    def check(self, root: Path, progress: ProgressCallback) -> DatasetCheck:
        return check_splits(self, root, len(self.files), progress)

    def fetch(self, root: Path, progress: ProgressCallback) -> str:
        missing = [file for file in self.files if _find(root, file[0]) is None]
        for name, digest in self.files:
            if path := _find(root, name):
                verify_file(path, digest, f"delete it and run {fetch_command(self.name, root)}")
        if not missing:
            return "already there"
        folder = root / "svhn"
        folder.mkdir(parents=True, exist_ok=True)
        origins = [
            download([mirror + name for mirror in self.mirrors], folder / name, digest, progress)
            for name, digest in missing
        ]
        return origins[0].rpartition("/")[0]


def parse_matlab(content: bytes, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels of a MATLAB 5 file: X, (32, 32, 3, n) bytes, and y, (n, 1); the label of the digit 0 is 10."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        held = loadmat(io.BytesIO(content), variable_names=("X", "y"))
    except (ValueError, TypeError, NotImplementedError, MatReadError, OSError) as error:
        raise ValueError(f"{name} must be a MATLAB 5 file, but it is not: {error}") from None
    x, y = held.get("X"), held.get("y")
    if x is None or y is None or x.dtype != np.uint8 or x.shape[:3] != (32, 32, 3) or y.shape != (x.shape[-1], 1):
        shapes = ", ".join(f"{key} {value.shape}" for key, value in held.items() if isinstance(value, np.ndarray))
        raise ValueError(f"{name} must hold X, uint8 (32, 32, 3, n), and y, (n, 1), got {shapes or 'neither'}")
    if y.min() < 1 or y.max() > 10:
        raise ValueError(f"{name} must hold labels 1..10, got {y.min()}..{y.max()}")
    images = np.ascontiguousarray(x.transpose(3, 2, 0, 1))
    return torch.from_numpy(images), torch.from_numpy(y[:, 0].astype(np.int64) % 10)


def _find(root: Path, name: str) -> Path | None:
    return next((path for path in (root / "svhn" / name, root / name) if path.is_file()), None)
