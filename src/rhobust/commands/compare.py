"""rhobust compare."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from rhobust.commands.options import Common, CommonOptions, print_table
from rhobust.evaluation import certified_curve, read_tsv, write_tsv
from rhobust.records import COMPRESSED, PLAIN, read_record
from rhobust.rounding import rounded


@dataclass(frozen=True)
class Compare:
    """Show the certified accuracy of records, and of tables of Cohen et al., side by side."""

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
        return {"radii": list(self.radii), "files": [self._read(path) for path in self.files]}

    def _read(self, path: Path) -> dict[str, Any]:
        if path.is_dir():
            raise ValueError(f"{path} must be a record of certify or a table, got a folder")
        if not _is_record(path):
            return {"file": str(path), "standing": "claimed", **certified_curve(read_tsv(path), self.radii)}
        record = read_record(path)
        if record.kind != "certify" or not record.rows:
            raise ValueError(f"{path} must be a record of certify with at least one example, got {record.kind}")
        if not record.intact:
            raise ValueError(f"{path} must be as it was written to be called proved, but it was changed")
        return {"file": str(path), "standing": "proved", **certified_curve(record.rows, self.radii)}

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


def _is_record(path: Path) -> bool:
    return path.name.endswith((PLAIN, COMPRESSED))


COMMAND = Compare
