"""What a run or an evaluation costs, counted in passes through the network."""

import math
from dataclasses import astuple, dataclass
from typing import NamedTuple

from rhobust.evaluation import Ascent
from rhobust.evaluation.examples import KEPT
from rhobust.methods import ERM, NAL, STN, TRADES, WRM, AdversarialTraining, AnyMethod, Gaussian, SmoothAdv
from rhobust.paper.jobs import Attack, Certify, Counterexample, Curvature, Curves, Job, Match, Shift, Training
from rhobust.training import TrainConfig

FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = 1, 2, 3
"""A pass in units of a forward one; a gradient for the weights has both halves of the backward pass."""
SURVIVING = 0.5
"""Share of the images that are still attacked at a radius, on average: what is broken leaves the sweep."""
DRAWN = {"fixed": 1.0, "sequential": 0.1, "two-stage": 0.2}
"""Share of the most draws that a certificate takes, on average."""
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
    "tiny-imagenet-50": Size(25_000, 2_500, (3, 64, 64), 50),
}


@dataclass(frozen=True)
class Work:
    """Amounts of each kind of work; a `Rate` has the same fields, in seconds a unit."""

    epochs: float = 0.0
    """Epochs of training: what goes on between two of them."""
    training_calls: float = 0.0
    """Calls of the network in training."""
    training_rows: float = 0.0
    """Images through the network in these calls, in units of a forward pass."""
    evaluations: float = 0.0
    """Evaluations: what goes on before the first image."""
    calls: float = 0.0
    """Calls of the network for a gradient in an evaluation."""
    rows: float = 0.0
    """Images through the network in these calls, in units of a forward pass."""
    votes: float = 0.0
    """Noisy images that vote."""
    streams: float = 0.0
    """Named streams of noise that are opened."""
    bounds: float = 0.0
    """Radii for which a distributional certificate is computed."""

    def __add__(self, other: "Work") -> "Work":
        return Work(*(one + two for one, two in zip(astuple(self), astuple(other), strict=True)))

    @property
    def forward_passes(self) -> float:
        """Everything in units of one image's forward pass."""
        return self.training_rows + self.rows + self.votes


def training_work(run: TrainConfig) -> Work:
    """What a run takes."""
    images = SIZES[run.data].train - run.validation
    calls, rows = update_cost(run.method)
    updates = math.ceil(images / run.batch_size)
    return Work(run.epochs, run.epochs * updates * calls, run.epochs * images * rows)


def update_cost(method: AnyMethod) -> tuple[int, int]:
    """Calls of the network in one weight update, and what they cost an image in units of a forward pass."""
    match method:
        case ERM():
            return 1, WEIGHT_GRADIENT
        case Gaussian():
            return 1, WEIGHT_GRADIENT * method.draws
        case STN():
            return 1, WEIGHT_GRADIENT * 2
        case AdversarialTraining():
            return method.steps + 1, INPUT_GRADIENT * method.steps + WEIGHT_GRADIENT
        case TRADES():
            return method.steps + 2, FORWARD + INPUT_GRADIENT * method.steps + WEIGHT_GRADIENT * 2
        case WRM():
            return method.steps + 2, INPUT_GRADIENT * (method.steps + 1) + WEIGHT_GRADIENT
        case SmoothAdv() | NAL():
            return method.steps + 1, (INPUT_GRADIENT * method.steps + WEIGHT_GRADIENT) * method.draws
        case _:  # a method that is added needs no price here: no table of the paper trains it
            raise ValueError(f"method must be one of the paper's to tell its cost, got {type(method).__name__}")


def evaluation_work(job: Job) -> Work:
    """What a job takes besides its training."""
    match job:
        case Training() | Counterexample():
            return Work()
        case Attack():
            return _attack_work(job)
        case Certify():
            return Work(evaluations=1, votes=job.images * job.n * DRAWN[job.procedure])
        case Shift():
            return Work(evaluations=1, votes=SIZES[job.run.data].test * job.draws, bounds=len(job.eps))
        case Match():
            draws = getattr(job.run.method, "draws", 1)
            return _ascent_work(job.images, job.steps, draws)
        case Curvature():
            # A quarter as many draws choose the direction, with a gradient each.
            rows = job.images * job.draws
            return Work(evaluations=1, calls=job.images, rows=INPUT_GRADIENT * rows / 4, votes=rows)
        case Curves():
            images = job.images * len(job.gammas)
            votes = Work(votes=(images + job.images) * job.draws, bounds=len(job.eps))
            return _ascent_work(images, ASCENT.steps + 1, ASCENT.inner_draws) + votes


def _ascent_work(images: int, steps: int, draws: int) -> Work:
    """An evaluation that climbs the smoothed loss from each image."""
    gradients = images * steps
    calls = steps * math.ceil(images / BLOCK)
    return Work(evaluations=1, calls=calls, rows=INPUT_GRADIENT * gradients * draws, streams=gradients)


def _attack_work(job: Attack) -> Work:
    images = job.limit or SIZES[job.run.data].test
    radii = sum(radius > 0 for radius in job.radii)
    steps, draws = (getattr(job.attack, name, 1) for name in ("steps", "draws"))
    # A restart is one more ascent, and the examples that are kept as pictures are attacked once more.
    ascents = radii * (1 + getattr(job.attack, "restarts", 0))
    gradients = (images + KEPT) * SURVIVING * ascents * steps
    return Work(
        evaluations=1,
        calls=steps * ascents * (math.ceil(images / BLOCK) + 1),
        rows=INPUT_GRADIENT * gradients * draws,
        votes=images * (1 + SURVIVING * radii) * (job.votes if job.scored == "smoothed" else 1),
        streams=gradients if draws > 1 else 0.0,
    )
