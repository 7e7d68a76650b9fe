"""The one engine: opens or continues a record, has missing examples computed, writes, sums up and finishes it.

Test images that a network was trained on are counted, and no statement about other images rests on them.
"""

import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from rhobust.certificates import BatchDependenceError, batch_size
from rhobust.certificates.passes import asked_batch_size
from rhobust.cores import watched_cores
from rhobust.evaluation.base import Evaluation
from rhobust.evaluation.target import Target, Untargeted
from rhobust.executors import Executor, Local, Ranks, Task
from rhobust.formatting import format_duration, format_workers, name_split
from rhobust.lock import tidy
from rhobust.measurements import READERS, measurements
from rhobust.measurements.quantities import CHOSEN, SEEN_BEFORE, TRAINED_ON
from rhobust.memory import kept_memory
from rhobust.progress import ProgressCallback, ProgressEvent, progress_or_default
from rhobust.records import Record, RecordWriter, Row, plain_settings, settings_hash
from rhobust.settings import check_instance

SOON = 1.0
"""Seconds between two writes of what other processes computed: what a killed driver can cost."""
SMALL = 32
"""Examples that one worker gets at once at most, where blocks can be cut anywhere: what a dead worker can cost."""
WINDOW = 60.0
"""Seconds over which the speed is measured."""
UNKNOWN = "it is not known whether test images were trained on: the statement holds only if none were"


@kept_memory
@watched_cores
def run(
    evaluation: Evaluation,
    target: Target | Untargeted,
    *,
    executor: Executor | None = None,
    progress: ProgressCallback | None = None,
    wait: bool = False,
) -> Record:
    """Evaluate a target and return the finished record; a finished record of the same evaluation is returned unchanged.

    Its rows must prove its summary again, as for the report: a digest has no key, and whoever edits a record makes one.
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
    check_instance("evaluation", evaluation, Evaluation, "an evaluation such as Certify(n=1000)")
    check_instance("target", target, (Target, Untargeted), "a Target, as of Target(model, data) or Target.from_run")
    if executor is not None:
        check_instance("executor", executor, Executor, "Local(), Processes() or Ray()")
    subject: Any = target  # an evaluation without a network takes no `Target`
    evaluation = evaluation.resolve(subject)
    check_unseen(evaluation, subject)
    target.check_unchanged()
    writer = RecordWriter(target.folder, evaluation.kind, evaluation.label, evaluation.settings(subject))
    device = target.device.type if isinstance(target, Target) else "cpu"
    task = Task(compute_rows, subject, (evaluation, settings_hash(writer.settings), asked_batch_size()), device)
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
    target: Any, settings: tuple[Evaluation, str, int | None], examples: Sequence[int], progress: ProgressCallback
) -> Iterator[Row]:
    """The rows of some examples; a worker whose network or data is not that of the record is refused."""
    evaluation, wanted, rows = settings

    def check() -> None:
        if settings_hash(plain_settings(evaluation.settings(target))) != wanted:
            raise ValueError(f"{target.name} must be the same network on the same data and device in all workers")

    if isinstance(target, Target):
        target.once(("record", wanted), check)
    if rows == asked_batch_size():
        yield from evaluation.rows(target, examples, progress)
        return
    with batch_size(rows):  # a worker in another process has not been asked
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
        _check_proved(writer.record())
        return
    with ExitStack() as stack:
        notify = stack.enter_context(progress_or_default(progress))
        asked = time.perf_counter()
        stack.enter_context(writer.owned(wait=math.inf if wait else 0.0, notify=notify))
        start += time.perf_counter() - asked
        if writer.summary is not None:  # another process finished it meanwhile
            _check_proved(writer.record())
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


def _check_proved(record: Record) -> None:
    """Refuse a finished record whose summary is not what its rows give; evaluations of one's own may have no reader."""
    if record.kind in READERS:
        measurements(record)


def _compute(
    evaluation: Evaluation, target: Any, task: Task, writer: RecordWriter, executor: Executor, notify: ProgressCallback
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
        # Before the first row there is no file.
        done = f"{pace.done} of {len(examples)} examples are in {writer.path}"
        raise type(stop)(done if pace.done else f"none of {len(examples)} examples is finished yet") from None


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


class Pace:
    """Counts what was computed, and says how fast; arguments: the evaluation, all its examples, those done before."""

    def __init__(self, evaluation: Evaluation, total: int, done: int) -> None:
        self.evaluation, self.total, self.done, self.note = evaluation, total, done, ""
        self.recent = deque([(time.monotonic(), 0, done)])
        self.samples = 0

    def add(self, rows: Sequence[Row], examples: int, workers: int | None) -> None:
        """Count rows that were written."""
        now = time.monotonic()
        self.done += examples
        self.samples += sum(map(self.evaluation.samples, rows))
        self.recent.append((now, self.samples, self.done))
        # What workers took to start is no measure of what is left.
        while len(self.recent) > 2 and (self.recent[0][1] == 0 or now - self.recent[1][0] > WINDOW):
            self.recent.popleft()
        if workers is None:
            return
        before, samples, done = self.recent[0]
        seconds = max(now - before, 1e-6)
        speed = (self.samples - samples) / seconds
        left = (self.total - self.done) * seconds / max(self.done - done, 1)
        self.note = f"{format_workers(workers)}, {speed:,.0f} samples/s, {format_duration(left)} left"


def count_trained(evaluation: Evaluation, target: Any) -> tuple[int, int] | None:
    """How many test images of an evaluation the network was trained on, and of how many; None if that is not known.

    Images are compared pixel by pixel (`ImageSet`): flipped, cropped or encoded copies are not found.
    """
    if not isinstance(target, Target) or target.trained_on is None:
        return None
    found = target.trained_on.contains(evaluation.test_images(target))
    return int(found.sum()), len(found)


def check_unseen(evaluation: Evaluation, target: Any) -> None:
    """Refuse a statement about other images than the test images if the network was trained on one of these."""
    found = count_trained(evaluation, target)
    if _chosen_by(evaluation, target):
        raise ValueError(
            f"test images must be new to the network for a statement about other images, but those that {target.name}"
            " held out chose the epoch that it kept: take test images, or keep the last epoch"
        )
    if found is not None and found[0] and evaluation.population(target):
        name, remedy = target.data.name, "pass unseen to leave them out"
        if target.pairs is not None and evaluation.kind == "measure-shift":
            known = target.pairs.places(target.data.classes)
            alone = known is not None and bool((known >= 0).all())
            name = target.pairs.name if alone else f"{name}, {target.pairs.name}"
            remedy = "take these pairs out" if alone else "pass unseen, and take such pairs out"
        if evaluation.kind == "certify-shift":
            remedy += ", the estimator sample for a statement about these images alone"
        raise ValueError(
            f"test images must be new to the network for a statement about other images, but {found[0]:,} of"
            f" {found[1]:,} of {name} were trained on: {remedy}, or take other test data"
        )


def _chosen_by(evaluation: Evaluation, target: Any) -> bool:
    """Whether a statement about other images would rest on images that chose the network's weights."""
    return isinstance(target, Target) and target.chose_epoch and evaluation.population(target)


def _counted(found: tuple[int, int], target: Target) -> str:
    return f"{found[0]:,} of the {found[1]:,} {name_split(target.data.split)}"


def describe_trained(evaluation: Evaluation, target: Any, warnings: list[str]) -> Row:
    """What a summary with these warnings gains about test images that were trained on."""
    found, lines = count_trained(evaluation, target), list[str]()
    if found is not None and found[0] and target.data.split != "train":
        lines = [f"{_counted(found, target)} {TRAINED_ON}"]
    if isinstance(target, Target) and target.chose_epoch:
        lines += [CHOSEN]
    if isinstance(target, Target) and evaluation.population(target):
        unknown = not target.published_split if found is None else target.fine_tuned
        lines += [UNKNOWN] if unknown else []
    elif isinstance(target, Target) and target.fine_tuned and target.data.split == "validation":
        lines += [SEEN_BEFORE]
    return ({} if found is None else {"trained_on": found[0]}) | ({"warnings": [*warnings, *lines]} if lines else {})


def as_evaluated(target: Target, fingerprint: object) -> Target:
    """The target of a record with this fingerprint of its data: with all test images, or with the unseen ones."""
    if target.trained_on is None or target.identity()["data_fingerprint"] == fingerprint:
        return target
    if target.trained_on.contains(target.data.images).all():
        return target
    unseen = target.unseen()
    return unseen if unseen.identity()["data_fingerprint"] == fingerprint else target


def check_trained(evaluation: Evaluation, target: Target, summary: Row | None) -> Iterator[str]:
    """What a record does not say, or says wrongly, of test images that were trained on."""
    if _chosen_by(evaluation, target):
        yield "its images chose the epoch that was kept: it proves nothing about other images"
    found = count_trained(evaluation, target)
    if found is None:
        return
    if found[0] and evaluation.population(target):
        yield f"{_counted(found, target)} images were trained on: it proves nothing about other images"
    elif summary is not None and summary.get("trained_on", found[0]) != found[0]:
        yield f"{_counted(found, target)} images were trained on, the record says {summary['trained_on']}"
