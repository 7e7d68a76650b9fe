"""From a table or figure and its records to a document: plain JSON values, the same for the same records."""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from reproduction.metrics import Number, Outcomes, Reader, curve, matched, number, per_image, seconds
from reproduction.specs import (
    AnySpec,
    CostTable,
    Curve,
    Differences,
    Figure,
    Job,
    Matrix,
    Metric,
    Pair,
    ParetoTable,
    Seeds,
    Table,
    costs,
)
from rhobust.measurements import CERTIFIED, ROBUST
from rhobust.stats import mean_difference, share, share_difference

Answer = dict[str, Any]


@dataclass(frozen=True)
class Gap:
    """Why there is no record."""

    text: str
    """One line."""
    absent: bool = False
    """Whether it was not made yet; else it could not be made, or is damaged."""

    def as_answer(self) -> Answer:
        """The gap in the place of a number."""
        return {"fault": self.text, "absent": self.absent}


@dataclass(frozen=True)
class Question:
    """A metric and how it is read: as a number, a curve, outcomes of single images, or seconds."""

    read: Callable[[Metric, Reader], Any]
    metric: Metric


Answers = Mapping[Question, Answer]
"""What each question found, with the record it comes from, or the fault."""
_READ: dict[type, Callable[[Metric, Reader], Any]] = {
    Table: number,
    Matrix: number,
    Figure: curve,
    ParetoTable: per_image,
    Differences: per_image,
    CostTable: seconds,
}


def questions(spec: AnySpec) -> tuple[Question, ...]:
    """All that is to be read for a table or figure."""
    return tuple(Question(_READ[type(spec)], metric) for metric in spec.metrics)


def answers(asked: Iterable[Question], reader: Reader | Gap, place: str) -> dict[Question, Answer]:
    """What one record says to the questions about it."""
    return {question: _answer(question, reader, place) for question in asked}


def _answer(question: Question, reader: Reader | Gap, place: str) -> Answer:
    if isinstance(reader, Gap):
        return reader.as_answer()
    try:
        found = asdict(question.read(question.metric, reader))
    except ValueError as error:
        return Gap(" ".join(str(error).split())).as_answer()
    except (KeyError, TypeError, StopIteration) as error:
        return Gap(f"{reader.record.path} must hold what its kind holds, but {error!r} was met").as_answer()
    summary = reader.record.summary or {}
    stored = [*summary.get("warnings", []), *summary.get("contradictions", [])]
    # Records of the first release say it in a word of their own.
    warnings = [re.sub(r" left \w+ at radius ", " did not break at radius ", warning) for warning in stored]
    return {**found, "record": place, "warnings": warnings}


def fill(spec: AnySpec, found: Answers) -> dict[str, Any]:
    """The document of a table or figure; a number that cannot be read is left out and says why."""
    match spec:
        case Table():
            body = _table(spec.keys, spec.sources, _lines(spec, found), flat=spec.flat)
        case ParetoTable():
            body = _table(("method",), ("ours",), _pareto_lines(spec, found), flat=True)
        case Differences():
            lines = [
                _line(keys, [_cell(pair.column, _difference(pair, found)) for pair in pairs])
                for keys, pairs in spec.lines
            ]
            body = _table(spec.keys, ("ours",), lines, flat=True)
        case CostTable():
            body = _table(("table",), ("ours",), _cost_lines(spec, found), flat=True)
            body["missing"] = [answer for answer in map(found.get, questions(spec)) if answer and "fault" in answer]
        case Figure():
            panels = [
                {"title": one.title, "x": one.x, "y": one.y, "curves": [_curve(each, found) for each in one.curves]}
                for one in spec.panels
            ]
            body = {"columns": spec.columns, "panels": panels}
        case Matrix():
            cells = [[found[Question(number, metric)] for metric in row] for row in spec.rows]
            body = {"x": spec.x, "y": spec.y, "names": list(spec.names), "cells": cells}
    document = {"name": spec.name, "title": spec.title, **body, "notes": list(spec.notes)}
    # Through JSON and back: what is drawn is what is written.
    return json.loads(json.dumps(document, allow_nan=False))


def faults(document: Any) -> list[str]:
    """Every line of a document that says why a number is missing, each once."""
    if isinstance(document, dict):
        own = [document["fault"]] if "fault" in document and not document.get("undefined") else []
        return list(dict.fromkeys(own + [text for part in document.values() for text in faults(part)]))
    return list(dict.fromkeys(text for part in document for text in faults(part))) if isinstance(document, list) else []


def _table(keys: Sequence[str], sources: Sequence[str], lines: list[Answer], *, flat: bool) -> Answer:
    return {"keys": list(keys), "sources": list(sources), "lines": lines, "flat": flat}


def _line(keys: Sequence[str], cells: list[Answer]) -> Answer:
    return {"keys": list(keys), "cells": cells}


def _cell(column: str, ours: Answer) -> Answer:
    """A cell without a reported number."""
    return {"column": column, "reported": None, "ours": [{"source": "ours", **ours}], "notes": []}


def _lines(spec: Table, found: Answers) -> list[Answer]:
    return [
        _line(
            line.keys,
            [
                {
                    "column": cell.column,
                    "reported": cell.reported,
                    "ours": [
                        {"source": source, **_number(one, found)}
                        for source, one in zip(spec.sources, cell.ours, strict=True)
                    ],
                    "notes": list(cell.notes),
                }
                for cell in line.cells
            ],
        )
        for line in spec.lines
    ]


def _number(one: Metric | Seeds, found: Answers) -> Answer:
    """A cell's number; of several seeds the mean, from the lowest end of their intervals to the highest."""
    if isinstance(one, Metric):
        return found[Question(number, one)]
    seeds = [found[Question(number, metric)] for metric in one.metrics]
    there = [seed for seed in seeds if "fault" not in seed]
    if not there:
        return {**seeds[0], "seeds": seeds}
    return {
        "value": math.fsum(seed["value"] for seed in there) / len(there),
        "low": min(seed["low"] for seed in there),
        "high": max(seed["high"] for seed in there),
        "n": there[0]["n"],
        "direction": there[0]["direction"],
        "bound": there[0]["bound"],
        "record": " ".join(seed["record"] for seed in there),
        "warnings": list(dict.fromkeys(warning for seed in there for warning in seed["warnings"])),
        "seeds": seeds,
    }


def _combined(one: Number, *parts: Answer) -> Answer:
    """A number with the records, and the warnings, of all that it was made of."""
    warnings = dict.fromkeys(warning for part in parts for warning in part["warnings"])
    return {**asdict(one), "record": " ".join(part["record"] for part in parts), "warnings": list(warnings)}


def _difference(pair: Pair, found: Answers) -> Answer:
    """The paired difference, or why there is none."""
    ours, theirs = (found[Question(per_image, metric)] for metric in (pair.ours, pair.theirs))
    for one in (ours, theirs):
        if "fault" in one:
            return one
    if ours["images"] != theirs["images"]:
        return Gap("two networks must be evaluated on the same images to be compared, and they were not").as_answer()
    compare = share_difference if pair.ours.quantity in (ROBUST, CERTIFIED) else mean_difference
    try:
        apart = compare(*(one["values"][metric.at] for one, metric in ((ours, pair.ours), (theirs, pair.theirs))))
    except ValueError as error:
        return Gap(str(error)).as_answer()
    return _combined(Number(apart.value, apart.low, apart.high, apart.n), ours, theirs)


def _pareto_lines(spec: ParetoTable, found: Answers) -> list[Answer]:
    """The natural accuracy of a baseline, then for each radius its accuracy, the family's, and the difference."""
    members = [found[Question(per_image, metric)] for _, metric in spec.members]
    lines = []
    for name, metric in spec.baselines:
        baseline = found[Question(per_image, metric)]
        cells = [_cell("natural", _share(baseline, 0.0))]
        for radius in spec.radii:
            ours, difference = _matched(members, baseline, radius)
            cells.append(_cell(f"at {radius:g}", _share(baseline, radius)))
            cells.append(_cell(f"{spec.family}, at {radius:g}", ours))
            cells.append(_cell(f"difference at {radius:g}", difference))
        lines.append(_line([name], cells))
    return lines


def _matched(members: Sequence[Answer], baseline: Answer, radius: float) -> tuple[Answer, Answer]:
    """The family's accuracy and the difference, or why there is none."""
    for one in (baseline, *members):
        if "fault" in one:
            return one, one
    if any(member["images"] != baseline["images"] for member in members):
        gap = Gap("methods must be attacked on the same images to be compared, and they were not").as_answer()
        return gap, gap
    try:
        value, difference = matched([_outcomes(member, radius) for member in members], _outcomes(baseline, radius))
    except ValueError as error:
        # The family does not reach this natural accuracy: there is no such number, so none is missing.
        undefined = {**Gap(str(error)).as_answer(), "undefined": True}
        return undefined, undefined
    own = _combined(Number(value, value, value, difference.n), *members)
    return own, _combined(difference, baseline, *members)


def _outcomes(one: Answer, radius: float) -> Outcomes:
    return np.array([one["values"][0.0], one["values"][radius]], dtype=np.float64)


def _share(one: Answer, radius: float) -> Answer:
    if "fault" in one:
        return one
    robust = one["values"][radius]
    counted = share(round(sum(robust)), len(robust))
    return _combined(Number(counted.value, counted.low, counted.high, counted.n), one)


def _cost_lines(spec: CostTable, found: Answers) -> list[Answer]:
    """Finished trainings and evaluations of each table, and of all, and their minutes."""
    jobs = {table.name: [metric.job for metric in costs(table)] for table in spec.tables}
    jobs["all of these, each once"] = [metric.job for metric in spec.metrics]
    taken = {question.metric.job: answer for question, answer in found.items() if question.read is seconds}
    return [_line([name], _cost_cells(own, taken)) for name, own in jobs.items()]


def _cost_cells(jobs: Sequence[Job], taken: Mapping[Job, Answer]) -> list[Answer]:
    cells, minutes = [], []
    for word, training in (("trainings", True), ("evaluations", False)):
        planned = [taken[job] for job in jobs if (job.evaluation is None) == training]
        there = [one for one in planned if "fault" not in one]
        cells.append(_cell(word, _exact(len(there), 0)))
        # The wall time of resumed evaluations is unknown and counts as 0.
        minutes.append(math.fsum(one["seconds"] or 0.0 for one in there) / 60)
    named = zip(("training, min", "evaluation, min", "total, min"), (*minutes, math.fsum(minutes)), strict=True)
    return [*cells, *(_cell(column, _exact(value, 1)) for column, value in named)]


def _exact(value: float, digits: int) -> Answer:
    """A number without an interval, and how many digits of it are shown."""
    shown = {"value": value, "low": value, "high": value, "direction": "nearest", "bound": False}
    return {**shown, "digits": digits, "record": "", "warnings": []}


def _curve(one: Curve, found: Answers) -> Answer:
    head = {key: getattr(one, key) for key in ("colour", "kind", "dash", "label", "falling")}
    if isinstance(one.source, Metric):
        return {**head, **found[Question(curve, one.source)]}
    x, y = ([point[axis] for point in one.source] for axis in (0, 1))
    return {**head, "x": x, "y": y, "low": y, "high": y, "reported": True}
