"""rhobust compare."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from rhobust.commands.options import Common, CommonOptions, print_table
from rhobust.declared import sizes
from rhobust.evaluation import certified_curve, certified_differences, read_tsv, write_tsv
from rhobust.pairing import SAME_CERTIFICATE
from rhobust.records import COMPRESSED, PLAIN, Row, read_record
from rhobust.rounding import outward, rounded


@dataclass(frozen=True)
class Compare:
    """Show the certified accuracy of records, and of tables of Cohen et al., side by side.

    A file of the same images as the first, certified in the same way, is also compared with it image by image, which
    tells apart what two intervals of their own cannot. A table of Cohen et al. names its images by number and label
    alone: that these mean the same images is for you to know.
    """

    files: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE [FILE ...]")]
    """Records of certify (.jsonl, .jsonl.gz), or tables of Cohen et al. (other names), which cannot be checked."""
    radii: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    """Radii of the certified accuracy; a record that decided a grid of radii says nothing of others."""
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
            head = {"file": str(file.path), "standing": file.standing, "n": len(file.rows)}
            one = {**head, **certified_curve(file.rows, known)}
            if shown:
                one |= _against(file, given[0], known)
            shown.append(one)
        return {"radii": list(radii), "files": shown}

    def show(self, result: dict[str, Any]) -> None:
        rows = []
        for one in result["files"]:
            found = {point["radius"]: rounded(point["accuracy"], 3, "down") for point in one["certified_accuracy"]}
            accuracies = [found.get(radius, "–") for radius in result["radii"]]
            average = rounded(one["average_certified_radius"], 4, "down")
            rows.append([Path(one["file"]).name, one["standing"], *accuracies, average, str(one["n"])])
        columns = ["file", "standing", *(f"{radius:g}" for radius in result["radii"]), "average radius", "n"]
        print_table(columns, rows, left=2)
        first, *others = result["files"]
        apart = [one for one in others if "against_first" in one]
        if apart:
            print(f"\nAbove {Path(first['file']).name} on the same images, with 95% intervals over images:")
            rows = []
            for one in apart:
                found = {point["radius"]: _difference(point) for point in one["against_first"]}
                rows.append([Path(one["file"]).name, *(found.get(radius, "–") for radius in result["radii"])])
            print_table(["file", *(f"{radius:g}" for radius in result["radii"])], rows)
        for one in others:
            if "not_compared" in one:
                print(f"{Path(one['file']).name} is not compared image by image: {one['not_compared']}")


@dataclass(frozen=True)
class _File:
    """Certificates, and how they were made where that is known."""

    path: Path
    standing: str
    rows: list[Row]
    settings: Row

    def knows(self, radius: float) -> bool:
        """Whether a radius was decided; a grid says nothing of those between its own."""
        return self.settings.get("way") != "grid" or radius in self.settings["radii"]


def _read(path: Path) -> _File:
    if path.is_dir():
        raise ValueError(f"{path} must be a record of certify or a table, got a folder")
    if not _is_record(path):
        return _File(path, "claimed", read_tsv(path), {})
    record = read_record(path)
    if record.kind != "certify" or not record.rows:
        raise ValueError(f"{path} must be a record of certify with at least one example, got {record.kind}")
    if not record.intact:
        raise ValueError(f"{path} must be as it was written to be called proved, but it was changed")
    return _File(path, "proved", record.rows, record.settings)


def _against(file: _File, first: _File, radii: list[float]) -> Row:
    """How far a file lies above the first one, or why that is not told."""
    shared = file.settings.keys() & first.settings.keys()
    other = [key for key in SAME_CERTIFICATE if key in shared and file.settings[key] != first.settings[key]]
    if other:
        return {"not_compared": f"another {other[0]} than the first"}
    try:
        known = [radius for radius in radii if first.knows(radius)]
        return {"against_first": certified_differences(file.rows, first.rows, known)}
    except ValueError as error:
        return {"not_compared": str(error)}


def _difference(point: Row) -> str:
    return f"{rounded(point['difference'], 3, 'nearest')} ({outward(point['low'], point['high'], 3)})"


def _is_record(path: Path) -> bool:
    return path.name.endswith((PLAIN, COMPRESSED))


COMMAND = Compare
