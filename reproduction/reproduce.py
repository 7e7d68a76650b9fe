"""Make tables and figures: train, attack and certify what is missing, then write what the records give."""

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reproduction.drawing import draw, to_bytes
from reproduction.evaluate import AbsentError, perform, read
from reproduction.filling import Gap, Question, answers, faults, fill, questions, told_from
from reproduction.jobs import Job, runs_of
from reproduction.pages import place
from reproduction.plan import Plan
from reproduction.specs import Differences, Front, Ledger, Spec, Table
from reproduction.workshop import Workshop
from reproduction.writing import comma_separated, markdown
from rhobust.data import load
from rhobust.records import Record, write_json, write_whole
from rhobust.training import TrainConfig


@dataclass(frozen=True)
class Outcome:
    """What was written, and what is missing in it."""

    files: tuple[Path, ...]
    faults: tuple[str, ...]
    """One line each."""


def reproduce(
    plan: Plan,
    workshop: Workshop,
    *,
    draw_only: bool = False,
    minutes: float = math.inf,
    to: Path | None = None,
) -> Outcome:
    """Make every table and figure of a plan.

    What is done is not done again, and what was killed goes on. The work goes run by run, so that what is there after
    a while is whole rows. An evaluation that fails, or a record that cannot be read, leaves its cells empty with one
    line that says why; everything else is made.

    Args:
        plan: What to make.
        workshop: Where.
        draw_only: Train and evaluate nothing: show what is there.
        minutes: Begin no training and no evaluation after so long; what is then missing is left out.
        to: Folder whose `tables` and `figures` are written; default: that of the workshop.
    """
    if not minutes > 0:
        raise ValueError(f"minutes must be > 0, got {minutes:g}")
    end = -math.inf if draw_only else time.monotonic() + 60 * minutes
    if not draw_only:
        # Before hours of work: data that is not there stops everything.
        for name in dict.fromkeys(run.data for run in plan.runs):
            load(name, "test", root=workshop.root, progress=workshop.progress)
    files: list[Path] = []
    found: dict[str, None] = {}
    for spec, document in documents(plan, workshop, end):
        files += write(spec, told_from(document, workshop.out), to or workshop.out)
        found |= dict.fromkeys(faults(document))
    return Outcome(tuple(files), tuple(found))


def documents(plan: Plan, workshop: Workshop, end: float) -> Iterator[tuple[Spec, dict[str, Any]]]:
    """Each table and figure of a plan with its numbers, as soon as they are there; a record is read once.

    Args:
        plan: What to make.
        workshop: Where.
        end: When no more work is begun, by the monotonic clock; minus infinity where only what is there is shown.
    """
    asked: dict[Job, dict[Question, None]] = {}
    for spec in plan.specs:
        for question in questions(spec):
            asked.setdefault(question.reading.job, {})[question] = None
    found: dict[Question, dict[str, Any]] = {}
    lost: dict[TrainConfig, Gap] = {}
    waiting = list(plan.specs)
    for job in _run_by_run(asked):
        found |= answers(asked.pop(job), _result(job, workshop, lost, end), workshop.out)
        while waiting and not asked.keys() & set(waiting[0].jobs):
            spec = waiting.pop(0)
            yield spec, fill(spec, found)


def _run_by_run(jobs: Iterable[Job]) -> list[Job]:
    """All evaluations of a run after each other, runs in the order in which they are first met."""
    groups: dict[TrainConfig | None, list[Job]] = {}
    for job in jobs:
        groups.setdefault(next(reversed(runs_of(job)), None), []).append(job)
    return [job for group in groups.values() for job in group]


def _result(job: Job, workshop: Workshop, lost: dict[TrainConfig, Gap], end: float) -> Record | Gap:
    """The record of a job, or why there is none; a run that diverged is not trained again."""
    for run in runs_of(job):
        if run in lost:
            return lost[run]
    try:
        return perform(job, workshop) if time.monotonic() < end else read(job, workshop)
    except FloatingPointError as error:
        run = next(run for run in runs_of(job) if not workshop.trained(run))
        lost[run] = Gap(f"{workshop.folder(run)} did not converge: {error}")
        return lost[run]
    except (ValueError, OSError) as error:
        return Gap(" ".join(str(error).split()), absent=isinstance(error, AbsentError))


def write(spec: Spec, document: dict[str, Any], out: Path) -> list[Path]:
    """Write a document and what people look at: Markdown and CSV of a table, SVG and PDF of a figure."""
    if isinstance(spec, Table | Front | Differences | Ledger):
        contents: dict[str, str | bytes] = {"md": markdown(document), "csv": comma_separated(document)}
    else:
        figure = draw(document)
        contents = {"svg": to_bytes(figure, "svg"), "pdf": to_bytes(figure, "pdf")}
    path = place(spec.name, out)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, document)
    for ending, content in contents.items():
        write_whole(path.with_suffix(f".{ending}"), content)
    return [path.with_suffix(f".{ending}") for ending in ("json", *contents)]
