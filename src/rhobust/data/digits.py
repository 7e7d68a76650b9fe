"""Small handwritten digits included in the package: no download, trains in seconds.

1,797 handwritten digits, 8x8 grey, the test part of "Optical Recognition of Handwritten Digits" (E. Alpaydin and
C. Kaynak 1998, UCI Machine Learning Repository, https://doi.org/10.24432/C50P49, CC BY 4.0), as scikit-learn's
`load_digits` gives them. Changes: the values 0..16 became round(value * 255 / 16), and the order is that of
`numpy.random.default_rng(0).permutation(1797)`. The first 1,000 are the training split, the other 797 the test.
"""

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from rhobust.data.dataset import Dataset, Split
from rhobust.data.download import verify
from rhobust.data.source import DatasetCheck, check_splits
from rhobust.progress import ProgressCallback

_TRAIN = 1000
_FILE = Path(__file__).with_name("digits.npz")


@dataclass(frozen=True)
class Digits:
    """The included digits; the root is ignored."""

    path: Path = _FILE
    """The file in the package."""
    digest: str = "sha256:5784a2452827f8428d6544f62cf9c8236655b2021980aba6444c57d50496dcff"
    """Its digest."""

    name = "digits"
    description = "1,000 + 797 handwritten digits, grey 8x8, 10 classes (included)"

    def locate(self, root: Path) -> Path | None:
        """The file in the package."""
        return self.path if self.path.is_file() else None

    def load(self, root: Path, split: Split, progress: ProgressCallback) -> Dataset:
        """One split; the file is verified."""
        if not self.path.is_file():
            raise ValueError(f"{self.path} must exist, but it does not; install rhobust again")
        content = self.path.read_bytes()
        verify(content, self.digest, self.path, "install rhobust again")
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            x, y = arrays["x"], arrays["y"]
        part = slice(None, _TRAIN) if split == "train" else slice(_TRAIN, None)
        images = torch.from_numpy(x[part]).unsqueeze(1)
        labels = torch.from_numpy(y[part].astype(np.int64))
        return Dataset(self.name, split, images, labels, tuple(str(digit) for digit in range(10)))

    def check(self, root: Path, progress: ProgressCallback) -> DatasetCheck:
        """Verify the file."""
        return check_splits(self, root, 1, progress)

    def fetch(self, root: Path, progress: ProgressCallback) -> str:
        """Nothing to download."""
        self.check(root, progress)
        return "part of rhobust"
