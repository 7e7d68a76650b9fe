"""rhobust data list | get | check."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from rhobust.commands.options import Output, OutputOptions, print_table
from rhobust.data import available, check, get


@dataclass(frozen=True)
class List:
    """List the data sets and their folders."""

    root: Path | None = None
    """Folder of the data sets; default: $RHOBUST_DATA, else a cache folder."""
    common: OutputOptions = Output()

    def run(self) -> list[dict[str, Any]]:
        return [_plain(asdict(entry)) for entry in available(self.root)]

    def show(self, result: list[dict[str, Any]]) -> None:
        rows = [[row["name"], row["description"], row["where"] or "not here: rhobust data get"] for row in result]
        print_table(["name", "what", "where"], rows, left=3)


@dataclass(frozen=True)
class Get:
    """Download a data set, check it, and put it in its place."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """mnist, cifar10, cifar100, svhn, tiny-imagenet, tiny-imagenet-50 or hf-datasets:ID."""
    root: Path | None = None
    """Folder of the data sets; default: $RHOBUST_DATA, else a cache folder."""
    common: OutputOptions = Output()

    def run(self) -> dict[str, Any]:
        return _plain(asdict(get(self.name, root=self.root, progress=self.common.progress)))

    def show(self, result: dict[str, Any]) -> None:
        print(f"{result['name']} is in {result['where']} ({result['origin']})")


@dataclass(frozen=True)
class Check:
    """Verify every file of a data set."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """A data set's name, a folder of images, an .npz file, or hf-datasets:FOLDER-or-ID."""
    root: Path | None = None
    """Folder of the data sets; default: $RHOBUST_DATA, else a cache folder."""
    resize: int | None = None
    """Pixels of the shorter side that the images of a folder are resized to; default: as stored."""
    crop: int | None = None
    """Side of the central square that is kept of each image, after resizing; default: all of it."""
    common: OutputOptions = Output()

    def run(self) -> dict[str, Any]:
        return _plain(
            asdict(check(self.name, root=self.root, progress=self.common.progress, resize=self.resize, crop=self.crop))
        )

    def show(self, result: dict[str, Any]) -> None:
        classes = f"{result['classes']} classes"
        if result["published_classes"] != result["classes"]:
            classes = f"{result['classes']} of {result['published_classes']} classes"
        shape = "x".join(map(str, result["shape"]))
        files = "1 file" if result["files"] == 1 else f"{result['files']:,} files"
        print(
            f"{result['name']} is whole: {files}, {result['train']:,} training and "
            f"{result['test']:,} test images of {shape}, {classes}, in {result['where']}"
        )
        if result["repeated"]:
            print(f"warning: {result['repeated']:,} of the test images are training images too")


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {key: str(value) if isinstance(value, Path) else value for key, value in row.items()}


COMMAND = List | Get | Check
