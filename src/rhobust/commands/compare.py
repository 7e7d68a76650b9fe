"""rhobust compare."""

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from rhobust.archives import opened
from rhobust.commands.options import Output, OutputOptions, print_table
from rhobust.files import check_output
from rhobust.formatting import Direction, format_interval, format_number, name_split, printable
from rhobust.measurements import comparison, is_record, partners, read_compared, write_tsv
from rhobust.proofs.procedures import NAMES_ON_DISK
from rhobust.records import Record, Row
from rhobust.report.runs import PageRecord
from rhobust.settings import check_declared, sizes

_NONE = "–"
"""Shown where a file says nothing."""

TableFormat = Literal["text", "markdown", "latex"]
"""How tables are shown."""


@dataclass(frozen=True)
class Compare:
    """Compare certified accuracy and robust accuracy under attack: run folders, records, tables.

    Folders are compared record by record: those of the first with those of the others made with the same settings.
    A file of the same images as the first, evaluated with the same settings, is compared with it image by image,
    which shows differences that two separate intervals cannot. Runs that differ in the seed of their training only are
    also summed up. A table of Cohen et al. identifies its images by index and label alone: that these mean the same
    images is for you to know.
    """

    files: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE [FILE ...]")]
    """Run folders, also inside archives (.tar.xz), records of certify and attack (.jsonl, .jsonl.gz) and tables of
    Cohen et al. (other names), which cannot be checked; each may have a name, NAME=FILE."""
    radii: tuple[float, ...] | None = None
    """Radii to compare at (default: those that were attacked or decided by a sequential test, which say nothing of
    others; else 0 to 1 by quarters)."""
    format: TableFormat = "text"
    """How tables are shown: text for a terminal, Markdown, or LaTeX (needs booktabs)."""
    tsv: Path | None = None
    """Write the one record that is given as a table of Cohen et al. here."""
    common: OutputOptions = Output()

    def __post_init__(self) -> None:
        check_declared(self)

    def run(self) -> dict[str, Any]:
        if not self.files:
            raise ValueError("at least one record or table must be given, got none")
        radii = None if self.radii is None else sizes("radii", self.radii)
        if self.tsv is not None:
            check_output("tsv", self.tsv)
        with opened(self.files, named=True) as found:
            if missing := [path for path in found.paths if not path.exists()]:
                raise ValueError(f"{missing[0]} must be a run folder, a record or a table, but there is no such file")
            if self.tsv is not None:
                if len(found.paths) != 1 or not is_record(found.paths[0]):
                    got = f"{len(found.paths)} files" if len(found.paths) != 1 else str(found.paths[0])
                    raise ValueError(f"--tsv must come with one record, got {got}")
                write_tsv(read_compared(found.paths[0]), self.tsv)
            comparisons: list[Row] = [
                {"title": _title(group), **comparison(group, radii)} for group in _groups(found.paths)
            ]
            for compared in comparisons:
                for one in compared["files"]:
                    path = Path(one["file"])
                    if (name := found.names.get(path) or found.names.get(path.parent)) is not None:
                        one["name"] = name
                    one["file"] = str(found.original(path))
                for one in compared.get("over_seeds", []):
                    one["files"] = [str(found.original(Path(file))) for file in one["files"]]
        return {"comparisons": comparisons}

    def show(self, result: dict[str, Any]) -> None:
        for place, one in enumerate(result["comparisons"]):
            if place:
                print()
            if one["title"] is not None:
                print(TITLES[self.format].format(printable(one["title"])))
            for table in _tables(one):
                PRINTERS[self.format](table)


def _groups(paths: Sequence[Path]) -> list[list[Record]]:
    if not any(path.is_dir() for path in paths):
        return [[read_compared(path) for path in paths]]
    if len(paths) == 1:
        raise ValueError(f"a run folder must be compared with another folder or file, got {paths[0]} alone")
    return partners(paths)


def _title(records: Sequence[Record]) -> str | None:
    """What is compared, where all records say the same of it; tables say nothing."""
    titles = {_evaluated(PageRecord(record, ())) for record in records if record.settings}
    return titles.pop() if len(titles) == 1 else None


def _evaluated(record: PageRecord) -> str:
    if record.kind == "attack":
        norm = {"linf": "L-infinity"}.get(record.norm, "L2")
        return f"Robust accuracy under {record.attack_name}, {norm}, {record.predictor_name}"
    procedure = NAMES_ON_DISK.get(str(record.settings.get("way")), "unknown")
    pairs = ", against each other class" if record.settings.get("stopping") == "pairwise" else ""
    return f"Certified accuracy, procedure {procedure}{pairs}, at most {record.most_samples:,} noise samples"


@dataclass(frozen=True)
class ComparedTable:
    """A table, the line above it and lines below it."""

    columns: list[str]
    rows: list[list[str]]
    left: int
    """Columns of words, which come first."""
    above: str = ""
    below: Sequence[str] = ()


def _tables(compared: Row) -> list[ComparedTable]:
    """What is shown of a comparison: every file, the differences from the first, and what seeds change."""
    files, radii = compared["files"], compared["radii"]
    names = _names(files)
    averaged = any("average_certified_radius" in one for one in files)
    at, average = [f"{radius:g}" for radius in radii], ["average radius"] * averaged
    rows = []
    for name, one in zip(names, files, strict=True):
        mean = one.get("average_certified_radius")
        averages = [_NONE if mean is None else format_number(mean, 4, "down")] * averaged
        rows.append([name, one["status"], *_accuracies(one, radii), *averages, str(one["n"])])
    found = [ComparedTable(["file", "status", *at, *average, "n"], rows, 2)]
    others = list(zip(names, files, strict=True))[1:]
    apart = [[name, *_at(one["against_first"], radii, _difference)] for name, one in others if "against_first" in one]
    if apart:
        above = f"Above {names[0]} on the same images, with 95% intervals over images:"
        found.append(ComparedTable(["file", *at], apart, 1, above))
    reasons = [
        f"{name} is not compared image by image: {one['not_compared']}" for name, one in others if "not_compared" in one
    ]
    found[-1] = replace(found[-1], below=reasons)
    if spreads := compared.get("over_seeds"):
        given = {one["file"]: one["name"] for one in files if "name" in one}
        rows = [_seed_row(one, radii, given, averaged=averaged) for one in spreads]
        above = "Runs that differ in the seed of their training only, mean ± standard deviation over runs:"
        found.append(ComparedTable(["runs", "seeds", *at, *average], rows, 2, above))
    return found


def _names(files: Sequence[Row]) -> list[str]:
    """Names as given, else short ones: paths from the folder on that holds all files."""
    paths = [Path(one["file"]).absolute() for one in files]
    shared = os.path.commonpath([path.parent for path in paths])
    short = [path.relative_to(shared).as_posix() for path in paths]
    times = Counter(one["name"] for one in files if "name" in one)
    names = [
        path if "name" not in one else f"{one['name']} ({path})" if times[one["name"]] > 1 else one["name"]
        for one, path in zip(files, short, strict=True)
    ]
    return [
        f"{name}, {name_split(one['split'])} images" if "split" in one else name
        for one, name in zip(files, names, strict=True)
    ]


def _accuracies(one: Row, radii: Sequence[float]) -> list[str]:
    """The accuracy at each radius; what is certified is never rounded up."""
    name, direction = _quantity(one)
    return _at(one[name], radii, lambda point: format_number(point["accuracy"], 3, direction))


def _quantity(one: Row) -> tuple[str, Direction]:
    """The accuracy that a file or a group of runs has, and how it is rounded."""
    certified = "certified_accuracy" in one
    return ("certified_accuracy", "down") if certified else ("robust_accuracy", "nearest")


def _seed_row(one: Row, radii: Sequence[float], names: dict[str, str], *, averaged: bool) -> list[str]:
    """Mean and deviation of some runs, under the names that the user gave to them, else those of their folders."""
    name, direction = _quantity(one)

    def spread(point: Row, digits: int = 3) -> str:
        mean = format_number(point["mean"], digits, direction)
        return f"{mean} ± {format_number(point['deviation'], digits, 'up')}"

    called = ", ".join(dict.fromkeys(names.get(file) or Path(file).parent.name for file in one["files"]))
    average = one.get("average_certified_radius")
    averages = [_NONE if average is None else spread(average, 4)] * averaged
    return [called, ", ".join(map(str, one["seeds"])), *_at(one[name], radii, spread), *averages]


def _at(points: Sequence[Row], radii: Sequence[float], shown: Callable[[Row], str]) -> list[str]:
    """What is shown at each radius, with a dash where nothing is known."""
    found = {point["radius"]: shown(point) for point in points}
    return [found.get(radius, _NONE) for radius in radii]


def _difference(point: Row) -> str:
    return f"{format_number(point['difference'], 3, 'nearest')} ({format_interval(point['low'], point['high'], 3)})"


def _print_text(table: ComparedTable) -> None:
    if table.above:
        print(f"\n{printable(table.above)}")
    print_table(table.columns, table.rows, left=table.left)
    for line in table.below:
        print(printable(line))


MARKDOWN, MASKED = re.compile(r"([\\|`*_<])"), r"\\\1"
"""Letters that Markdown would obey, and what they become."""


def _print_markdown(table: ComparedTable) -> None:
    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(MARKDOWN.sub(MASKED, printable(cell)) for cell in cells)} |"

    if table.above:
        print(f"\n{printable(table.above)}\n")
    numbers = len(table.columns) - table.left
    print(line(table.columns), f"| {' | '.join([':---'] * table.left + ['---:'] * numbers)} |", sep="\n")
    for row in table.rows:
        print(line(row))
    for below in table.below:
        print(f"\n{printable(below)}")


_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--"}
_LATEX |= {letter: f"\\{letter}" for letter in "&%$#_{}"}


def _print_latex(table: ComparedTable) -> None:
    def line(cells: Sequence[str]) -> str:
        texts = ["".join(_LATEX.get(letter, letter) for letter in printable(cell)) for cell in cells]
        return " & ".join(re.sub(r"(?<![\w.])-(?=\d)", "$-$", text) for text in texts) + r" \\"

    for above in (table.above, *table.below):
        if above:
            print(f"% {printable(above)}")
    print(rf"\begin{{tabular}}{{{'l' * table.left}{'r' * (len(table.columns) - table.left)}}}")
    print(r"\toprule", line(table.columns), r"\midrule", *map(line, table.rows), r"\bottomrule", sep="\n")
    print(r"\end{tabular}")


TITLES: dict[TableFormat, str] = {"text": "{}:", "markdown": "{}:\n", "latex": "% {}:"}
"""The line above what is compared, by format."""
PRINTERS: dict[TableFormat, Callable[[ComparedTable], None]] = {
    "text": _print_text,
    "markdown": _print_markdown,
    "latex": _print_latex,
}
"""How a table is shown, by format."""

COMMAND = Compare
