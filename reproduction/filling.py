"""From a spec and its records to a document: plain JSON values, the same for the same records."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reproduction.differences import difference_lines, outcomes
from reproduction.jobs import job_id
from reproduction.matching import front_lines, standing
from reproduction.readings import number, trace
from reproduction.specs import Curve, Differences, Figure, Front, Ledger, Matrix, Reading, Seeds, Spec, Table, bill
from reproduction.spent import cost
from rhobust.records import Record


@dataclass(frozen=True)
class Gap:
    """Why there is no record."""

    text: str
    """One line."""
    absent: bool = False
    """Whether it was not made yet; else it could not be made, or is damaged."""


@dataclass(frozen=True)
class Question:
    """A reading, and what is made of it: a number, a curve, what it says of each image, or what the work cost."""

    read: Callable[[Reading, Record], Any]
    reading: Reading


Answers = Mapping[Question, dict[str, Any]]
"""What each question found, with the record it comes from, or the fault."""


def questions(spec: Spec) -> tuple[Question, ...]:
    """All that is to be read for a table or figure."""
    read = {
        Table: number,
        Matrix: number,
        Figure: trace,
        Front: standing,
        Differences: outcomes,
        Ledger: cost,
    }[type(spec)]
    return tuple(Question(read, reading) for reading in spec.readings)


def answers(asked: Iterable[Question], result: Record | Gap, out: Path) -> dict[Question, dict[str, Any]]:
    """What one record says to the questions about it.

    Args:
        asked: Questions about the same job.
        result: Its record, or why there is none.
        out: The folder that paths are told from.
    """
    return {question: _answer(question, result, out) for question in asked}


def fill(spec: Spec, found: Answers) -> dict[str, Any]:
    """The document of a table or figure; a number that cannot be read is left out and says why."""
    match spec:
        case Table():
            lines = [
                {
                    "keys": list(line.keys),
                    "cells": [
                        {
                            "column": cell.column,
                            "printed": cell.printed,
                            "ours": [
                                {"source": source, **_number(one, found)}
                                for source, one in zip(spec.sources, cell.ours, strict=True)
                            ],
                            "notes": list(cell.notes),
                        }
                        for cell in line.cells
                    ],
                }
                for line in spec.lines
            ]
            body: dict[str, Any] = {"keys": list(spec.keys), "sources": list(spec.sources), "lines": lines}
            body["flat"] = spec.flat
        case Figure():
            panels = [
                {
                    "title": panel.title,
                    "x": panel.x,
                    "y": panel.y,
                    "curves": [_curve(curve, found) for curve in panel.curves],
                }
                for panel in spec.panels
            ]
            body = {"columns": spec.columns, "panels": panels}
        case Matrix():
            cells = [[found[Question(number, reading)] for reading in row] for row in spec.rows]
            body = {"x": spec.x, "y": spec.y, "names": list(spec.names), "cells": cells}
        case Front():
            told = {reading: found[Question(standing, reading)] for reading in spec.readings}
            body = {"keys": ["method"], "sources": ["ours"], "lines": front_lines(spec, told), "flat": True}
        case Differences():
            told = {reading: found[Question(outcomes, reading)] for reading in spec.readings}
            body = {"keys": list(spec.keys), "sources": ["ours"], "lines": difference_lines(spec, told), "flat": True}
        case Ledger():
            works = {job_id(reading.job): found[Question(cost, reading)] for reading in spec.readings}
            tables = {table.name: [job_id(reading.job) for reading in bill(table)] for table in spec.tables}
            body = {"tables": tables, "works": works}
    head = {"name": spec.name, "title": spec.title}
    # Through JSON and back: what is drawn is what is written.
    return json.loads(json.dumps({**head, **body, "notes": list(spec.notes)}, allow_nan=False))


def faults(document: Any) -> list[str]:
    """Every line of a document that says why a number is missing, each once."""
    found: dict[str, None] = {}

    def note(text: str) -> str:
        found[text] = None
        return text

    _with_faults(document, note)
    return list(found)


def told_from(document: Any, folder: Path) -> Any:
    """The document with the paths in its faults told from a folder, so that it reads the same wherever that lies."""
    return _with_faults(document, lambda text: text.replace(f"{folder}/", ""))


def _with_faults(part: Any, told: Callable[[str], str]) -> Any:
    """A part of a document with each of its faults told another way."""
    if isinstance(part, dict):
        return {key: told(value) if key == "fault" else _with_faults(value, told) for key, value in part.items()}
    return [_with_faults(value, told) for value in part] if isinstance(part, list) else part


def _curve(curve: Curve, found: Answers) -> dict[str, Any]:
    head = {key: getattr(curve, key) for key in ("colour", "kind", "dash", "label", "falling")}
    if isinstance(curve.source, Reading):
        return {**head, **found[Question(trace, curve.source)]}
    x, y = ([point[axis] for point in curve.source] for axis in (0, 1))
    return {**head, "x": x, "y": y, "low": y, "high": y, "printed": True}


def _number(one: Reading | Seeds, found: Answers) -> dict[str, Any]:
    """A cell's number; of several seeds the mean, from the lowest end of their intervals to the highest."""
    if isinstance(one, Reading):
        return found[Question(number, one)]
    seeds = [found[Question(number, reading)] for reading in one.readings]
    there = [seed for seed in seeds if "fault" not in seed]
    if not there:
        return {**seeds[0], "seeds": seeds}
    return {
        "value": math.fsum(seed["value"] for seed in there) / len(there),
        "low": min(seed["low"] for seed in there),
        "high": max(seed["high"] for seed in there),
        "n": there[0]["n"],
        "way": there[0]["way"],
        "bound": there[0]["bound"],
        "record": " ".join(seed["record"] for seed in there),
        "warnings": list(dict.fromkeys(warning for seed in there for warning in seed["warnings"])),
        "seeds": seeds,
    }


def _answer(question: Question, result: Record | Gap, out: Path) -> dict[str, Any]:
    """What is read with the record it comes from, or the fault."""
    if isinstance(result, Gap):
        return _gap(result)
    try:
        found = asdict(question.read(question.reading, result))
    except ValueError as error:
        return _gap(Gap(" ".join(str(error).split())))
    except (KeyError, TypeError, StopIteration) as error:
        return _gap(Gap(f"{result.path} must hold what its kind holds, but {error!r} was met"))
    summary = result.summary or {}
    warnings = [*summary.get("warnings", []), *summary.get("contradictions", [])]
    return {**found, "record": result.path.relative_to(out).as_posix(), "warnings": warnings}


def _gap(gap: Gap) -> dict[str, Any]:
    return {"fault": gap.text, "absent": gap.absent}
