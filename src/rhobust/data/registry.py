"""Data sets by name: what a source offers, and where it is found, checked and loaded."""

from dataclasses import dataclass
from pathlib import Path

from rhobust.data.arrays import ArrayFile
from rhobust.data.cifar10 import CIFAR10
from rhobust.data.dataset import Checked, Dataset, Source, Split, data_root
from rhobust.data.digits import Digits
from rhobust.data.folders import ImageFolder
from rhobust.data.mnist import MNIST
from rhobust.data.tiny_imagenet import TinyImageNet
from rhobust.progress import ProgressCallback, progress_or_default

KNOWN: tuple[Source, ...] = (
    MNIST(),
    CIFAR10(),
    TinyImageNet(),
    TinyImageNet(first=50),
    Digits(),
)
"""The data sets that go by a name: one file and one line here each."""


@dataclass(frozen=True)
class Entry:
    """One line of the list of data sets."""

    name: str
    """What to call it."""
    description: str
    """What it is."""
    present: bool
    """Whether its files are there; they are not read."""
    where: Path | None
    """The folder or file it lies in."""


@dataclass(frozen=True)
class Fetched:
    """A data set that is now there."""

    name: str
    """What to call it."""
    where: Path
    """The folder or file it lies in."""
    origin: str
    """Where it came from: an address, an npm package, or "already there"."""


def source(name: str) -> Source:
    """The data set of this name, or the one in the folder or `.npz` file at this path."""
    for known in KNOWN:
        if known.name == name:
            return known
    path = Path(name).expanduser()
    if path.is_dir():
        return ImageFolder(path)
    if path.suffix == ".npz":
        return ArrayFile(path)
    names = ", ".join(known.name for known in KNOWN)
    raise ValueError(
        f"data must be one of {names}, or a path: a folder with a subfolder a class, or an .npz file; got {name!r}"
    )


def available(root: Path | str | None = None) -> list[Entry]:
    """Every known data set, and where it lies."""
    folder = data_root(root)
    places = [(known, known.locate(folder)) for known in KNOWN]
    return [Entry(known.name, known.description, where is not None, where) for known, where in places]


def get(name: str, *, root: Path | str | None = None, progress: ProgressCallback | None = None) -> Fetched:
    """Bring a known data set under the root, unless it is there.

    Args:
        name: a known name.
        root: where data sets lie; None as in `data_root`.
        progress: told of progress; None shows it on stderr.
    """
    chosen, folder = source(name), data_root(root)
    with progress_or_default(progress) as notify:
        origin = chosen.fetch(folder, notify)
    return Fetched(chosen.name, chosen.locate(folder) or folder, origin)


def check(name: str, *, root: Path | str | None = None, progress: ProgressCallback | None = None) -> Checked:
    """Verify every file of a data set and count what is there; damage is a ValueError of one line.

    Args:
        name: a known name, a folder, or an `.npz` file.
        root: where data sets lie; None as in `data_root`.
        progress: told of progress; None shows it on stderr.
    """
    chosen, folder = source(name), data_root(root)
    with progress_or_default(progress) as notify:
        return chosen.check(folder, notify)


def load(
    name: str, split: Split, *, root: Path | str | None = None, progress: ProgressCallback | None = None
) -> Dataset:
    """One split of a data set, its files verified; nothing is downloaded.

    Args:
        name: a known name, a folder, or an `.npz` file.
        split: "train" or "test".
        root: where data sets lie; None as in `data_root`.
        progress: told of progress where images are decoded; None shows it on stderr.
    """
    if split not in ("train", "test"):
        raise ValueError(f"split must be 'train' or 'test', got {split!r}")
    chosen, folder = source(name), data_root(root)
    with progress_or_default(progress) as notify:
        return chosen.load(folder, split, notify)
