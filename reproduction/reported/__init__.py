"""Every number that the paper reports in a table, where the table is, and its known defects.

The numbers are in one CSV file per table in this folder and nowhere else; `tables.toml` says what each table is,
and `defects.toml` what is wrong with it or left open by it.
"""

import csv
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from reproduction.render import markdown_table

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Defect:
    """What is wrong with a reported table, or left open by it; a defect is listed, never corrected."""

    text: str
    rows: tuple[str, ...] = ()
    """First keys of the rows concerned; empty for the whole table."""
    columns: tuple[str, ...] = ()
    """Columns concerned; empty for all of them."""

    def concerns(self, key: str, column: str) -> bool:
        """Whether it is about this cell in particular."""
        return (
            bool(self.rows or self.columns)
            and (not self.rows or key in self.rows)
            and (not self.columns or column in self.columns)
        )


@dataclass(frozen=True)
class ReportedTable:
    """One table of the paper."""

    name: str
    """Name of its CSV file."""
    label: str
    """Its label in the paper's source."""
    place: str
    """File of the paper's source, and the line at which the table begins."""
    caption: str
    """Caption, shortened."""
    keys: int
    """Leading columns that name a row."""
    unit: Literal["percent", "share", "setting"]
    """What a cell holds: an accuracy in percent, an accuracy as a share, or a setting."""
    defects: tuple[Defect, ...] = ()

    @cached_property
    def lines(self) -> tuple[tuple[str, ...], ...]:
        """All lines as reported, the head first."""
        with (_FOLDER / f"{self.name}.csv").open(newline="", encoding="utf-8") as file:
            return tuple(tuple(line) for line in csv.reader(file))

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that hold numbers."""
        return self.lines[0][self.keys :]

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """The keys of each row."""
        return tuple(line[: self.keys] for line in self.lines[1:])

    def text(self, row: tuple[str, ...], column: str) -> str:
        """A cell as reported."""
        if row not in self.rows or column not in self.columns:
            raise ValueError(f"{self.name} must have the cell {' '.join(row)} / {column}, but the paper reports none")
        return self.lines[1 + self.rows.index(row)][self.keys + self.columns.index(column)]

    def accuracy(self, row: tuple[str, ...], column: str) -> float | None:
        """A reported accuracy as a share; None where the paper reports none."""
        if self.unit == "setting":
            raise ValueError(f"{self.name} must hold accuracies, but it holds settings")
        if row not in self.rows or column not in self.columns:
            return None
        # A percentage with two digits is a share with four: rounding undoes the division's error.
        value = float(self.text(row, column))
        return round(value / 100, 4) if self.unit == "percent" else value

    def about(self, key: str, column: str) -> tuple[str, ...]:
        """The defects of one cell."""
        return tuple(defect.text for defect in self.defects if defect.concerns(key, column))

    @property
    def general_defects(self) -> tuple[str, ...]:
        """The defects that concern the whole table."""
        return tuple(defect.text for defect in self.defects if not (defect.rows or defect.columns))


def _read_tables() -> dict[str, ReportedTable]:
    tables, defects = (
        tomllib.loads((_FOLDER / f"{name}.toml").read_text(encoding="utf-8")) for name in ("tables", "defects")
    )
    found = {
        name: tuple(
            Defect(one["text"], tuple(one.get("rows", ())), tuple(one.get("columns", ())))
            for one in defects.get(name, [])
        )
        for name in tables
    }
    return {name: ReportedTable(name, **table, defects=found[name]) for name, table in tables.items()}


TABLES = _read_tables()
"""Every table of the paper, by the name that `python -m reproduction` gives it."""


def page() -> str:
    """The reported tables as a page that can be compared with the paper."""
    parts = [
        "# The paper's tables as reported",
        "Yang et al., *Certified Distributional Robustness on Smoothed Classifiers* (arXiv 2010.10987). Each number is "
        "typed once, in `reproduction/reported/`, and this page is written from there. Places are those of the "
        "paper's source on arXiv. What is wrong with a table, or left open by it, is listed below it; the numbers are "
        "unchanged.",
    ]
    unit = {"percent": "Accuracies in percent.", "share": "Accuracies as shares; columns are L2 radii."}
    for table in TABLES.values():
        parts += [f"## {table.name}", f"`{table.label}`, {table.place}. {table.caption}"]
        parts += [unit[table.unit]] if table.unit in unit else []
        parts.append(markdown_table(table.lines, table.keys).removesuffix("\n"))
        if table.defects:
            parts.append("\n".join(f"- {_about(defect)}{defect.text}" for defect in table.defects))
    return "\n\n".join(parts) + "\n"


def _about(defect: Defect) -> str:
    names = [", ".join(part) for part in (defect.rows, defect.columns) if part]
    return f"**{' / '.join(names)}**: " if names else ""
