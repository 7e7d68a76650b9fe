"""What the catalogue knows of a data set: where it lies, how to get, check and load it."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rhobust.progress import Report

from rhobust.data.dataset import Dataset, Split


@dataclass(frozen=True)
class Checked:
    """What was found when every file of a data set was verified."""

    name: str
    """The data set's name."""
    where: Path
    """The folder or file it lies in."""
    files: int
    """How many files were verified."""
    train: int
    """Training images."""
    test: int
    """Test images."""
    classes: int
    """Classes found."""
    published_classes: int
    """Classes the published data set has; more than `classes` where only a part of it is there."""
    shape: tuple[int, int, int]
    """Channels, height and width of an image."""


class Source(Protocol):
    """A data set that may lie under a root folder."""

    @property
    def name(self) -> str:
        """The name it goes by."""
        ...

    @property
    def description(self) -> str:
        """One line for a list."""
        ...

    def locate(self, root: Path) -> Path | None:
        """Where it lies under the root, or None when a file of it is missing; nothing is read."""
        ...

    def load(self, root: Path, split: Split, report: Report) -> Dataset:
        """One split, its files verified first; a ValueError of one line when one is damaged or missing."""
        ...

    def check(self, root: Path, report: Report) -> Checked:
        """Verify every file; a ValueError of one line when one is damaged or missing."""
        ...

    def fetch(self, root: Path, report: Report) -> str:
        """Bring what is missing under the root and say where it came from."""
        ...


def checked(name: str, where: Path, files: int, train: Dataset | None, test: Dataset, published: int) -> Checked:
    """What two verified splits, or a test split alone, amount to."""
    trained = 0 if train is None else len(train)
    return Checked(
        name, where, files, trained, len(test), test.num_classes, published_classes=published, shape=test.shape
    )


def data_root(root: Path | str | None) -> Path:
    """The folder data sets lie in: the one given, else $RHOBUST_DATA, else the platform's cache folder."""
    if root is not None:
        return Path(root).expanduser()
    if named := os.environ.get("RHOBUST_DATA"):
        return Path(named).expanduser()
    import platformdirs

    return platformdirs.user_cache_path("rhobust") / "data"
