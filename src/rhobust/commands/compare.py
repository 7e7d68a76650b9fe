"""rhobust compare."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from rhobust.commands.options import Common, CommonOptions, print_table
from rhobust.declared import sizes
from rhobust.evaluation import (
    certified_curve,
    certified_differences,
    read_tsv,
    robust_curve,
    robust_differences,
    write_tsv,
)
from rhobust.pairing import SAME_ATTACK, SAME_CERTIFICATE
from rhobust.records import COMPRESSED, PLAIN, Row, read_record
from rhobust.rounding import outward, rounded


@dataclass(frozen=True)
class Compare:
    """Show what is certified, or what attacks leave standing, side by side: records, and tables of Cohen et al.

    A file of the same images as the first, certified or attacked in the same way, is also compared with it image by
    image, which tells apart what two intervals of their own cannot. A table of Cohen et al. names its images by number
    and label alone: that these mean the same images is for you to know.
    """

    files: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE [FILE ...]")]
    """Records of certify and attack (.jsonl, .jsonl.gz), or tables of Cohen et al. (other names), which cannot be
    checked."""
    radii: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    """Where they are compared; an attack, and a record that decided a grid of radii, says nothing of others."""
    tsv: Path | None = None
    """Write the one record that is given as a table of Cohen et al. here."""
    common: CommonOptions = Common()

    def run(self) -> dict[str, Any]:
        if not self.files:
            raise ValueError("at least one record or table must be given, got none")
        radii = sizes("radii", self.radii)
        if self.tsv is not None:
            if len(self.files) != 1 or not _is_record(self.files[0]):
                raise ValueError(f"--tsv must come with one record, got {len(self.files)} files")
            write_tsv(read_record(self.files[0]), self.tsv)
        given = [_read(path) for path in self.files]
        shown: list[Row] = []
        for file in given:
            known = [radius for radius in radii if file.knows(radius)]
            one = {"file": str(file.path), "standing": file.standing, **file.told(known)}
            if shown:
                one |= _against(file, given[0], known)
            shown.append(one)
        return {"radii": list(radii), "files": shown}

    def show(self, result: dict[str, Any]) -> None:
        files, radii = result["files"], result["radii"]
        names = _names([one["file"] for one in files])
        averaged = any("average_certified_radius" in one for one in files)
        columns = ["file", "standing", *(f"{radius:g}" for radius in radii), *["average radius"] * averaged, "n"]
        rows = []
        for name, one in zip(names, files, strict=True):
            average = one.get("average_certified_radius")
            averages = [_NONE if average is None else rounded(average, 4, "down")] * averaged
            rows.append([name, one["standing"], *_accuracies(one, radii), *averages, str(one["n"])])
        print_table(columns, rows, left=2)
        others = list(zip(names, files, strict=True))[1:]
        apart = [
            [name, *_at(one["against_first"], radii, _difference)] for name, one in others if "against_first" in one
        ]
        if apart:
            print(f"\nAbove {names[0]} on the same images, with 95% intervals over images:")
            print_table(["file", *(f"{radius:g}" for radius in radii)], apart)
        for name, one in others:
            if "not_compared" in one:
                print(f"{name} is not compared image by image: {one['not_compared']}")


@dataclass(frozen=True)
class _Kind:
    """How records of a kind are shown and compared."""

    standing: str
    alike: tuple[str, ...]
    """Settings that two of them must share to be compared."""
    told: Callable[[list[Row], list[float]], Row]
    differences: Callable[[list[Row], list[Row], list[float]], list[Row]]


_KINDS = {
    "certify": _Kind(
        "proved",
        SAME_CERTIFICATE,
        lambda rows, radii: {"n": len(rows), **certified_curve(rows, radii)},
        certified_differences,
    ),
    "attack": _Kind(
        "attacked",
        SAME_ATTACK,
        lambda rows, radii: {"n": len({row["index"] for row in rows}), "robust_accuracy": robust_curve(rows, radii)},
        robust_differences,
    ),
}
_TABLE = replace(_KINDS["certify"], standing="claimed")
_NONE = "–"
"""Stands where a file says nothing."""


@dataclass(frozen=True)
class _File:
    """What was found, and how where that is known."""

    path: Path
    kind: _Kind
    rows: list[Row]
    settings: Row

    @property
    def standing(self) -> str:
        """What its numbers are: proved, claimed, or the outcome of an attack."""
        return self.kind.standing

    def knows(self, radius: float) -> bool:
        """Whether a radius was decided; a grid and an attack say nothing of those between their own."""
        own = self.settings.get("radii") if self.settings.get("way") in (None, "grid") else None
        return own is None or radius in own

    def told(self, radii: list[float]) -> Row:
        """The number of images, and the accuracy at each radius."""
        return self.kind.told(self.rows, radii)


def _read(path: Path) -> _File:
    if path.is_dir():
        raise ValueError(f"{path} must be a record of certify or attack, or a table, got a folder")
    if not _is_record(path):
        return _File(path, _TABLE, read_tsv(path), {})
    record = read_record(path)
    if record.kind not in _KINDS or not record.rows:
        raise ValueError(f"{path} must be a record of certify or attack with at least one example, got {record.kind}")
    kind = _KINDS[record.kind]
    if not record.intact:
        raise ValueError(f"{path} must be as it was written to be called {kind.standing}, but it was changed")
    return _File(path, kind, record.rows, record.settings)


def _against(file: _File, first: _File, radii: list[float]) -> Row:
    """How far a file lies above the first one, or why that is not told."""
    if file.kind.differences is not first.kind.differences:
        return {"not_compared": "what is proved is not compared with what an attack left"}
    shared = file.settings.keys() & first.settings.keys()
    other = [key for key in file.kind.alike if key in shared and file.settings[key] != first.settings[key]]
    if other:
        return {"not_compared": f"another {other[0]} than the first"}
    try:
        known = [radius for radius in radii if first.knows(radius)]
        return {"against_first": file.kind.differences(file.rows, first.rows, known)}
    except ValueError as error:
        return {"not_compared": str(error)}


def _names(files: Sequence[str]) -> list[str]:
    """The files as they are told apart: from the folder on that holds them all."""
    paths = [Path(file).absolute() for file in files]
    shared = os.path.commonpath([path.parent for path in paths])
    return [path.relative_to(shared).as_posix() for path in paths]


def _accuracies(one: Row, radii: Sequence[float]) -> list[str]:
    """The accuracy at each radius; what is certified is never rounded up."""
    if "certified_accuracy" in one:
        return _at(one["certified_accuracy"], radii, lambda point: rounded(point["accuracy"], 3, "down"))
    return _at(one["robust_accuracy"], radii, lambda point: rounded(point["accuracy"], 3, "nearest"))


def _at(points: Sequence[Row], radii: Sequence[float], shown: Callable[[Row], str]) -> list[str]:
    """What is shown at each radius, with a dash where nothing is known."""
    found = {point["radius"]: shown(point) for point in points}
    return [found.get(radius, _NONE) for radius in radii]


def _difference(point: Row) -> str:
    return f"{rounded(point['difference'], 3, 'nearest')} ({outward(point['low'], point['high'], 3)})"


def _is_record(path: Path) -> bool:
    return path.name.endswith((PLAIN, COMPRESSED))


COMMAND = Compare
