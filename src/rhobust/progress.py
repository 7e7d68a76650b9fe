"""What long work tells while it runs, and one way to show it: a bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass

LOG_EVERY = 30.0
"""Seconds after which a log without a terminal gets a line even if little was done."""


@dataclass(frozen=True)
class ProgressEvent:
    """How far a piece of work is."""

    task: str
    """What is being done; the same text until it is done."""
    done: int
    """How much of it, in `unit`."""
    total: int | None
    """How much there is; None when nobody said."""
    unit: str
    """What is counted: "bytes", "images", "epochs"."""
    note: str = ""
    """A few words on how it goes."""


ProgressCallback = Callable[[ProgressEvent | str], None]
"""Takes every step and every line worth telling."""


def no_progress(_: ProgressEvent | str) -> None:
    """Tell nothing."""


def progress_or_default(progress: ProgressCallback | None) -> AbstractContextManager[ProgressCallback]:
    """The report that was given, or for None one that draws on stderr."""
    return show_progress() if progress is None else nullcontext(progress)


@contextmanager
def show_progress() -> Iterator[ProgressCallback]:
    """A report that draws on stderr: bars on a terminal; elsewhere a line a quarter of the work or half a minute.

    Nothing is written, and nothing imported, before the first report.
    """
    with ExitStack() as stack:
        display: ProgressCallback | None = None

        def progress(step: ProgressEvent | str) -> None:
            nonlocal display
            if display is None:
                display = _display(stack)
            display(step)

        yield progress


def _display(stack: ExitStack) -> ProgressCallback:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if not console.is_terminal:
        return _plain(lambda line: console.print(line, markup=False))
    bars = stack.enter_context(
        Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[amount]}"),
            TimeRemainingColumn(),
            console=console,
        )
    )
    tasks = {}

    def draw(step: ProgressEvent | str) -> None:
        if isinstance(step, str):
            console.print(step, markup=False)
            return
        if step.task not in tasks:
            tasks[step.task] = bars.add_task(step.task, total=step.total, amount="")
        bars.update(tasks[step.task], completed=step.done, total=step.total, amount=_amount(step))

    return draw


def _plain(write: Callable[[str], None]) -> ProgressCallback:
    told: dict[str, tuple[int, float]] = {}

    def draw(step: ProgressEvent | str) -> None:
        if isinstance(step, str):
            write(step)
            return
        quarter, now = (4 * step.done // step.total if step.total else 0), time.monotonic()
        before = told.get(step.task)
        if before is None or before[0] != quarter or now - before[1] >= LOG_EVERY:
            told[step.task] = (quarter, now)
            write(f"{step.task}: {_amount(step)}")

    return draw


def _amount(step: ProgressEvent) -> str:
    def text(count: int) -> str:
        return f"{count / 1e6:.1f} MB" if step.unit == "bytes" else f"{count:,}"

    amount = text(step.done) if step.total is None else f"{text(step.done)} of {text(step.total)}"
    if step.unit != "bytes":
        amount += f" {step.unit}"
    return f"{amount}  {step.note}" if step.note else amount
