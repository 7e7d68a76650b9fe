"""What a shift certificate claims: classifier, loss, distance and estimator."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rhobust.bounds import Cost
from rhobust.bounds.confidence import NoiseKind, corrected_alpha
from rhobust.formatting import (
    format_confidence,
    format_distance,
    format_number,
    format_percent,
    format_setting,
    name_split,
    of_data,
)
from rhobust.settings import AUTO, check_at_least, check_declared, check_instance, check_level, check_positive_number

Classifier = Literal["randomised", "k-vote", "majority"]
LossName = Literal["0-1", "cross-entropy"]
Estimator = Literal["majorant", "intervals", "sample"]

DEFAULT_VOTES = 3
"""Default votes of the k-vote classifier: a compromise between its error and its certificate."""

DISTANCES = {"w1": "W1", "w2": "W2", "winf": "W-infinity"}

_HOLDS = {
    "grid": " Holds for 8-bit images.",
    "float": " Holds for ideal Gaussian draws and exact addition: float32 has neither.",
}


def name_classifier(votes: int | None) -> str:
    """How a statement calls the classifier that takes so many noisy votes; None: the most probable class."""
    if votes is None:
        return "the classifier that answers the class most probable under noise"
    if votes == 1:
        return "the classifier that takes one noisy vote"
    return f"the classifier that takes the majority of {votes} noisy votes"


def scope_of_validity(noise: NoiseKind) -> str:
    """Last sentence of a statement: the inputs, or the idealised noise, for which it is proved."""
    return _HOLDS[noise]


def claim_in_full(statement: str, settings: Mapping[str, Any], points: int, network: str | None) -> str:
    """A certificate's statement with what it is about and what it assumes: network, data and how images were drawn.

    Args:
        statement: The certificate's own words.
        settings: Those of its record.
        points: Labelled images behind it, or pairs where there are no others.
        network: Name of the network; None if the statement is about images alone.
    """
    pairs = settings.get("pairs")
    drawn = "independent draws from one distribution"
    if network is None:
        whose = f"If the {points} pairs{'' if pairs is None else f' ({pairs})'} are {drawn}"
    else:
        images = f"the {points} {name_split(settings.get('split')) if pairs is None else 'labelled'} images"
        if settings.get("points") != "before":
            images += of_data(settings.get("data"))
        if pairs is not None:
            images += f" and the pairs ({pairs})"
        labels = "a shift keeps labels" if pairs is None else "the change keeps labels"
        # About the test points themselves nothing has to be drawn at random.
        fixed = settings.get("way") == "sample"
        whose = f"For {network}, if {'' if fixed else f'{images} are {drawn}, none of them trained on, and '}{labels}"
    # Word for word, so that it can be found in the record.
    return f"{whose}: {statement}"


def check_claim(claim: object) -> None:
    """Raise unless a claim is one."""
    check_instance("claim", claim, ShiftClaim, "a ShiftClaim such as ShiftClaim(classifier='k-vote', votes=5)")


@dataclass(frozen=True, kw_only=True)
class NoiseSamples:
    """How the noise samples behind a certificate were taken, and how often its statement may be false."""

    sigma: float
    """Standard deviation of the noise."""
    noise: NoiseKind
    """Kind of noise."""
    dimension: int
    """Numbers per input, for the sampler's correction of alpha."""
    draws: int = 20
    """Noise samples per image."""
    alpha: float = 1e-3
    """Probability that the whole statement is false."""
    seed: int = 0
    """Random seed of the noise."""

    def __post_init__(self) -> None:
        check_declared(self)
        check_level(self.alpha)

    def corrected(self, samples: int) -> float:
        """Alpha after the sampler's correction for so many noise samples in all."""
        return corrected_alpha(self.alpha, sigma=self.sigma, dimension=self.dimension, draws=samples, noise=self.noise)

    def described(self, points: int) -> dict[str, Any]:
        """What a certificate about so many images says of its samples."""
        names = ("draws", "alpha", "sigma", "noise", "seed")
        return {"points": points, **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseCertificate:
    """What every certificate from noise samples at a number of images says about them."""

    points: int
    """Test points: images drawn independently, with labels."""
    draws: int
    """Noise samples per point."""
    alpha: float
    """Probability that the statement is false."""
    sigma: float
    """Standard deviation of the smoothing noise."""
    noise: NoiseKind
    """"grid": exact integer noise; "float": float32 noise, for ideal Gaussian noise only."""
    seed: int
    """Random seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportCertificate(NoiseCertificate):
    """A certificate about votes, under every distribution within a transport distance."""

    votes: int | None
    """Noisy votes per answer; None for the class most probable under noise."""
    cost: Cost
    """Transport distance."""

    def _right(self, of: str, accuracy: float, eps: float) -> str:
        """The sentence of an accuracy for every distribution within eps of `of`, rounded down."""
        return (
            f"With probability {format_confidence(self.alpha)} over test points and noise, for every distribution"
            f" within {DISTANCES[self.cost]} distance {format_distance(eps)} of {of},"
            f" {name_classifier(self.votes)} (sigma {format_setting(self.sigma)}) is right at least"
            f" {format_percent(accuracy, 'down')}% of the time.{scope_of_validity(self.noise)}"
        )


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
        who = name_classifier(self.votes_per_answer)
        if self.loss == "0-1":
            what = (
                f"{who} (sigma {format_setting(sigma)}) is right at least {format_percent(value, 'down')}% of the time"
            )
        else:
            answer = f"the mean cross-entropy of one noisy answer (sigma {format_setting(sigma)})"
            what = f"{answer}, clipped at {format_setting(self.loss_bound)}, is at most {format_number(value, 4, 'up')}"
        return (
            f"With probability {format_confidence(alpha)} over {over}, for every distribution within "
            f"{DISTANCES[self.cost]} distance {format_distance(eps)} of {of}, {what}.{scope_of_validity(noise)}"
        )
