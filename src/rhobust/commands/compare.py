"""rhobust compare."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from rhobust.archives import opened
from rhobust.commands.options import Output, OutputOptions, print_table
from rhobust.files import check_output
from rhobust.formatting import format_interval, format_number
from rhobust.measurements import comparison, is_record, partners, read_compared, write_tsv
from rhobust.records import Record, Row
from rhobust.settings import sizes

_NONE = "–"
"""Shown where a file says nothing."""


@dataclass(frozen=True)
class Compare:
    """Compare certified accuracy and robust accuracy under attack: run folders, records, tables.

    Folders are compared record by record: those of the first with those of the others made with the same settings.
    A file of the same images as the first, evaluated with the same settings, is compared with it image by image,
    which shows differences that two separate intervals cannot. A table of Cohen et al. identifies its images by index
    and label alone: that these mean the same images is for you to know.
    """

    files: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE [FILE ...]")]
    """Run folders, also inside archives (.tar.xz); or records of certify and attack (.jsonl, .jsonl.gz) and tables of
    Cohen et al. (other names), which cannot be checked."""
    radii: tuple[float, ...] | None = None
    """Radii to compare at (default: those that were attacked or decided by a sequential test, which say nothing of
    others; else 0 to 1 by quarters)."""
    tsv: Path | None = None
    """Write the one record that is given as a table of Cohen et al. here."""
    common: OutputOptions = Output()

    def run(self) -> dict[str, Any]:
        if not self.files:
            raise ValueError("at least one record or table must be given, got none")
        radii = None if self.radii is None else sizes("radii", self.radii)
        if self.tsv is not None:
            check_output("tsv", self.tsv)
        with opened(self.files) as found:
            if self.tsv is not None:
                if len(found.paths) != 1 or not is_record(found.paths[0]):
                    raise ValueError(f"--tsv must come with one record, got {len(found.paths)} files")
                write_tsv(read_compared(found.paths[0]), self.tsv)
            comparisons = [comparison(group, radii) for group in _groups(found.paths)]
            for one in (one for compared in comparisons for one in compared["files"]):
                one["file"] = str(found.original(Path(one["file"])))
        return {"comparisons": comparisons}

    def show(self, result: dict[str, Any]) -> None:
        for place, one in enumerate(result["comparisons"]):
            if place:
                print()
            _show(one["files"], one["radii"])


def _groups(paths: Sequence[Path]) -> list[list[Record]]:
    folders = [path for path in paths if path.is_dir()]
    if not folders:
        return [[read_compared(path) for path in paths]]
    if len(folders) < len(paths) or len(folders) == 1:
        others = len(paths) - len(folders)
        raise ValueError(f"folders must come two at least and without files, got {len(folders)} and {others} files")
    return partners(folders)


def _show(files: Sequence[Row], radii: Sequence[float]) -> None:
    names = _names([one["file"] for one in files])
    averaged = any("average_certified_radius" in one for one in files)
    columns = ["file", "status", *(f"{radius:g}" for radius in radii), *["average radius"] * averaged, "n"]
    rows = []
    for name, one in zip(names, files, strict=True):
        average = one.get("average_certified_radius")
        averages = [_NONE if average is None else format_number(average, 4, "down")] * averaged
        rows.append([name, one["status"], *_accuracies(one, radii), *averages, str(one["n"])])
    print_table(columns, rows, left=2)
    others = list(zip(names, files, strict=True))[1:]
    apart = [[name, *_at(one["against_first"], radii, _difference)] for name, one in others if "against_first" in one]
    if apart:
        print(f"\nAbove {names[0]} on the same images, with 95% intervals over images:")
        print_table(["file", *(f"{radius:g}" for radius in radii)], apart)
    for name, one in others:
        if "not_compared" in one:
            print(f"{name} is not compared image by image: {one['not_compared']}")


def _names(files: Sequence[str]) -> list[str]:
    """Short names: paths from the folder on that holds all files."""
    paths = [Path(file).absolute() for file in files]
    shared = os.path.commonpath([path.parent for path in paths])
    return [path.relative_to(shared).as_posix() for path in paths]


def _accuracies(one: Row, radii: Sequence[float]) -> list[str]:
    """The accuracy at each radius; what is certified is never rounded up."""
    if "certified_accuracy" in one:
        return _at(one["certified_accuracy"], radii, lambda point: format_number(point["accuracy"], 3, "down"))
    return _at(one["robust_accuracy"], radii, lambda point: format_number(point["accuracy"], 3, "nearest"))


def _at(points: Sequence[Row], radii: Sequence[float], shown: Callable[[Row], str]) -> list[str]:
    """What is shown at each radius, with a dash where nothing is known."""
    found = {point["radius"]: shown(point) for point in points}
    return [found.get(radius, _NONE) for radius in radii]


def _difference(point: Row) -> str:
    return f"{format_number(point['difference'], 3, 'nearest')} ({format_interval(point['low'], point['high'], 3)})"


COMMAND = Compare
