"""What a run or an evaluation costs, counted in passes through the network."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from rhobust.evaluation import Ascent
from rhobust.methods import AnyMethod, Erm, Gaussian, Nal, Pgd, Smoothadv, Stn, Trades, Wrm
from rhobust.training import TrainConfig

from .jobs import Attack, Certify, Counterexample, Curvature, Curves, Job, Match, Shift, Training

FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = 1, 2, 3
"""A pass in units of a forward one; a gradient for the weights has both halves of the backward pass."""
SURVIVING = 0.5
"""Share of the images that are still attacked at a radius, on average: what is broken leaves the sweep."""
ASCENT = Ascent()
"""The ascent behind the curves of the worst loss."""
BLOCK = 100
"""Images that an evaluation takes at once, at least."""


class Size(NamedTuple):
    """A data set as far as the cost depends on it."""

    train: int
    test: int
    shape: tuple[int, int, int]
    classes: int


SIZES = {
    "digits": Size(1000, 797, (1, 8, 8), 10),
    "mnist": Size(60_000, 10_000, (1, 28, 28), 10),
    "cifar10": Size(50_000, 10_000, (3, 32, 32), 10),
    "tiny-imagenet": Size(100_000, 10_000, (3, 64, 64), 200),
}


@dataclass(frozen=True)
class Work:
    """What is to be done: calls of the network and rows through it, and what goes beside them."""

    calls: float = 0.0
    """Calls of the network with a gradient."""
    rows: float = 0.0
    """Images through the network in these calls, in units of a forward pass."""
    votes: float = 0.0
    """Noisy images that vote."""
    streams: float = 0.0
    """Named streams of noise that are opened."""
    points: float = 0.0
    """Points of distributional certificates."""

    def __add__(self, other: "Work") -> "Work":
        return Work(
            self.calls + other.calls,
            self.rows + other.rows,
            self.votes + other.votes,
            self.streams + other.streams,
            self.points + other.points,
        )

    @property
    def forward_passes(self) -> float:
        """Everything in units of one image's forward pass."""
        return self.rows + self.votes


def training_work(run: TrainConfig) -> Work:
    """What an epoch after the other of a run takes."""
    size = SIZES[run.data].train - run.validation
    calls, rows = _update(run.method)
    epochs = math.ceil(size / run.batch_size) * calls, size * rows
    return Work(run.epochs * epochs[0], run.epochs * epochs[1])


def _update(method: AnyMethod) -> tuple[int, float]:
    """Calls of the network in one weight update, and forward passes an image."""
    match method:
        case Erm():
            return 1, WEIGHT_GRADIENT
        case Gaussian():
            return 1, WEIGHT_GRADIENT * method.draws
        case Stn():
            return 1, WEIGHT_GRADIENT * 2
        case Pgd():
            return method.steps + 1, INPUT_GRADIENT * method.steps + WEIGHT_GRADIENT
        case Trades():
            return method.steps + 2, FORWARD + INPUT_GRADIENT * method.steps + WEIGHT_GRADIENT * 2
        case Wrm():
            return method.steps + 2, INPUT_GRADIENT * (method.steps + 1) + WEIGHT_GRADIENT
        case Smoothadv() | Nal():
            return method.steps + 1, (INPUT_GRADIENT * method.steps + WEIGHT_GRADIENT) * method.draws


def evaluation_work(job: Job) -> Work:
    """What a job takes besides its training."""
    match job:
        case Training() | Counterexample():
            return Work()
        case Attack():
            return _attack_work(job)
        case Certify():
            return Work(votes=job.images * job.n)
        case Shift():
            points = SIZES[job.run.data].test
            return Work(votes=points * job.draws, points=points)
        case Match():
            draws = getattr(job.run.method, "draws", 1)
            calls, images = job.steps * math.ceil(job.images / BLOCK), job.images * job.steps
            return Work(calls, INPUT_GRADIENT * images * draws, streams=images)
        case Curvature():
            rows = job.images * job.draws
            return Work(job.images, INPUT_GRADIENT * rows / 4, votes=rows)
        case Curves():
            steps = ASCENT.steps + 1
            images, calls = job.images * len(job.gammas), math.ceil(job.images / BLOCK) * len(job.gammas)
            return Work(
                calls * steps,
                INPUT_GRADIENT * images * steps * ASCENT.inner_draws,
                votes=(images + job.images) * job.draws,
                streams=images * steps,
                points=job.images,
            )


def _attack_work(job: Attack) -> Work:
    images = job.limit or SIZES[job.run.data].test
    radii = sum(radius > 0 for radius in job.radii)
    steps, draws = job.attack.steps, getattr(job.attack, "draws", 1)
    judged = images * (1 + SURVIVING * radii)
    gradients = images * SURVIVING * radii * steps
    return Work(
        calls=steps * radii * math.ceil(images / BLOCK),
        rows=INPUT_GRADIENT * gradients * draws,
        votes=judged * (job.votes if job.scored == "smoothed" else 1),
        streams=gradients if draws > 1 else 0.0,
    )
