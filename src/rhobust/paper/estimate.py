"""What a plan costs, what of it is done, and how long the rest takes on this device."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rhobust.paper.calibration import Rate, calibrate, drawing_seconds
from rhobust.paper.cost import Work, evaluation_work, training_work
from rhobust.paper.evaluate import done
from rhobust.paper.jobs import Job, job_id, runs_of
from rhobust.paper.plan import Plan
from rhobust.paper.specs import Figure, Matrix
from rhobust.paper.workshop import Workshop
from rhobust.training import TrainConfig


@dataclass(frozen=True)
class _Bill:
    """The seconds that a plan's parts have left."""

    rates: dict[tuple[str, str], Rate]
    left: dict[TrainConfig, float]
    """Share of each training that is not on the disk."""
    done: dict[Job, bool]
    drawing: float
    """Seconds of one figure."""

    def training(self, run: TrainConfig) -> float:
        return self.left[run] * self.rates[run.data, run.model].seconds(training_work(run))

    def evaluation(self, job: Job) -> float:
        runs = runs_of(job)
        if self.done[job] or not runs:
            return 0.0
        return self.rates[runs[-1].data, runs[-1].model].seconds(evaluation_work(job))

    def of(self, jobs: Sequence[Job], figures: int) -> dict[str, Any]:
        """The cost of some jobs and the runs that they need, each once."""
        runs = list(dict.fromkeys(run for job in jobs for run in runs_of(job)))
        work = sum(map(training_work, runs), Work()) + sum(map(evaluation_work, jobs), Work())
        seconds = sum(map(self.training, runs)) + sum(map(self.evaluation, jobs)) + figures * self.drawing
        return {
            "runs": len(runs),
            "runs_done": sum(self.left[run] == 0 for run in runs),
            "evaluations": len(jobs),
            "evaluations_done": sum(self.done[job] for job in jobs),
            "forward_passes": work.forward_passes,
            "seconds": seconds,
        }


def estimate(plan: Plan, workshop: Workshop) -> dict[str, Any]:
    """The work of each table and figure and of all together; nothing is started but a short calibration.

    The forward passes are those of the whole; the seconds are those of what is left. Both are estimates: how many
    images survive a radius is not known before.
    """
    networks = {(run.data, run.model): run for run in plan.runs}
    figures = [int(isinstance(spec, Figure | Matrix)) for spec in plan.specs]
    bill = _Bill(
        rates={name: calibrate(run, workshop.device) for name, run in networks.items()},
        left={run: _left(run, workshop) for run in plan.runs},
        done={job: done(job, workshop) for job in plan.jobs},
        drawing=drawing_seconds() if any(figures) else 0.0,
    )
    return {
        "scale": plan.scale.name,
        "device": _name(workshop.device),
        "work": [
            {"name": spec.name, **bill.of(spec.jobs, count)} for spec, count in zip(plan.specs, figures, strict=True)
        ],
        "total": bill.of(plan.jobs, sum(figures)),
        "runs": [
            {
                "id": run.run_id,
                "forward_passes": training_work(run).forward_passes,
                "epochs": run.epochs,
                "epochs_done": workshop.epochs_done(run),
                "seconds": bill.training(run),
            }
            for run in plan.runs
        ],
        "evaluations": [
            {
                "id": job_id(job),
                "forward_passes": evaluation_work(job).forward_passes,
                "done": bill.done[job],
                "seconds": bill.evaluation(job),
            }
            for job in plan.jobs
        ],
    }


def _left(run: TrainConfig, workshop: Workshop) -> float:
    return 0.0 if workshop.trained(run) else 1 - workshop.epochs_done(run) / run.epochs


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"
