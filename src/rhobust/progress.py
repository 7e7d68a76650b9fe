"""Progress of long work, on standard error: a bar on a terminal, a plain line now and then in a log."""

import sys
import time
from types import TracebackType
from typing import Any, Self

LOG_EVERY = 30.0
"""Seconds between plain lines where there is no terminal."""


class Progress:
    """Counts work that is done; a context manager.

    Args:
        label: What is going on, in a few words.
        total: How many units there are.
        quiet: Show nothing at all.
        done: Units that were done before, in a resumed job.
    """

    def __init__(self, label: str, total: int, *, quiet: bool = False, done: int = 0) -> None:
        self.label, self.total, self.done = label, total, done
        self._quiet = quiet
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        self._start = self._last = time.monotonic()
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
            )
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self.label, total=self.total, completed=self.done, note="")
        return self

    def advance(self, units: int = 1, note: str = "") -> None:
        """Count units as done; the note stands beside the bar."""
        self.done += units
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, note=note)
        elif not self._quiet and time.monotonic() - self._last >= LOG_EVERY:
            self._last = time.monotonic()
            self._line(note)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        if not self._quiet and kind is None:
            self._line(f"{time.monotonic() - self._start:.1f} s")

    def _line(self, note: str) -> None:
        sys.stderr.write(f"{self.label}: {self.done}/{self.total}{'  ' + note if note else ''}\n")
        sys.stderr.flush()
