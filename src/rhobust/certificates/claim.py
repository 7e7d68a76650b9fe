"""What a shift certificate claims: classifier, loss, distance and estimator; and bounded losses."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rhobust.bounds import Cost
from rhobust.certificates.sampling import VoteCounter
from rhobust.certificates.schedule import UniformSchedule, check_names
from rhobust.certificates.spec import NoiseKind, Smoothing, arithmetic
from rhobust.formatting import format_confidence, format_distance, format_number, format_percent, format_setting
from rhobust.models.inference import frozen
from rhobust.noise import stream_key
from rhobust.settings import AUTO, check_at_least, check_count, check_declared, check_positive_number

Classifier = Literal["randomised", "k-vote", "majority"]
LossName = Literal["0-1", "cross-entropy"]
Estimator = Literal["majorant", "intervals", "sample"]

DEFAULT_VOTES = 3
"""Default votes of the k-vote classifier: a compromise between its error and its certificate."""

_DISTANCE = {"w1": "W1", "w2": "W2", "winf": "W-infinity"}

_HOLDS = {
    "grid": " Holds for 8-bit images.",
    "float": " Holds for ideal Gaussian draws and exact addition: float32 has neither.",
}


def scope_of_validity(noise: NoiseKind) -> str:
    """Last sentence of a statement: the inputs, or the idealised noise, for which it is proved."""
    return _HOLDS[noise]


@dataclass(frozen=True)
class ShiftClaim:
    """What is claimed for every distribution within a transport distance of the data's distribution.

    With probability at least 1 - alpha: sup { E_P loss : W_cost(P, P0) <= eps } is at most the certified loss.
    """

    classifier: Classifier = "randomised"
    """randomised: one noisy vote; k-vote: the majority of a few fresh votes, a tie is an error; majority: the class
    most probable under noise."""
    votes: int | None = None
    """Votes of the k-vote classifier; default: 3."""
    loss: LossName = "0-1"
    """0-1: the claim is about accuracy; cross-entropy: about the mean cross-entropy under noise, clipped at bound."""
    bound: float | None = field(default=None, metadata=AUTO)
    """Where the cross-entropy is clipped, part of the claim; default: log(classes), the loss of a uniform guess."""
    cost: Cost = "w2"
    """Transport distance from the data's distribution: w1, w2 or winf."""
    estimator: Estimator = "majorant"
    """majorant: the population, from few noise samples per point; intervals: the population, from a confidence interval
    per point; sample: the test points themselves."""

    def __post_init__(self) -> None:
        check_declared(self)
        if self.votes is not None and self.classifier != "k-vote":
            raise ValueError(f"votes must be left out for the {self.classifier} classifier, got {self.votes}")
        check_at_least(1, self, "votes")
        if self.loss == "cross-entropy" and self.classifier != "randomised":
            raise ValueError(f"loss must be 0-1 for the {self.classifier} classifier, got cross-entropy")
        if self.loss == "0-1" and self.bound is not None:
            raise ValueError(f"bound must be left out for the 0-1 loss, got {self.bound}")
        if self.bound is not None:
            check_positive_number("bound", self.bound)

    @property
    def votes_per_answer(self) -> int | None:
        """Fresh votes per answer; None for the class most probable under noise."""
        return {"randomised": 1, "k-vote": self.votes or DEFAULT_VOTES, "majority": None}[self.classifier]

    @property
    def loss_bound(self) -> float:
        """M, the largest loss. Raises if the default bound of the cross-entropy was not resolved."""
        if self.loss == "0-1":
            return 1.0
        if self.bound is None:
            raise ValueError("bound must be resolved before a loss is certified, got None")
        return self.bound

    def resolve(self, num_classes: int) -> "ShiftClaim":
        """The claim with its default bound filled in, which depends on the number of classes."""
        if self.loss == "0-1" or self.bound is not None:
            return self
        return replace(self, bound=math.log(num_classes))

    def in_words(self, value: float, *, eps: float, alpha: float, sigma: float, points: int, noise: NoiseKind) -> str:
        """The guarantee at one eps as a sentence: an accuracy is rounded down, a loss up."""
        over = "the noise" if self.estimator == "sample" else "test points and noise"
        of = f"these {points} test points" if self.estimator == "sample" else "the data's"
        who = {
            "randomised": "the classifier that takes one noisy vote",
            "k-vote": f"the classifier that takes the majority of {self.votes_per_answer} noisy votes",
            "majority": "the classifier that answers the class most probable under noise",
        }[self.classifier]
        if self.loss == "0-1":
            what = (
                f"{who} (sigma {format_setting(sigma)}) is right at least {format_percent(value, 'down')}% of the time"
            )
        else:
            answer = f"the mean cross-entropy of one noisy answer (sigma {format_setting(sigma)})"
            what = f"{answer}, clipped at {format_setting(self.loss_bound)}, is at most {format_number(value, 4, 'up')}"
        return (
            f"With probability {format_confidence(alpha)} over {over}, for every distribution within "
            f"{_DISTANCE[self.cost]} distance {format_distance(eps)} of {of}, {what}.{scope_of_validity(noise)}"
        )


class BoundedLoss(Protocol):
    """A loss with values in [0, bound]."""

    @property
    def bound(self) -> float:
        """M, the largest loss."""
        ...

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        """Loss per row, `(n,)`."""
        ...


@dataclass(frozen=True)
class ZeroOne:
    """1 if the prediction is wrong, else 0."""

    @property
    def bound(self) -> float:
        return 1.0

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        return (logits.argmax(1) != y).double()


@dataclass(frozen=True)
class ClippedCrossEntropy:
    """min(cross-entropy, bound), in float64."""

    bound: float

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits.double(), y, reduction="none").clamp(0.0, self.bound)


@dataclass(frozen=True, slots=True)
class SampledLosses:
    """Losses and wrong predictions of each point under its noise samples."""

    values: np.ndarray
    """Losses, float64 `(points, draws)`, in sampling order."""
    errors: np.ndarray
    """Wrong predictions per point."""


@torch.no_grad()
def sample_losses(
    model: nn.Module,
    images: Tensor,
    y: Tensor,
    loss: BoundedLoss,
    smoothing: Smoothing,
    *,
    indices: Sequence[int],
    draws: int,
    purpose: str,
) -> SampledLosses:
    """Loss of every noise sample at every point, under the same noise that `count_votes` uses for these names.

    Args:
        model: The base network, from inputs in [0, 1] to logits.
        images: uint8 or float images, `(n, channels, height, width)`, on the network's device.
        y: Their labels.
        loss: A loss with values in [0, bound].
        smoothing: The noise and the arithmetic.
        indices: The examples' names in their data set, one per row.
        draws: Noise samples per example.
        purpose: What the samples are for.

    Raises:
        ValueError: The network's logits are not numbers, or a loss is outside [0, bound].
    """
    check_count("draws", draws)
    check_names(indices, images)
    values: list[Tensor] = []
    wrong = torch.zeros(len(images), dtype=torch.int64, device=images.device)
    finite = torch.ones((), dtype=torch.bool, device=images.device)
    counter = VoteCounter(model, images, smoothing)
    schedule = UniformSchedule(indices, draws, purpose, smoothing.num_classes)
    with frozen(model) as frozen_model, arithmetic(smoothing.dtype, images.device):
        while blocks := schedule.next_blocks(counter.rows):
            sizes = torch.tensor([len(block) for block in blocks])
            owner = torch.tensor([block.position for block in blocks]).repeat_interleave(sizes).to(images.device)
            logits = frozen_model(counter.noisy_batch(blocks))[: len(owner)]
            finite &= ~logits.isnan().any()
            values.append(loss(logits, y[owner]).double())
            wrong += torch.bincount(owner[logits.argmax(1) != y[owner]], minlength=len(images))
    if not finite:
        raise ValueError("logits must be numbers, but the network returned NaN: no loss was counted")
    found = torch.cat(values).view(len(images), draws).cpu().numpy()
    outside = ~((found >= 0) & (found <= loss.bound))
    if outside.any():
        raise ValueError(f"losses must be in [0, {loss.bound:.6g}], their bound, got {found[outside][0]:.6g}")
    return SampledLosses(found, wrong.cpu().numpy())


def rounding_noise(seed: int, purpose: str, indices: Sequence[int], draws: int) -> np.ndarray:
    """Uniform numbers for randomized rounding, in [0, 1) and multiples of 2^-53, one per noise sample per example."""
    keys = [stream_key(seed, f"{purpose}:dither", int(index)) for index in indices]
    return np.stack([np.random.Generator(np.random.SFC64(np.random.SeedSequence(key))).random(draws) for key in keys])
