"""The one engine: opens or continues a record, computes the examples that it lacks, writes, sums up and finishes it."""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import Any

import torch

from rhobust.certificates import BatchDependenceError
from rhobust.evaluation.base import BLOCK, Evaluation
from rhobust.evaluation.seen import check_unseen, describe_trained
from rhobust.evaluation.target import Target, Untargeted
from rhobust.lock import BusyError, tidy
from rhobust.progress import ProgressCallback, ProgressEvent, no_progress, progress_or_default
from rhobust.records import Record, RecordWriter, Row
from rhobust.training.distributed import Processes, join_processes

PAUSE = 30.0
"""Seconds between two writes when rows come slowly."""


def run(
    evaluation: Evaluation,
    target: Target | Untargeted,
    *,
    progress: ProgressCallback | None = None,
    wait: bool = False,
) -> Record:
    """Evaluate a target and return the finished record; a finished record of the same evaluation is returned unchanged.

    The record is in the target's folder. An interrupted evaluation continues where it stopped. Under torchrun every
    process computes its share of the examples and writes it to a part of its own; the first one merges the parts in
    the order of the examples and sums up. All return the same record, which is the one that a single process writes.
    An evaluation may be continued with another number of processes.

    A record has one writer at a time, over all machines that share the folder.

    Args:
        evaluation: What to measure or to prove, and how.
        target: The network and its data.
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
    processes = _join()
    if writer.summary is not None and processes.world == 1:
        tidy(writer.lock)
        return writer.record()
    patience = math.inf if wait else 0.0
    with ExitStack() as stack:
        notify = stack.enter_context(progress_or_default(progress if processes.first else no_progress))
        examples, rows_each = evaluation.examples(subject), evaluation.rows_per_example(subject)

        def begin() -> None:
            nonlocal start
            asked = time.perf_counter()
            stack.enter_context(writer.owned(wait=patience, notify=notify))
            start += time.perf_counter() - asked
            if writer.summary is None:
                _merge(writer, examples, rows_each, wait=patience)

        processes.after_first(begin)
        if not processes.first:
            writer.read()
        if writer.summary is not None:
            return writer.record()
        resumed = bool(writer.rows)
        _compute(evaluation, subject, writer, processes, notify, patience)
        processes.wait()

        def finish() -> None:
            _merge(writer, examples, rows_each)
            with _one_function(writer, processes.world):
                summary = evaluation.summarise(subject, writer.rows)
                target.check_unchanged()
            writer.check_owner()  # the comparison may write pictures
            summary |= evaluation.compare(subject, writer.record(summary))
            summary |= describe_trained(evaluation, subject, summary.get("warnings", []))
            # Wall time is unknown for resumed evaluations.
            writer.finish({**summary, "seconds": None if resumed else time.perf_counter() - start})

        processes.after_first(finish)
        if not processes.first:
            writer.read()
        return writer.record()


def _compute(
    evaluation: Evaluation,
    target: Any,
    writer: RecordWriter,
    processes: Processes,
    notify: ProgressCallback,
    patience: float,
) -> None:
    """Compute this process's share of the examples that the record lacks, and append it to the record or to a part."""
    examples, rows_each = evaluation.examples(target), evaluation.rows_per_example(target)
    rank, world = processes.rank, processes.world
    done = {row["index"] for row in writer.rows}
    missing = [example for example in examples if example not in done]
    mine, size = missing[rank::world], evaluation.block(target)
    if world == 1 and size is not None:
        # The rest of a batch may change the last digit, so an interrupted block is computed as a whole.
        mine = _start_of_block(examples, done, size) + mine
    if size is None:
        pieces = _pieces(evaluation.rows(target, mine, notify) if mine else (), rows_each)
    else:
        blocks = (mine[first : first + size] for first in range(0, len(mine), size))
        pieces = ([row for row in evaluation.rows(target, one, notify) if row["index"] not in done] for one in blocks)
    out = writer if world == 1 else writer.part(f"{rank}-of-{world}")
    written = 0
    with nullcontext() if world == 1 else out.owned(wait=patience, notify=notify), _one_function(out, world):
        try:
            for piece in pieces:
                out.append(piece)
                written += len(piece) // rows_each
                at = len(done) + min(world * written, len(missing))
                notify(ProgressEvent(f"{evaluation.kind} {target.name}", at, len(examples), "examples"))
        except KeyboardInterrupt as stop:
            kept = f"{len(done) + written} of {len(examples)} examples are in {out.path}"
            raise type(stop)(kept if world == 1 else f"{written} examples are in {out.path}") from None


@contextmanager
def _one_function(writer: RecordWriter, world: int) -> Iterator[None]:
    """Void the record of a network that turns out to be no function of one input: its earlier rows prove nothing."""
    try:
        yield
    except BatchDependenceError as error:
        if writer.rows or world > 1:
            writer.void(str(error))
        raise


def _start_of_block(examples: Sequence[int], done: set[int], size: int) -> list[int]:
    """The examples before the first one that is missing, in its block."""
    first = next((place for place, example in enumerate(examples) if example not in done), 0)
    return list(examples[first - first % size : first])


def _pieces(rows: Iterable[Row], rows_each: int) -> Iterator[list[Row]]:
    """Cut a stream of rows where an example ends: after `BLOCK` examples, or sooner when they come slowly or stop."""
    piece: list[Row] = []
    last = time.monotonic()
    try:
        for row in rows:
            piece.append(row)
            examples, inside = divmod(len(piece), rows_each)
            if inside == 0 and (examples == BLOCK or time.monotonic() - last > PAUSE):
                yield piece
                piece, last = [], time.monotonic()
    except KeyboardInterrupt:
        yield piece[: len(piece) // rows_each * rows_each]
        raise
    if piece:
        yield piece


def _merge(writer: RecordWriter, examples: Sequence[int], rows_each: int, *, wait: float | None = None) -> None:
    """Put all complete examples, those of parts too, into the record in the order of the examples.

    Args:
        writer: The record.
        examples: Its examples.
        rows_each: Rows per example.
        wait: Seconds to wait for a process that is writing a part; default: such a part is left alone.
    """
    with ExitStack() as stack:
        parts = []
        for part in writer.parts():
            with suppress(BusyError) if wait is None else nullcontext():
                stack.enter_context(part.owned(wait=wait or 0.0))
                parts.append(part)
        complete: dict[int, list[Row]] = {}
        for source in (writer, *parts):
            found: dict[int, list[Row]] = {}
            for row in source.rows:
                found.setdefault(row["index"], []).append(row)
            for index, rows in found.items():
                if len(rows) > rows_each:
                    raise ValueError(
                        f"{source.path} must hold {rows_each} rows per example, got {len(rows)} of {index}"
                    )
                if len(rows) == rows_each:
                    complete.setdefault(index, rows)
        rows = [row for index in examples for row in complete.get(index, [])]
        if rows != writer.rows:
            writer.rewrite(rows)
        for part in parts:
            part.remove()
    for left in writer.path.parent.glob(f"{writer.lock.stem}.part-*.lock"):
        tidy(left)  # of processes that were killed before their first row


def _join() -> Processes:
    """The processes of this evaluation; they only wait for each other, so the CPU backend is enough."""
    return join_processes(torch.device("cpu"))
