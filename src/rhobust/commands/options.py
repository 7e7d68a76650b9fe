"""Options that every command takes, and how results are printed."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from rhobust.progress import ProgressCallback, no_progress
from rhobust.records import Record


@dataclass(frozen=True)
class Common:
    """What every command takes."""

    device: str = "auto"
    """auto (the GPU where there is one), cpu, cuda, cuda:1, ..."""
    json: bool = False
    """Print one JSON document and nothing else on standard output."""
    quiet: bool = False
    """Show no progress."""

    @property
    def progress(self) -> ProgressCallback | None:
        """Where progress goes."""
        return no_progress if self.quiet else None


@dataclass(frozen=True)
class Writing(Common):
    """What every command takes that trains or writes records."""

    wait: bool = False
    """Wait for another process that is writing the same record or run; default: leave with one line and exit code 2."""


CommonOptions = Annotated[Common, tyro.conf.arg(name="")]
WritingOptions = Annotated[Writing, tyro.conf.arg(name="")]


def record_document(record: Record) -> dict[str, Any]:
    """What a command prints of a record under --json."""
    return {"record": str(record.path), "kind": record.kind, "settings": record.settings, "summary": record.summary}


def print_table(columns: list[str], rows: list[list[str]], *, left: int = 1) -> None:
    """Print a table to standard output; the first `left` columns are words, the rest numbers."""
    widths = [max(len(row[number]) for row in [columns, *rows]) for number in range(len(columns))]
    for row in [columns, *rows]:
        words = [cell.ljust(width) for cell, width in zip(row[:left], widths[:left], strict=True)]
        numbers = [cell.rjust(width) for cell, width in zip(row[left:], widths[left:], strict=True)]
        print("  ".join([*words, *numbers]).rstrip())


def print_warnings(warnings: Iterable[str]) -> None:
    """Print reasons not to trust a result, one per line."""
    for warning in warnings:
        print(f"warning: {warning}")
