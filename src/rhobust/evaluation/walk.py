"""The walk over a test set that every evaluation shares: go on where it stopped, sum up."""

import time
from collections.abc import Callable, Iterable, Sequence

from rhobust.progress import Report, Step, telling
from rhobust.records import Record, RecordWriter, Row

BLOCK = 100
"""Examples between two writes of a record: what a kill can cost."""


def walk(
    writer: RecordWriter,
    indices: Sequence[int],
    evaluate: Callable[[list[int]], Iterable[Row]],
    summarise: Callable[[list[Row]], Row],
    *,
    task: str,
    report: Report | None,
) -> Record:
    """Evaluate the examples that the record lacks, block by block, and finish it.

    Args:
        writer: The record, new or unfinished; a finished one is returned as it is.
        indices: The examples.
        evaluate: From a block of examples to its rows.
        summarise: From all rows to the summary.
        task: What is going on, in a few words.
        report: Told of progress; None shows it on stderr.
    """
    if writer.summary is not None:
        return writer.record()
    start = time.perf_counter()
    done = {row["index"] for row in writer.rows}
    resumed = bool(done)
    left = [index for index in indices if index not in done]
    with telling(report) as tell:
        for first in range(0, len(left), BLOCK):
            block = left[first : first + BLOCK]
            writer.append(evaluate(block))
            tell(Step(task, len(done) + first + len(block), len(indices), "examples"))
    summary = summarise(writer.rows)
    # The time of a resumed evaluation is nobody's to know: its first part is gone.
    writer.finish({**summary, "seconds": None if resumed else time.perf_counter() - start})
    return writer.record()
