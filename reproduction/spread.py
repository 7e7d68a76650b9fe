"""Trainings and evaluations of a plan over several workers."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from reproduction.documents import Gap
from reproduction.runner import AbsentError, Plan, Store, check_data
from reproduction.specs import Job
from rhobust.executors import Executor, Task
from rhobust.formatting import format_workers
from rhobust.progress import ProgressCallback, ProgressEvent, no_progress, progress_or_default
from rhobust.sweeps import Unit, run_units
from rhobust.training import TrainConfig


def perform_all(plan: Plan, store: Store, executor: Executor) -> dict[Job, Gap]:
    """Train, then evaluate what a plan lacks, over an executor; why each job failed that did.

    Workers on other machines need the store and the data at the same paths.
    """
    check_data(plan, store)
    away = replace(store, out=store.out.absolute(), progress=no_progress)
    with progress_or_default(store.progress) as notify:
        missing = [config for config in plan.runs if not store.trained(config)]
        units = [Unit(config, away.folder(config)) for config in missing]
        lost = run_units(units, executor=executor, device=store.device, root=store.root, progress=notify)
        untrained = {missing[number]: Gap(f"{units[number].folder} {line}") for number, line in lost.items()}
        failed = {job: untrained[one] for job in plan.jobs for one in job.runs if one in untrained}
        jobs = [job for job in plan.jobs if job.evaluation is not None and job not in failed and not store.done(job)]
        # The evaluations of a run are one block: its network is loaded once.
        blocks: dict[TrainConfig | None, list[int]] = {}
        for number, job in enumerate(jobs):
            blocks.setdefault(job.run, []).append(number)
        task = Task(_perform_jobs, (away, jobs), None, store.device.type)
        done = 0
        for _, rows in executor.map(task, list(blocks.values()), notify):
            done += len(rows)
            for row in rows:
                if row["failure"] is not None:
                    failed[jobs[row["index"]]] = Gap(row["failure"], absent=row["absent"])
            notify(ProgressEvent("reproduction", done, len(jobs), "evaluations", format_workers(executor.active)))
    return failed


def _perform_jobs(
    shared: tuple[Store, list[Job]], _: None, block: Sequence[int], progress: ProgressCallback
) -> Iterator[dict[str, Any]]:
    store, jobs = shared
    for number in block:
        failure, absent = None, False
        try:
            store.perform(jobs[number])
        except (ValueError, OSError) as error:
            failure, absent = " ".join(str(error).split()), isinstance(error, AbsentError)
        yield {"index": number, "failure": failure, "absent": absent}
