"""From a job to its record: the one place that knows how the evaluations are called."""

import math
from pathlib import Path

import torch

from reproduction.jobs import Attack, Certify, Counterexample, Curvature, Curves, Job, Match, Shift, Training, runs_of
from reproduction.measuring import curvature_target, match_target, spread
from reproduction.protocol import ALPHA
from reproduction.workshop import Workshop, finished, read_finished
from rhobust.attacks import AnyAttack
from rhobust.certificates import Dtype, native_dtype
from rhobust.evaluation import (
    Ascent,
    attack_target,
    certify_shift_target,
    certify_target,
    curves_target,
    source_from_run,
)
from rhobust.evaluation.walk import walk
from rhobust.methods import NAL
from rhobust.records import PROCEDURE_ON_DISK, Record, RecordWriter, Row
from rhobust.settings import member_to_json
from rhobust.training import train

SEED = 0
"""Names all noise of the evaluations."""
FAST: Dtype = "bfloat16"
"""The arithmetic of certificates and ascents where it pays."""
CLAIMS = "claims"
"""Folder of what is checked without a network."""


class AbsentError(ValueError):
    """What is asked for was not made yet; nothing is wrong with what is there."""


def perform(job: Job, workshop: Workshop) -> Record:
    """Train what the job needs, evaluate what is missing, and return the record; what is there is taken as it is."""
    if done(job, workshop):
        return read(job, workshop)
    for run in runs_of(job):
        # Trained again, a run whose weights lie elsewhere would have records of two networks.
        if workshop.given_away(run):
            raise AbsentError(f"{workshop.folder(run)} must hold its weights for more records, but they lie elsewhere")
        train(
            run,
            workshop.folder(run),
            device=workshop.device,
            root=workshop.root,
            resume=True,
            progress=workshop.progress,
        )
    return _evaluate(job, workshop)


def done(job: Job, workshop: Workshop) -> bool:
    """Whether the record of a job is there and finished."""
    path = find(job, workshop)
    return path is not None and (isinstance(job, Training) or finished(path))


def read(job: Job, workshop: Workshop) -> Record:
    """The finished record of a job, or one line that says why not; `AbsentError` where it was not made yet."""
    for run in runs_of(job):
        if not workshop.trained(run):
            raise AbsentError(f"{workshop.folder(run)} must hold a finished run, but it is not trained")
    if isinstance(job, Training):
        return workshop.training_record(job.run)
    path = find(job, workshop)
    if path is None:
        folder = workshop.out if isinstance(job, Counterexample) else workshop.folder(job.run)
        raise AbsentError(f"{folder} must hold the record of this {_word(job)}, but it was not evaluated")
    return read_finished(path)


def find(job: Job, workshop: Workshop) -> Path | None:
    """Where the record of a job lies, finished or not; None where there is none."""
    match job:
        case Training():
            path = workshop.folder(job.run) / "metrics.jsonl"
            return path if workshop.trained(job.run) and path.exists() else None
        case Counterexample():
            path = _counterexample_writer(job, workshop).path
            return path if path.exists() else None
        case _:
            settings = _settings(job, workshop)
            choices = [{**settings, "device": device, **_arithmetic(job, device)} for device in ("cpu", "cuda")]
            return workshop.find(job.run, _kind(job), choices)


def _word(job: Job) -> str:
    return type(job).__name__.lower()


def _kind(job: Job) -> str:
    """The first word of a record's file."""
    match job:
        case Shift():
            return "certify-shift"
        case _:
            return _word(job)


def _settings(job: Job, workshop: Workshop) -> Row:
    """What the header of the job's record holds, as far as the job decides it."""
    match job:
        case Attack():
            return {
                "attack": member_to_json(job.attack, AnyAttack),
                "scored": job.scored,
                "radii": list(job.radii),
                "votes": job.votes if job.scored == "smoothed" else None,
                "nested": True,
                "probe": job.probe,
                "source": None if job.source is None else {"model_hash": workshop.model_hash(job.source)},
                "limit": job.limit,
                "stride": 1,
                "seed": SEED,
                "sigma": job.run.sigma if job.sigma is None else job.sigma,
            }
        case Certify():
            wanted = {
                "way": PROCEDURE_ON_DISK[job.procedure],
                "n": job.n,
                "alpha": ALPHA,
                "limit": job.images,
                "seed": SEED,
                "sigma": job.sigma,
            }
            return {**wanted, "radii": list(job.radii)} if job.procedure == "sequential" else wanted
        case Shift():
            wanted = {"eps": list(job.eps), "draws": job.draws, "alpha": ALPHA, "limit": None, "stride": 1}
            return {**wanted, "seed": SEED, "sigma": job.sigma}
        case Match():
            return {"inner": job.inner, "steps": job.steps, "images": job.images, "seed": SEED}
        case Curves():
            wanted = {"eps": list(job.eps), "gammas": list(job.gammas), "draws": job.draws, "alpha": ALPHA}
            return {**wanted, "loss": "cross-entropy", "limit": job.images, "seed": SEED, "sigma": job.sigma}
        case Curvature():
            return {"images": job.images, "draws": job.draws, "seed": SEED, "sigma": job.sigma}
    raise ValueError(f"a {_word(job)} must have settings, but it has none")


def _arithmetic(job: Job, device: str) -> Row:
    """What the header of the job's record says of a device's arithmetic; records made by hand may say otherwise."""
    native = native_dtype(torch.device(device))
    match job:
        case Attack() if device == "cuda":
            # Under noise the copy that is climbed votes, too.
            return {"climbed": FAST, "dtype": FAST if job.scored == "smoothed" else native}
        case Attack():
            return {"climbed": None, "dtype": native}
        case Certify() if device == "cuda":
            return {"dtype": FAST}
        case _:
            return {"dtype": native}


def _evaluate(job: Job, workshop: Workshop) -> Record:
    progress = workshop.progress
    match job:
        case Training():
            return workshop.training_record(job.run)
        case Attack():
            target = workshop.target(job.run, job.sigma)
            source = None if job.source is None else source_from_run(workshop.folder(job.source), target)
            return attack_target(
                target,
                job.attack,
                job.radii,
                source=source,
                scored=job.scored,
                votes=job.votes,
                probe=job.probe,
                fast=workshop.fast,
                limit=job.limit,
                seed=SEED,
                progress=progress,
            )
        case Certify():
            target = workshop.target(job.run, job.sigma)
            return certify_target(
                target,
                radii=job.radii or [job.sigma * step / 4 for step in range(17)],
                procedure=job.procedure,
                n=job.n,
                dtype=FAST if workshop.fast else None,
                compiled=workshop.fast,
                alpha=ALPHA,
                limit=job.images,
                stride=spread(target.data, job.images).step,
                seed=SEED,
                progress=progress,
            )
        case Shift():
            target = workshop.target(job.run, job.sigma)
            return certify_shift_target(target, eps=job.eps, draws=job.draws, alpha=ALPHA, seed=SEED, progress=progress)
        case Match():
            assert isinstance(job.run.method, NAL)
            method = NAL(
                sigma=job.run.method.sigma,
                gamma=job.run.method.gamma,
                steps=job.steps,
                draws=job.run.method.draws,
                inner="paper" if job.inner == "paper" else "damped",
            )
            return match_target(
                workshop.target(job.run), method, images=job.images, root=workshop.root, seed=SEED, progress=progress
            )
        case Curvature():
            target = workshop.target(job.run, job.sigma)
            return curvature_target(target, images=job.images, draws=job.draws, seed=SEED, progress=progress)
        case Counterexample():
            return _counterexample(job, workshop)
        case Curves():
            target = workshop.target(job.run, job.sigma)
            return curves_target(
                target,
                eps=job.eps,
                ascent=Ascent(gammas=job.gammas),
                draws=job.draws,
                alpha=ALPHA,
                limit=job.images,
                stride=spread(target.data, job.images).step,
                seed=SEED,
                progress=progress,
            )


def _counterexample_writer(job: Counterexample, workshop: Workshop) -> RecordWriter:
    settings = {"sigma": job.sigma, "gammas": list(job.gammas), "loss": 1.0}
    return RecordWriter(workshop.out / CLAIMS, "counterexample", "", settings)


def _counterexample(job: Counterexample, workshop: Workshop) -> Record:
    """Theorem 2 for the constant loss 1, P0 two atoms at +-sigma sqrt(2 / pi) and P the atom at 0.

    P with noise is N(0, sigma^2). Each half of it goes to the atom on its side: that costs sigma^2 (1 - 2 / pi) and is
    optimal on the line. The surrogate of the paper is 1 - gamma sigma^2.
    """
    rho = job.sigma**2 * (1 - 2 / math.pi)

    def evaluate(block: list[int]) -> list[Row]:
        chosen = [(index, job.gammas[index]) for index in block]
        return [
            {"index": index, "gamma": gamma, "claimed": gamma * rho + 1 - gamma * job.sigma**2, "loss": 1.0}
            for index, gamma in chosen
        ]

    (workshop.out / CLAIMS).mkdir(parents=True, exist_ok=True)
    return walk(
        _counterexample_writer(job, workshop),
        range(len(job.gammas)),
        evaluate,
        lambda rows: {"rho": rho, "refuted": sum(row["claimed"] < row["loss"] for row in rows)},
        task="counterexample",
        progress=workshop.progress,
    )
