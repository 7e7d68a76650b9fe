"""A filled table as Markdown for people and as CSV for programs."""

import csv
import io
from typing import Any

from rhobust.rounding import rounded

DIGITS = 4
"""Digits of a number in a table: those of the paper's shares."""
INTERVAL_DIGITS = 3
"""Digits of an interval, which is rounded outward."""
LEGEND = "Behind a number: its 95% interval. [1] leads to a note."


def markdown(document: dict[str, Any]) -> str:
    """The table with the printed number, ours, n and the interval; defects and stand-ins stand below it."""
    columns = list(dict.fromkeys(cell["column"] for line in document["lines"] for cell in line["cells"]))
    marks: dict[str, int] = {}
    head = [*document["keys"], "", *columns, "n"]
    rule = ["---"] * (len(document["keys"]) + 1) + ["---:"] * (len(columns) + 1)
    rows = [head, rule]
    for line in document["lines"]:
        cells = {cell["column"]: cell for cell in line["cells"]}
        first = len(rows)
        if any(cell["printed"] is not None for cell in line["cells"]):
            rows.append(["printed", *(_printed(cells.get(column), marks) for column in columns), ""])
        for place, source in enumerate(document["sources"]):
            ours = {column: cell["ours"][place] for column, cell in cells.items()}
            counts = sorted({number["n"] for number in ours.values() if "n" in number})
            texts = [_ours(ours.get(column), marks) for column in columns]
            rows.append([source, *texts, "/".join(map(str, counts))])
        # The keys stand once, before the first of the rows that belong together.
        blank = [""] * len(line["keys"])
        rows[first:] = [[*(blank if place else line["keys"]), *row] for place, row in enumerate(rows[first:])]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    notes = [f"- {note}" for note in document["notes"]] + [f"- [{mark}] {text}" for text, mark in marks.items()]
    parts = [f"# {document['name']}: {document['title']}", "\n".join(lines), LEGEND]
    return "\n\n".join([*parts, *(["\n".join(notes)] if notes else [])]) + "\n"


def comma_separated(document: dict[str, Any]) -> str:
    """One line a cell and source, unrounded, with the record it comes from."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*document["keys"], "column", "printed", "source", "value", "low", "high", "n", "record", "fault"])
    for line in document["lines"]:
        for cell in line["cells"]:
            for ours in cell["ours"]:
                found = [ours.get(key, "") for key in ("value", "low", "high", "n", "record", "fault")]
                printed = "" if cell["printed"] is None else cell["printed"]
                writer.writerow([*line["keys"], cell["column"], printed, ours["source"], *found])
    return buffer.getvalue()


def _printed(cell: dict[str, Any] | None, marks: dict[str, int]) -> str:
    if cell is None or cell["printed"] is None:
        return ""
    return f"{cell['printed']:.{DIGITS}f}" + "".join(_mark(note, marks) for note in cell["notes"])


def _ours(number: dict[str, Any] | None, marks: dict[str, int]) -> str:
    if number is None:
        return ""
    if "fault" in number:
        return f"missing{_mark(number['fault'], marks)}"
    text = rounded(number["value"], DIGITS, number["way"])
    if number["way"] == "nearest" and number["low"] != number["high"]:
        low, high = rounded(number["low"], INTERVAL_DIGITS, "down"), rounded(number["high"], INTERVAL_DIGITS, "up")
        text += f" ({low} to {high})"
    return text + "".join(_mark(warning, marks) for warning in number["warnings"])


def _mark(text: str, marks: dict[str, int]) -> str:
    return f" [{marks.setdefault(text, len(marks) + 1)}]"
