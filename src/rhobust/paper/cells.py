"""Cells of tables whose numbers are made of several records: a number, or why there is none."""

from dataclasses import asdict
from typing import Any

from .readings import Number


def cell(column: str, ours: dict[str, Any]) -> dict[str, Any]:
    """A cell without a printed number."""
    return {"column": column, "printed": None, "ours": [{"source": "ours", **ours}], "notes": []}


def shown(number: Number, told: dict[str, Any]) -> dict[str, Any]:
    """A number with the record, and the warnings, of one of those that it was made of."""
    return {**asdict(number), "record": told["record"], "warnings": told["warnings"]}


def fault(text: str) -> dict[str, Any]:
    """Why there is no number, where the records are there."""
    return {"fault": text, "absent": False}
