"""The one engine: opens or continues a record, computes the examples that it lacks, writes, sums up and finishes it."""

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from rhobust.evaluation.base import BLOCK, Evaluation
from rhobust.evaluation.target import Target, Untargeted
from rhobust.progress import ProgressCallback, ProgressEvent, no_progress, progress_or_default
from rhobust.records import Record, RecordWriter, Row
from rhobust.training.distributed import join_processes

PAUSE = 30.0
"""Seconds between two writes when rows come slowly."""
PATIENCE = timedelta(days=7)
"""How long a process waits for the others; torchrun ends them all when one fails."""


def run(evaluation: Evaluation, target: Target | Untargeted, *, progress: ProgressCallback | None = None) -> Record:
    """Evaluate a target and return the finished record; a finished record of the same evaluation is returned unchanged.

    The record is in the target's folder. An interrupted evaluation continues where it stopped. Under torchrun every
    process computes its share of the examples and writes it to a part of its own; the first one merges the parts in
    the order of the examples and sums up. All return the same record, which is the one that a single process writes.
    An evaluation may be continued with another number of processes.

    Args:
        evaluation: What to measure or to prove, and how.
        target: The network and its data.
        progress: Progress callback; default: shown on stderr.

    Raises:
        ValueError: The evaluation does not fit the target, or another process is writing the record.
    """
    start = time.perf_counter()
    subject: Any = target  # an evaluation without a network takes no `Target`
    evaluation = evaluation.resolve(subject)
    target.check_unchanged()
    writer = RecordWriter(target.folder, evaluation.kind, evaluation.label, evaluation.settings(subject))
    rank, world = _place()
    if writer.summary is not None and world == 1:
        return writer.record()
    with writer.locked(rank == 0):
        return _compute(evaluation, target, writer, rank, world, start, progress)


def _compute(
    evaluation: Evaluation,
    target: Any,
    writer: RecordWriter,
    rank: int,
    world: int,
    start: float,
    progress: ProgressCallback | None,
) -> Record:
    examples, rows_each = evaluation.examples(target), evaluation.rows_per_example(target)
    if rank == 0 and writer.summary is None:
        _merge(writer, examples, rows_each)
    _meet(world)
    writer.read()
    if writer.summary is not None:
        return writer.record()
    done = {row["index"] for row in writer.rows}
    missing = [example for example in examples if example not in done]
    mine, size = missing[rank::world], evaluation.block(target)
    out = writer if world == 1 else writer.part(f"{rank}-of-{world}")
    if world == 1 and size is not None:
        # The rest of a batch may change the last digit, so an interrupted block is computed as a whole.
        mine = _start_of_block(examples, done, size) + mine
    with progress_or_default(progress if rank == 0 else no_progress) as notify:
        if size is None:
            pieces = _pieces(evaluation.rows(target, mine, notify) if mine else (), rows_each)
        else:
            blocks = (mine[first : first + size] for first in range(0, len(mine), size))
            pieces = (
                [row for row in evaluation.rows(target, one, notify) if row["index"] not in done] for one in blocks
            )
        written = 0
        for piece in pieces:
            out.append(piece)
            written += len(piece) // rows_each
            at = len(done) + min(world * written, len(missing))
            notify(ProgressEvent(f"{evaluation.kind} {target.name}", at, len(examples), "examples"))
    _meet(world)
    if rank == 0:
        _merge(writer, examples, rows_each)
        summary = evaluation.summarise(target, writer.rows)
        summary |= evaluation.compare(target, writer.record(summary))
        # Wall time is unknown for resumed evaluations.
        writer.finish({**summary, "seconds": None if done else time.perf_counter() - start})
    _meet(world)
    if rank != 0:
        writer.read()
    return writer.record()


def _start_of_block(examples: Sequence[int], done: set[int], size: int) -> list[int]:
    """The examples before the first one that is missing, in its block."""
    first = next((place for place, example in enumerate(examples) if example not in done), 0)
    return list(examples[first - first % size : first])


def _pieces(rows: Iterable[Row], rows_each: int) -> Iterator[list[Row]]:
    """Cut a stream of rows where an example ends: after `BLOCK` examples, or sooner when they come slowly."""
    piece: list[Row] = []
    last = time.monotonic()
    for row in rows:
        piece.append(row)
        examples, inside = divmod(len(piece), rows_each)
        if inside == 0 and (examples == BLOCK or time.monotonic() - last > PAUSE):
            yield piece
            piece, last = [], time.monotonic()
    if piece:
        yield piece


def _merge(writer: RecordWriter, examples: Sequence[int], rows_each: int) -> None:
    """Put all complete examples, those of parts too, into the record in the order of the examples."""
    parts = writer.parts()
    complete: dict[int, list[Row]] = {}
    for source in (writer, *parts):
        found: dict[int, list[Row]] = {}
        for row in source.rows:
            found.setdefault(row["index"], []).append(row)
        for index, rows in found.items():
            if len(rows) > rows_each:
                raise ValueError(f"{source.path} must hold {rows_each} rows per example, got {len(rows)} of {index}")
            if len(rows) == rows_each:
                complete.setdefault(index, rows)
    rows = [row for index in examples for row in complete.get(index, [])]
    if rows != writer.rows:
        writer.rewrite(rows)
    for part in parts:
        part.path.unlink()


def _place() -> tuple[int, int]:
    """This process's number and how many there are; they only wait for each other, so the CPU backend is enough."""
    processes = join_processes(torch.device("cpu"))
    return processes.rank, processes.world


def _meet(world: int) -> None:
    """Wait until every process is here."""
    if world > 1:
        dist.barrier(_group())


@cache
def _group() -> Any:
    return dist.new_group(backend="gloo", timeout=PATIENCE)
