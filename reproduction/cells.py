"""Cells of tables whose numbers are made of several records: a number, or why there is none."""

from dataclasses import asdict
from typing import Any

from reproduction.readings import Number


def cell(column: str, ours: dict[str, Any]) -> dict[str, Any]:
    """A cell without a printed number."""
    return {"column": column, "printed": None, "ours": [{"source": "ours", **ours}], "notes": []}


def shown(number: Number, *told: dict[str, Any]) -> dict[str, Any]:
    """A number with the records, and the warnings, of all that it was made of."""
    warnings = dict.fromkeys(warning for one in told for warning in one["warnings"])
    return {**asdict(number), "record": " ".join(one["record"] for one in told), "warnings": list(warnings)}


def fault(text: str) -> dict[str, Any]:
    """Why there is no number, where the records are there."""
    return {"fault": text, "absent": False}
