"""Where data sets come from: what every source can do, and what it says about splits and files."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rhobust.data.content import ImageSet
from rhobust.data.dataset import Dataset, Split
from rhobust.progress import ProgressCallback


@dataclass(frozen=True)
class DatasetCheck:
    """Result of the verification of every file of a data set."""

    name: str
    """The data set's name."""
    where: Path
    """Its folder or file."""
    files: int
    """Number of verified files."""
    train: int
    """Number of training images."""
    test: int
    """Number of test images."""
    classes: int
    """Number of classes found."""
    published_classes: int
    """Number of classes of the published data set; more than `classes` if only a part of it is present."""
    shape: tuple[int, int, int]
    """Channels, height and width of an image."""
    repeated: int
    """Number of test images that are training images too, pixel by pixel."""


def split_message(path: Path, split: Split, chosen: int, images: int) -> str:
    """How data without a test part is split, in one line."""
    return (
        f"{path} has no test part: the {split} split is {chosen:,} of its {images:,} images, chosen by the pixels of "
        "each image alone"
    )


def warn_missing(path: Path, split: Split, missing: Sequence[str], classes: int, progress: ProgressCallback) -> None:
    """Say in one line which classes have no image in a split."""
    if missing:
        shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        part = "training" if split == "train" else "test"
        progress(f"warning: {path} has no {part} image of {len(missing)} of its {classes} classes ({shown})")


class DatasetSource(Protocol):
    """A data set, possibly stored under a root folder."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def description(self) -> str:
        """One line for a list."""
        ...

    def locate(self, root: Path) -> Path | None:
        """Its path under the root, or None if a file is missing; nothing is read."""
        ...

    def load(self, root: Path, split: Split, progress: ProgressCallback) -> Dataset:
        """One split, its files verified first; raises a one-line ValueError if one is damaged or missing."""
        ...

    def check(self, root: Path, progress: ProgressCallback) -> DatasetCheck:
        """Verify every file; raises a one-line ValueError if one is damaged or missing."""
        ...

    def fetch(self, root: Path, progress: ProgressCallback) -> str:
        """Download missing files under the root and return their origin."""
        ...


def summarise_check(
    name: str, where: Path, files: int, train: Dataset | None, test: Dataset, published: int
) -> DatasetCheck:
    """The result of a verification from the verified splits; train is None without training images."""
    return DatasetCheck(
        name,
        where,
        files,
        0 if train is None else len(train),
        len(test),
        test.num_classes,
        published_classes=published,
        shape=test.shape,
        repeated=0 if train is None else int(ImageSet.of(train.images).contains(test.images).sum()),
    )


def data_root(root: Path | str | None) -> Path:
    """The folder of the data sets: `root` if given, else $RHOBUST_DATA, else the platform's cache folder."""
    if root is not None:
        return Path(root).expanduser()
    if named := os.environ.get("RHOBUST_DATA"):
        return Path(named).expanduser()
    import platformdirs

    return platformdirs.user_cache_path("rhobust") / "data"
