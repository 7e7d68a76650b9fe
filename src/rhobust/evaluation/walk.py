"""The walk over a test set that every evaluation shares: go on where it stopped, in one process or several, sum up."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from rhobust.progress import ProgressCallback, ProgressEvent, no_progress, progress_or_default
from rhobust.records import Record, RecordWriter, Row
from rhobust.training.distributed import join_processes

BLOCK = 100
"""Examples between two writes of a record: what a kill can cost."""
PAUSE = 30.0
"""Seconds between two writes when examples come slowly."""
PATIENCE = timedelta(days=7)
"""How long a process waits for the others; torchrun ends them all when one fails."""


def walk(
    writer: RecordWriter,
    indices: Sequence[int],
    evaluate: Callable[[list[int]], Iterable[Row]],
    summarise: Callable[[list[Row]], Row],
    *,
    task: str,
    progress: ProgressCallback | None,
    rows_each: int = 1,
    block: int | None = None,
    streaming: bool = False,
    forecast: Callable[[int], str | None] | None = None,
) -> Record:
    """Evaluate the examples that the record lacks, block by block, and finish it.

    Under torchrun every process takes its share of the examples and writes them to a part beside the record; the first
    one puts the parts together in the order of the examples and sums up. All return the same record, which is the one
    that a single process writes. A walk may go on with another number of processes.

    Args:
        writer: The record, new or unfinished; a finished one is returned as it is.
        indices: The examples.
        evaluate: From a block of examples to its rows, which name their example as `index`.
        summarise: From all rows to the summary; called in the first process only.
        task: What is going on, in a few words.
        progress: Progress callback; default: shown on stderr.
        rows_each: Rows of an example; one with fewer was cut off by a kill and is evaluated again.
        block: Examples between two writes; `BLOCK` where none is given.
        streaming: Whether `evaluate` takes all examples at once and gives their rows, in their order, as they come.
        forecast: From the number of examples that a process has before it to a line worth telling; asked in the first
            process only.
    """
    start = time.perf_counter()
    rank, world = _place()
    if rank == 0 and writer.summary is None:
        _gather(writer, indices, rows_each)
    _meet(world)
    writer.read()
    if writer.summary is not None:
        return writer.record()
    done = {row["index"] for row in writer.rows}
    left = [index for index in indices if index not in done]
    size = block or BLOCK
    mine, out = left[rank::world], writer if world == 1 else writer.part(f"{rank}-of-{world}")
    if world == 1 and not streaming:
        # A block that a kill cut in two is evaluated whole: other neighbours in a batch may move a last digit.
        mine = _begun(indices, done, size) + mine
    with progress_or_default(progress if rank == 0 else no_progress) as notify:
        if rank == 0 and mine and forecast is not None and (line := forecast(len(mine))) is not None:
            notify(line)
        if streaming:
            pieces = _pieces(evaluate(mine) if mine else (), size, rows_each)
        else:
            blocks = (mine[first : first + size] for first in range(0, len(mine), size))
            pieces = ([row for row in evaluate(one) if row["index"] not in done] for one in blocks)
        written = 0
        for piece in pieces:
            out.append(piece)
            written += len(piece) // rows_each
            notify(ProgressEvent(task, len(done) + min(world * written, len(left)), len(indices), "examples"))
    _meet(world)
    if rank == 0:
        _gather(writer, indices, rows_each)
        summary = summarise(writer.rows)
        # The time of a resumed evaluation is nobody's to know: its first part is gone.
        writer.finish({**summary, "seconds": None if done else time.perf_counter() - start})
    _meet(world)
    if rank != 0:
        writer.read()
    return writer.record()


def _begun(indices: Sequence[int], done: set[int], size: int) -> list[int]:
    """The examples before the first one that is missing, in its block."""
    first = next((place for place, index in enumerate(indices) if index not in done), 0)
    return list(indices[first - first % size : first])


def _pieces(rows: Iterable[Row], size: int, rows_each: int) -> Iterator[list[Row]]:
    """Cut a flow of rows where an example ends: after `size` examples, or sooner when they come slowly."""
    piece: list[Row] = []
    last = time.monotonic()
    for row in rows:
        piece.append(row)
        examples, inside = divmod(len(piece), rows_each)
        if inside == 0 and (examples == size or time.monotonic() - last > PAUSE):
            yield piece
            piece, last = [], time.monotonic()
    if piece:
        yield piece


def _gather(writer: RecordWriter, indices: Sequence[int], rows_each: int) -> None:
    """Put all whole examples, those of parts too, into the record in the order of the examples."""
    parts = writer.parts()
    whole: dict[int, list[Row]] = {}
    for source in (writer, *parts):
        examples: dict[int, list[Row]] = {}
        for row in source.rows:
            examples.setdefault(row["index"], []).append(row)
        for index, rows in examples.items():
            if len(rows) > rows_each:
                raise ValueError(f"{source.path} must hold {rows_each} rows an example, got {len(rows)} of {index}")
            if len(rows) == rows_each:
                whole.setdefault(index, rows)
    rows = [row for index in indices for row in whole.get(index, [])]
    if rows != writer.rows:
        writer.rewrite(rows)
    for part in parts:
        part.path.unlink()


def _place() -> tuple[int, int]:
    """This process's number and how many there are; they only wait for each other, so a CPU's ways will do."""
    processes = join_processes(torch.device("cpu"))
    return processes.rank, processes.world


def _meet(world: int) -> None:
    """Go on when every process is here."""
    if world > 1:
        dist.barrier(_group())


@cache
def _group() -> Any:
    return dist.new_group(backend="gloo", timeout=PATIENCE)
