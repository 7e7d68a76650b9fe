"""Tables as Markdown for people and as CSV for programs."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rhobust.files import write_whole
from rhobust.formatting import format_interval, format_number

NOTHING = "Not measured yet."
DIGITS = 4
"""Digits of a number in a table: those of the paper's shares."""
INTERVAL_DIGITS = 3
"""Digits of an interval, which is rounded outward."""
LEGEND, MARKS = "In brackets: the 95% interval.", " [1] refers to a note."


def markdown_table(rows: Iterable[Sequence[str]], left: int) -> str:
    """Rows of cells as a table; the first row is the head, the first `left` columns are words."""
    head, *body = rows
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, rule, *body))


def csv_table(rows: Iterable[Iterable[Any]]) -> str:
    """Rows of cells as CSV; None is an empty cell."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()


def write_table(path: Path, page: str, cells: str) -> list[Path]:
    """Write a table for programs at a path that ends in .csv, and for people next to it."""
    write_whole(path.with_suffix(".md"), page)
    write_whole(path, cells)
    return [path, path.with_suffix(".md")]


def markdown(document: dict[str, Any]) -> str:
    """A table as a page of its own."""
    return f"# {document['name']}: {document['title']}\n\n{block(document)}\n"


def comma_separated(document: dict[str, Any]) -> str:
    """One line per cell and source, unrounded, with the record it comes from."""
    read = ("value", "low", "high", "n", "record", "fault")
    rows = [
        [*line["keys"], cell["column"], cell["reported"], ours["source"], *map(ours.get, read)]
        for line in document["lines"]
        for cell in line["cells"]
        for ours in cell["ours"]
    ]
    return csv_table([[*document["keys"], "column", "reported", "source", *read], *rows])


def block(document: dict[str, Any]) -> str:
    """What a page shows below the title: the table, and below it defects, surrogate data sets and what is missing.

    Rows without a number of ours are left out of the table and named below it.
    """
    columns = list(dict.fromkeys(cell["column"] for line in document["lines"] for cell in line["cells"]))
    marks: dict[str, int] = {}
    rows, absent = (_flat if document["flat"] else _stacked)(document, columns, marks)
    if len(rows) == 1:
        return NOTHING
    notes = [f"- {note}" for note in document["notes"]]
    if absent:
        notes.append(f"- Not measured yet: {'; '.join(absent)}.")
    notes += [f"- [{mark}] {text}" for text, mark in marks.items()]
    # A source of stacked rows is a word too.
    table = markdown_table(rows, len(document["keys"]) + (not document["flat"])).removesuffix("\n")
    legend = (LEGEND if "(" in "".join(cell for row in rows[1:] for cell in row[1:]) else "") + (MARKS if marks else "")
    return "\n\n".join(part for part in (table, legend.strip(), "\n".join(notes)) if part)


Rows = list[list[str]]


def _stacked(document: dict[str, Any], columns: list[str], marks: dict[str, int]) -> tuple[Rows, list[str]]:
    """A line as one row for the reported numbers and one per source, with its n in the last column."""
    keys = document["keys"]
    rows: Rows = [[*keys, "", *columns, "n"]]
    absent = []
    for line in document["lines"]:
        cells = {cell["column"]: cell for cell in line["cells"]}
        sources = {
            source: {column: cell["ours"][place] for column, cell in cells.items()}
            for place, source in enumerate(document["sources"])
        }
        there = {source: ours for source, ours in sources.items() if not _nothing(ours.values())}
        absent += [(line, source) for source in sources if source not in there]
        found = []
        if there and any(cell["reported"] is not None for cell in line["cells"]):
            found.append(["reported", *(_reported(cells.get(column), marks) for column in columns), ""])
        for source, ours in there.items():
            found.append([source, *(_ours(ours.get(column), marks) for column in columns), _count(ours.values())])
        # The keys are shown once, in the first of the rows that belong together.
        blank = [""] * len(keys)
        rows += [[*(blank if place else line["keys"]), *row] for place, row in enumerate(found)]
    return rows, _names(absent, document["sources"])


def _flat(document: dict[str, Any], columns: list[str], marks: dict[str, int]) -> tuple[Rows, list[str]]:
    """A line as one row; reported numbers have a column of their own, and n is in the head."""
    head, keys = [], document["keys"]
    cells = [cell for line in document["lines"] for cell in line["cells"]]
    reported = {cell["column"] for cell in cells if cell["reported"] is not None}
    for column in columns:
        count = _count([ours for cell in cells if cell["column"] == column for ours in cell["ours"]])
        head += [f"{column}, reported"] if column in reported else []
        head.append(f"{column} (n {count})" if count else column)
    rows: Rows = [[*keys, *head]]
    absent = []
    for line in document["lines"]:
        own = {cell["column"]: cell for cell in line["cells"]}
        if _nothing([ours for cell in line["cells"] for ours in cell["ours"]]):
            absent.append((line, document["sources"][0]))
            continue
        row = list(line["keys"])
        for column in columns:
            row += [_reported(own.get(column), marks)] if column in reported else []
            row.append(_ours(own[column]["ours"][0] if column in own else None, marks))
        rows.append(row)
    return rows, _names(absent, document["sources"])


def _nothing(numbers: Any) -> bool:
    """Whether nothing of this was measured yet; what is damaged or did not converge is something."""
    return all(number.get("absent") for number in numbers)


def _names(absent: Sequence[tuple[dict[str, Any], str]], sources: Sequence[str]) -> list[str]:
    """The lines that are missing, and of a line of which something is there the sources that are missing."""
    named: dict[str, list[str]] = {}
    for line, source in absent:
        named.setdefault(" / ".join(line["keys"]), []).append(source)
    return [name if len(gone) == len(sources) else f"{name} ({', '.join(gone)})" for name, gone in named.items()]


def _count(numbers: Any) -> str:
    return "/".join(map(str, sorted({number["n"] for number in numbers if "n" in number})))


def _reported(cell: dict[str, Any] | None, marks: dict[str, int]) -> str:
    if cell is None or cell["reported"] is None:
        return ""
    return f"{cell['reported']:.{DIGITS}f}" + "".join(_mark(note, marks) for note in cell["notes"])


def _ours(number: dict[str, Any] | None, marks: dict[str, int]) -> str:
    if number is None:
        return ""
    if "fault" in number:
        return "not yet" if number["absent"] else f"missing{_mark(number['fault'], marks)}"
    text = format_number(number["value"], number.get("digits", DIGITS), number["direction"])
    if not number["bound"] and number["low"] != number["high"]:
        text += f" ({format_interval(number['low'], number['high'], INTERVAL_DIGITS)})"
    text += "".join(_mark(warning, marks) for warning in number["warnings"])
    seeds = [_seed(seed, number["direction"], marks) for seed in number.get("seeds", [])]
    return f"{text}<br>{' '.join(seeds)}" if seeds else text


def _seed(seed: dict[str, Any], direction: Any, marks: dict[str, int]) -> str:
    return _ours(seed, marks) if "fault" in seed else format_number(seed["value"], DIGITS, direction)


def _mark(text: str, marks: dict[str, int]) -> str:
    return f" [{marks.setdefault(text, len(marks) + 1)}]"
