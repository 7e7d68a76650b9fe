"""A sweep: the work of its plan, unit by unit, each in a folder of its own."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rhobust.data import EvaluationSplit
from rhobust.data.source import data_root
from rhobust.evaluation import Evaluation, Target, find_record, run
from rhobust.executors import Executor, Local, Task
from rhobust.files import check_folder, write_json
from rhobust.formatting import format_duration, format_workers
from rhobust.lock import owned
from rhobust.process import launched
from rhobust.progress import ProgressCallback, ProgressEvent, progress_or_default
from rhobust.records import Row, is_finished
from rhobust.report import write_report
from rhobust.settings import check_instance
from rhobust.sweeps.plan import SweepPlan
from rhobust.sweeps.table import SweepTable, table_of
from rhobust.training import Run, TrainConfig, train
from rhobust.training.distributed import resolve_device

RUNS, FAILURES, LOCK = "runs", "failures.json", "sweep.lock"
"""Folder of the runs, file of what failed, and the lock of the sweep's folder."""
RETRIES = 1
"""How often a unit that failed is tried again in the same sweep; one that diverged is not."""


@dataclass(frozen=True)
class Unit:
    """A training and its evaluations, in a run folder."""

    config: TrainConfig
    folder: Path
    evaluations: tuple[Evaluation, ...] = ()
    split: EvaluationSplit = "test"

    @property
    def run(self) -> Run:
        """The run, finished or not."""
        return Run(self.folder, self.config)

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return self.run.finished and all(self.record(one) is not None for one in self.evaluations)

    def record(self, evaluation: Evaluation) -> Path | None:
        """The finished record of an evaluation; None where there is none yet."""
        if not self.run.finished:
            return None
        # With its defaults: a record of fewer noise samples than this plan's is not what it asks for.
        path = find_record(
            evaluation.with_defaults(),
            self.folder,
            model_hash=self.run.model_hash,
            sigma=self.config.sigma,
            split=self.split,
        )
        return path if path is not None and is_finished(path) else None


@dataclass(frozen=True)
class SweepOutcome:
    """What a sweep made."""

    table: SweepTable
    page: Path | None
    """The report; None where no run was finished."""
    failures: dict[str, str]
    """One line per run that failed."""


def plan_units(plan: SweepPlan, out: Path) -> list[Unit]:
    """The units of a plan, one per training, in the folder of a sweep."""
    runs = out.absolute() / RUNS
    return [Unit(one, runs / one.run_id, plan.evaluations_of(one), plan.split) for one in plan.configs]


def run_sweep(
    plan: SweepPlan,
    out: Path | str,
    *,
    executor: Executor | None = None,
    device: torch.device | str = "auto",
    root: Path | str | None = None,
    progress: ProgressCallback | None = None,
    wait: bool = False,
) -> SweepOutcome:
    """Train and evaluate what a plan lacks, and write its table and its page.

    Finished work is skipped and interrupted work goes on, with any executor: the table is a function of the records. A
    unit that fails is tried again once, then listed; everything else is done. Workers on other machines need the folder
    and the data at the same paths.

    Args:
        plan: What to train and to evaluate.
        out: Folder for `runs/`, `sweep.json`, `sweep.md`, `sweep.csv`, `report.html` and `failures.json`.
        executor: Where it is done, one unit per worker at a time; default: in this process.
        device: Torch device of each worker; "auto": the GPU if there is one.
        root: Folder of the data sets; default: $RHOBUST_DATA or the cache folder.
        progress: Progress callback; default: shown on stderr.
        wait: If another process works on the folder, wait for it.
    """
    if launched():
        raise ValueError("a sweep must be started once, not by torchrun or srun: name an executor instead")
    check_instance("plan", plan, SweepPlan, "a SweepPlan, as of read_plan(file)")
    out = Path(out)
    check_folder("out", out)
    units = plan_units(plan, out)
    with progress_or_default(progress) as notify:
        out.mkdir(parents=True, exist_ok=True)
        with owned(out / LOCK, out, wait=float("inf") if wait else 0.0, notify=notify) as owner:
            failures = run_units(units, executor=executor, device=device, root=root, progress=notify)
            owner.check()
            table = table_of(plan, units)
            table.write(out)
            named = {**table.refused, **{units[number].config.run_id: line for number, line in failures.items()}}
            write_json(out / FAILURES, named)
            trained = [unit.folder for unit in units if unit.run.finished]
            page = write_report(trained, out / "report.html", title=plan.title).path if trained else None
    return SweepOutcome(table, page, named)


def run_units(
    units: Sequence[Unit],
    *,
    executor: Executor | None = None,
    device: torch.device | str = "auto",
    root: Path | str | None = None,
    progress: ProgressCallback,
) -> dict[int, str]:
    """Do what is left of some units; why each of those failed that did, by its number."""
    executor, kind = executor or Local(), resolve_device(device)
    place = str(kind) if not executor.spread else kind.type
    task = Task(_perform, tuple(units), (place, data_root(root).absolute()), kind.type)
    left = [number for number, unit in enumerate(units) if not unit.done]
    failures: dict[int, str] = {}
    for _ in range(1 + RETRIES):
        if not left:
            break
        again = []
        before, start = len(units) - len(left), time.monotonic()
        for number, (_, rows) in enumerate(executor.map(task, [[one] for one in left], progress), start=1):
            for row in rows:
                failures.pop(row["index"], None)
                if row["failure"] is not None:
                    failures[row["index"]] = row["failure"]
                    again += [] if row["final"] else [row["index"]]
                    progress(f"{units[row['index']].folder.name}: {row['failure']}")
            rest = (time.monotonic() - start) / number * (len(left) - number)
            note = f"{format_workers(executor.active)}, {format_duration(rest)} left" if executor.spread else ""
            progress(ProgressEvent("sweep", before + number, len(units), "runs", note))
        left = sorted(again)
    return failures


def _perform(units: Sequence[Unit], where: tuple[str, Path], block: Sequence[int], progress: Any) -> Iterator[Row]:
    """Do some units, one after the other; what goes wrong with one does not end the others."""
    device, root = where
    for number in block:
        unit, failure, final = units[number], None, False
        try:
            _do(unit, device, root, progress)
        except FloatingPointError as error:
            failure, final = f"did not converge: {error}", True
        except (ValueError, OSError, RuntimeError, MemoryError) as error:
            failure = " ".join(str(error).split()) or type(error).__name__
        yield {"index": number, "failure": failure, "final": final}


def _do(unit: Unit, device: str, root: Path, progress: ProgressCallback) -> None:
    # A worker of a killed sweep may still hold a folder for a moment.
    train(unit.config, unit.folder, device=device, root=root, resume=True, progress=progress, wait=True)
    missing = [one for one in unit.evaluations if unit.record(one) is None]
    if not missing:
        return
    # The plan names the network and its data itself, so the folder may use them.
    config = unit.config
    named = {"data": config.data, "model": config.model}
    target = Target.from_run(unit.folder, device=device, split=unit.split, root=root, progress=progress, **named)
    for evaluation in missing:
        run(evaluation, target, executor=Local(), progress=progress, wait=True)
