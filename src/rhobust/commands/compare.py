"""rhobust compare."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from rhobust.commands.options import Common, CommonOptions, print_table
from rhobust.evaluation import certified_curve, certified_differences, read_tsv, write_tsv
from rhobust.records import COMPRESSED, PLAIN, Row, read_record
from rhobust.rounding import outward, rounded


@dataclass(frozen=True)
class Compare:
    """Show the certified accuracy of records, and of tables of Cohen et al., side by side.

    Those of the same images as the first file are also compared with it image by image, which tells apart what two
    intervals of their own cannot.
    """

    files: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE [FILE ...]")]
    """Records of certify (.jsonl, .jsonl.gz), or tables of Cohen et al. (other names), which cannot be checked."""
    radii: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    """Radii of the certified accuracy."""
    tsv: Path | None = None
    """Write the one record that is given as a table of Cohen et al. here."""
    common: CommonOptions = Common()

    def run(self) -> dict[str, Any]:
        if not self.files:
            raise ValueError("at least one record or table must be given, got none")
        if self.tsv is not None:
            if len(self.files) != 1 or not _is_record(self.files[0]):
                raise ValueError(f"--tsv must come with one record, got {len(self.files)} files")
            write_tsv(read_record(self.files[0]), self.tsv)
        files = [_read(path) for path in self.files]
        shown: list[Row] = []
        for path, (standing, rows, fingerprint) in zip(self.files, files, strict=True):
            one = {"file": str(path), "standing": standing, **certified_curve(rows, self.radii)}
            if shown:
                _, first, own = files[0]
                same = fingerprint is None or own is None or fingerprint == own
                one["against_first"] = self._against(first, rows) if same else None
            shown.append(one)
        return {"radii": list(self.radii), "files": shown}

    def _against(self, first: list[Row], rows: list[Row]) -> list[Row] | None:
        try:
            return certified_differences(rows, first, self.radii)
        except ValueError:
            return None

    def show(self, result: dict[str, Any]) -> None:
        rows = [
            [
                Path(one["file"]).name,
                one["standing"],
                *(rounded(point["accuracy"], 3, "down") for point in one["certified_accuracy"]),
                rounded(one["average_certified_radius"], 4, "down"),
                str(one["certified_accuracy"][0]["n"]),
            ]
            for one in result["files"]
        ]
        columns = ["file", "standing", *(f"{radius:g}" for radius in result["radii"]), "average radius", "n"]
        print_table(columns, rows, left=2)
        apart = [one for one in result["files"] if one.get("against_first")]
        if apart:
            print(
                f"\nAbove {Path(result['files'][0]['file']).name} on the same images, with 95% intervals over images:"
            )
            rows = [[Path(one["file"]).name, *map(_difference, one["against_first"])] for one in apart]
            print_table(["file", *(f"{radius:g}" for radius in result["radii"])], rows)


def _read(path: Path) -> tuple[str, list[Row], str | None]:
    """How a file's radii stand, its rows, and the fingerprint of its data where it has one."""
    if path.is_dir():
        raise ValueError(f"{path} must be a record of certify or a table, got a folder")
    if not _is_record(path):
        return "claimed", read_tsv(path), None
    record = read_record(path)
    if record.kind != "certify" or not record.rows:
        raise ValueError(f"{path} must be a record of certify with at least one example, got {record.kind}")
    if not record.intact:
        raise ValueError(f"{path} must be as it was written to be called proved, but it was changed")
    return "proved", record.rows, record.settings["data_fingerprint"]


def _difference(point: Row) -> str:
    return f"{rounded(point['difference'], 3, 'nearest')} ({outward(point['low'], point['high'], 3)})"


def _is_record(path: Path) -> bool:
    return path.name.endswith((PLAIN, COMPRESSED))


COMMAND = Compare
