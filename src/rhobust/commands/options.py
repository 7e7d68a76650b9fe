"""Options that every command takes, and how results are printed."""

from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from rhobust.progress import Report, silent
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
    def report(self) -> Report | None:
        """Where progress goes."""
        return silent if self.quiet else None


CommonOptions = Annotated[Common, tyro.conf.arg(name="")]


def record_document(record: Record) -> dict[str, Any]:
    """What a command prints of a record under --json."""
    return {"record": str(record.path), "kind": record.kind, "settings": record.settings, "summary": record.summary}


def print_table(columns: list[str], rows: list[list[str]], *, left: int = 1) -> None:
    """Print a table to standard output; the first `left` columns are words, the rest numbers."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < left else "right", no_wrap=left == 1)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
