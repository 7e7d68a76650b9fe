"""The one engine: opens or continues a record, has missing examples computed, writes, sums up and finishes it."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from rhobust.certificates import BatchDependenceError
from rhobust.evaluation.base import Evaluation
from rhobust.evaluation.pace import Pace
from rhobust.evaluation.seen import check_unseen, describe_trained
from rhobust.evaluation.target import Target, Untargeted
from rhobust.executors import Executor, Local, Ranks, Task
from rhobust.lock import tidy
from rhobust.progress import ProgressCallback, ProgressEvent, progress_or_default
from rhobust.records import Record, RecordWriter, Row, plain_settings, settings_hash

SOON = 1.0
"""Seconds between two writes of what other processes computed: what a killed driver can cost."""
SMALL = 32
"""Examples that one worker gets at once at most, where blocks can be cut anywhere: what a dead worker can cost."""


def run(
    evaluation: Evaluation,
    target: Target | Untargeted,
    *,
    executor: Executor | None = None,
    progress: ProgressCallback | None = None,
    wait: bool = False,
) -> Record:
    """Evaluate a target and return the finished record; a finished record of the same evaluation is returned unchanged.

    The record is in the target's folder. An interrupted evaluation continues where it stopped, with the same executor
    or another one, and with any number of workers.

    A record has one writer at a time, over all machines that share the folder: this process. Workers only compute.
    Rows are written as they come and ordered by their examples in the end, so that the record is the one that a single
    process writes.

    Args:
        evaluation: What to measure or to prove, and how.
        target: The network and its data.
        executor: Where the rows are computed: `Local()`, `Processes()` or `Ray()`; default: in this process, or, under
            torchrun and srun, in all processes that they started, of which the first one writes.
        progress: Progress callback; default: shown on stderr.
        wait: If another process is writing the record, wait for it and continue from what it left.

    Raises:
        ValueError: The evaluation does not fit the target, another process is writing the record (`BusyError`), or one
            took it over (`LostError`).
    """
    start = time.perf_counter()
    subject: Any = target  # an evaluation without a network takes no `Target`
    evaluation = evaluation.resolve(subject)
    check_unseen(evaluation, subject)
    target.check_unchanged()
    writer = RecordWriter(target.folder, evaluation.kind, evaluation.label, evaluation.settings(subject))
    device = target.device.type if isinstance(target, Target) else "cpu"
    task = Task(compute_rows, subject, (evaluation, settings_hash(writer.settings)), device)
    ranks = Ranks.join()
    if ranks is None:
        _write(evaluation, subject, task, writer, executor or Local(), progress, wait, start)
    else:
        if executor is not None and not isinstance(executor, Local):
            raise ValueError("executor must be left out under torchrun and srun: their processes are the workers")
        ranks.together(task, lambda: _write(evaluation, subject, task, writer, ranks, progress, wait, start))
        if not ranks.group.first:
            writer.read()
    return writer.record()


def compute_rows(
    target: Any, settings: tuple[Evaluation, str], examples: Sequence[int], progress: ProgressCallback
) -> Iterator[Row]:
    """The rows of some examples; a worker whose network or data is not that of the record is refused."""
    evaluation, wanted = settings

    def check() -> None:
        if settings_hash(plain_settings(evaluation.settings(target))) != wanted:
            raise ValueError(f"{target.name} must be the same network on the same data and device in all workers")

    if isinstance(target, Target):
        target.once(("record", wanted), check)
    yield from evaluation.rows(target, examples, progress)


def _write(
    evaluation: Evaluation,
    target: Any,
    task: Task,
    writer: RecordWriter,
    executor: Executor,
    progress: ProgressCallback | None,
    wait: bool,
    start: float,
) -> None:
    """Bring a record to its end; a finished one is left alone."""
    if writer.summary is not None:
        tidy(writer.lock)
        return
    with ExitStack() as stack:
        notify = stack.enter_context(progress_or_default(progress))
        asked = time.perf_counter()
        stack.enter_context(writer.owned(wait=math.inf if wait else 0.0, notify=notify))
        start += time.perf_counter() - asked
        if writer.summary is not None:  # another process finished it meanwhile
            return
        examples, rows_each = evaluation.examples(target), evaluation.rows_per_example(target)
        _order(writer, examples, rows_each)
        resumed = bool(writer.rows)
        with _one_function(writer):
            _compute(evaluation, target, task, writer, executor, notify)
            _order(writer, examples, rows_each)
            summary = evaluation.summarise(target, writer.rows)
            target.check_unchanged()
        writer.check_owner()  # the comparison may write pictures
        summary |= evaluation.compare(target, writer.record(summary))
        summary |= describe_trained(evaluation, target, summary.get("warnings", []))
        # Wall time is unknown for resumed evaluations.
        writer.finish({**summary, "seconds": None if resumed else time.perf_counter() - start})


def _compute(
    evaluation: Evaluation,
    target: Any,
    task: Task,
    writer: RecordWriter,
    executor: Executor,
    notify: ProgressCallback,
) -> None:
    """Have the examples that the record lacks computed, and append their rows as they come."""
    examples, size = evaluation.examples(target), evaluation.block(target)
    done = {row["index"] for row in writer.rows}
    missing = [example for example in examples if example not in done]
    if not missing:
        return
    if size is not None:
        # The rest of a batch may change the last digit, so a block is the same whoever computes it.
        whole = (list(examples[first : first + size]) for first in range(0, len(examples), size))
        blocks = [block for block in whole if not done.issuperset(block)]
    else:
        blocks = small_blocks(missing, executor.size(task.device)) if executor.spread else [missing]
    pace, rows_each = Pace(evaluation, len(examples), len(done)), evaluation.rows_per_example(target)
    rows: list[Row] = []
    last = -math.inf

    def write() -> None:
        nonlocal rows, last
        if rows:
            writer.append(rows)
            pace.add(rows, len(rows) // rows_each, executor.active if executor.spread else None)
            rows, last = [], time.monotonic()
            notify(ProgressEvent(f"{evaluation.kind} {target.name}", pace.done, pace.total, "examples", pace.note))

    try:
        for _, found in executor.map(task, blocks, notify):
            rows += [row for row in found if row["index"] not in done]
            if not executor.spread or time.monotonic() - last >= SOON:
                write()
        write()
    except KeyboardInterrupt as stop:
        write()
        raise type(stop)(f"{pace.done} of {len(examples)} examples are in {writer.path}") from None


def small_blocks(missing: Sequence[int], workers: int) -> list[list[int]]:
    """Blocks that shrink towards the end, so that all workers end together though examples differ a hundredfold."""
    blocks, first = [], 0
    while first < len(missing):
        size = max(1, min(SMALL, (len(missing) - first) // (4 * workers)))
        blocks.append(list(missing[first : first + size]))
        first += size
    return blocks


@contextmanager
def _one_function(writer: RecordWriter) -> Iterator[None]:
    """Void the record of a network that turns out to be no function of one input: its earlier rows prove nothing."""
    try:
        yield
    except BatchDependenceError as error:
        if writer.rows:
            writer.void(str(error))
        raise


def _order(writer: RecordWriter, examples: Sequence[int], rows_each: int) -> None:
    """Put all complete examples into the order of the examples, and leave out the others."""
    found: dict[int, list[Row]] = {}
    for row in writer.rows:
        found.setdefault(row["index"], []).append(row)
    for index, rows in found.items():
        if len(rows) > rows_each:
            raise ValueError(f"{writer.path} must hold {rows_each} rows per example, got {len(rows)} of {index}")
    rows = [row for index in examples for row in found.get(index, []) if len(found[index]) == rows_each]
    if rows != writer.rows:
        writer.rewrite(rows)
