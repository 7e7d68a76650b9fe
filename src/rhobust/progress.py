"""Progress callbacks, and the default display: bars on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace

from rhobust.formatting import printable

LOG_EVERY = 30.0
"""Seconds after which a log without a terminal gets a line at the latest."""
LEFT = " left"
"""End of a note that says how much time is left."""
NAMED, BESIDE = 12, 12
"""Letters of a task's name that are shown at least; what bar, time and spaces take at least."""


@dataclass(frozen=True)
class ProgressEvent:
    """The progress of a task."""

    task: str
    """Name of the task; the same for all its events."""
    done: int
    """Units done."""
    total: int | None
    """Units in total; None if unknown."""
    unit: str
    """Unit: "bytes", "images", "epochs"."""
    note: str = ""
    """Short status text."""


ProgressCallback = Callable[[ProgressEvent | str], None]
"""Receives every progress event and every message."""


def no_progress(_: ProgressEvent | str) -> None:
    """Ignore all events."""


def progress_or_default(progress: ProgressCallback | None) -> AbstractContextManager[ProgressCallback]:
    """The given callback; None: one that shows progress on stderr."""
    return show_progress() if progress is None else nullcontext(progress)


@contextmanager
def show_progress() -> Iterator[ProgressCallback]:
    """A callback that shows progress on stderr: bars on a terminal; elsewhere a line per quarter or half a minute.

    Nothing is written or imported before the first event.
    """
    with ExitStack() as stack:
        display: ProgressCallback | None = None

        def progress(event: ProgressEvent | str) -> None:
            nonlocal display
            if display is None:
                display = _display(stack)
            # Names of files and networks reach the terminal here.
            display(printable(event) if isinstance(event, str) else replace(event, task=printable(event.task)))

        yield progress


def _display(stack: ExitStack) -> ProgressCallback:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Remaining(TimeRemainingColumn):
        def render(self, task: Task) -> Text:
            return Text() if task.fields["amount"].endswith(LEFT) else super().render(task)

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if not console.is_terminal:
        return _plain(lambda line: console.print(line, markup=False))
    bars = stack.enter_context(
        Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[amount]}"),
            Remaining(),
            console=console,
        )
    )
    tasks = {}

    def draw(event: ProgressEvent | str) -> None:
        if isinstance(event, str):
            console.print(event, markup=False)
            return
        if event.task not in tasks:
            tasks[event.task] = bars.add_task(event.task, total=event.total, amount="")
        amount = _amount(event)
        width = max(NAMED, console.width - len(amount) - BESIDE)
        name = event.task if len(event.task) <= width else f"{event.task[: width - 1]}…"
        bars.update(tasks[event.task], completed=event.done, total=event.total, description=name, amount=amount)

    return draw


def _plain(write: Callable[[str], None]) -> ProgressCallback:
    written: dict[str, tuple[int, float]] = {}

    def draw(event: ProgressEvent | str) -> None:
        if isinstance(event, str):
            write(event)
            return
        quarter, now = (4 * event.done // event.total if event.total else 0), time.monotonic()
        before = written.get(event.task)
        if before is None or before[0] != quarter or now - before[1] >= LOG_EVERY:
            written[event.task] = (quarter, now)
            write(f"{event.task}: {_amount(event)}")

    return draw


def _amount(event: ProgressEvent) -> str:
    def text(count: int) -> str:
        return f"{count / 1e6:.1f} MB" if event.unit == "bytes" else f"{count:,}"

    amount = text(event.done) if event.total is None else f"{text(event.done)} of {text(event.total)}"
    if event.unit != "bytes":
        amount += f" {event.unit}"
    return f"{amount}  {event.note}" if event.note else amount
