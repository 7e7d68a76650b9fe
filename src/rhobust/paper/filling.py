"""From a spec and its records to a document: plain JSON values, the same for the same records."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rhobust.records import Record

from .jobs import Job
from .readings import number, trace
from .specs import Curve, Figure, Matrix, Reading, Table

Results = Mapping[Job, Record | str]
"""Each job's record, or the line that says why there is none."""


def fill(spec: Table | Figure | Matrix, results: Results, out: Path) -> dict[str, Any]:
    """The document of a table or figure; a number that cannot be read is left out and says why.

    Args:
        spec: What is to be filled.
        results: The records.
        out: The folder that paths are told from.
    """
    head = {"name": spec.name, "title": spec.title}
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
                                {"source": source, **_read(number, reading, results, out)}
                                for source, reading in zip(spec.sources, cell.ours, strict=True)
                            ],
                            "notes": list(cell.notes),
                        }
                        for cell in line.cells
                    ],
                }
                for line in spec.lines
            ]
            body: dict[str, Any] = {"keys": list(spec.keys), "sources": list(spec.sources), "lines": lines}
        case Figure():
            panels = [
                {
                    "title": panel.title,
                    "x": panel.x,
                    "y": panel.y,
                    "falling": panel.falling,
                    "curves": [_curve(curve, results, out) for curve in panel.curves],
                }
                for panel in spec.panels
            ]
            body = {"columns": spec.columns, "panels": panels}
        case Matrix():
            cells = [[_read(number, reading, results, out) for reading in row] for row in spec.readings]
            body = {"x": spec.x, "y": spec.y, "names": list(spec.names), "cells": cells}
    # Through JSON and back: what is drawn is what is written.
    return json.loads(json.dumps({**head, **body, "notes": list(spec.notes)}, allow_nan=False))


def faults(document: Any) -> list[str]:
    """Every line of a document that says why a number is missing, each once."""
    found: dict[str, None] = {}

    def look(part: Any) -> None:
        if isinstance(part, dict):
            if isinstance(part.get("fault"), str):
                found[part["fault"]] = None
            for value in part.values():
                look(value)
        elif isinstance(part, list):
            for value in part:
                look(value)

    look(document)
    return list(found)


def _curve(curve: Curve, results: Results, out: Path) -> dict[str, Any]:
    head = {"colour": curve.colour, "kind": curve.kind, "dash": curve.dash}
    if isinstance(curve.source, Reading):
        return {**head, **_read(trace, curve.source, results, out)}
    x, y = curve.source
    return {**head, "x": [x], "y": [y], "low": [y], "high": [y], "printed": True}


def _read(read: Callable[[Reading, Record], Any], reading: Reading, results: Results, out: Path) -> dict[str, Any]:
    """What is read with the record it comes from, or the fault."""
    result = results[reading.job]
    if isinstance(result, str):
        return {"fault": result}
    try:
        found = asdict(read(reading, result))
    except ValueError as error:
        return {"fault": " ".join(str(error).split())}
    except (KeyError, TypeError, StopIteration) as error:
        return {"fault": f"{result.path} must hold what its kind holds, but {error!r} was met"}
    summary = result.summary or {}
    warnings = [*summary.get("warnings", []), *summary.get("contradictions", [])]
    return {**found, "record": result.path.relative_to(out).as_posix(), "warnings": warnings}
