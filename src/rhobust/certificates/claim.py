"""What a certificate for a distribution claims, and of which classifier."""

import math
from dataclasses import dataclass, replace
from typing import Literal

from rhobust.bounds import Cost
from rhobust.declared import check_declared
from rhobust.rounding import confidence, exact, percent, plain, rounded

from rhobust.certificates.smoothing import NoiseKind

Classifier = Literal["randomised", "k-vote", "majority"]
LossName = Literal["0-1", "cross-entropy"]
Way = Literal["majorant", "intervals", "sample"]

DEFAULT_VOTES = 3
"""Votes of the k-vote classifier where none are given: a good compromise between its error and its certificate."""

_DISTANCE = {"w1": "W1", "w2": "W2", "winf": "W-infinity"}

_HOLDS = {
    "grid": " Holds for 8-bit images.",
    "float": " Holds for ideal Gaussian draws and exact addition: float32 has neither.",
}


def proviso(noise: NoiseKind) -> str:
    """What a claim in words ends with: the points that its noise proves it for, or the draws."""
    return _HOLDS[noise]


@dataclass(frozen=True)
class ShiftClaim:
    """What is claimed for every distribution within a transport distance of the data's."""

    classifier: Classifier = "randomised"
    """randomised: one noisy vote; k-vote: the majority of a few fresh votes, a tie is an error; majority: the class
    most probable under noise."""
    votes: int | None = None
    """Votes of the k-vote classifier; 3 where none are given."""
    loss: LossName = "0-1"
    """0-1: the claim is about accuracy; cross-entropy: about the mean cross-entropy under noise, clipped at bound."""
    bound: float | None = None
    """Where the cross-entropy is clipped, a part of the claim; the loss of an even guess, log(classes), where none is
    given."""
    cost: Cost = "w2"
    """How far a distribution lies from the data's: w1, w2 or winf."""
    way: Way = "majorant"
    """majorant: the population, from few draws a point; intervals: the population, from a confidence interval at each
    point; sample: the test points themselves."""

    def __post_init__(self) -> None:
        check_declared(self)
        if self.votes is not None and self.classifier != "k-vote":
            raise ValueError(f"votes must be left out for the {self.classifier} classifier, got {self.votes}")
        if self.votes is not None and self.votes < 1:
            raise ValueError(f"votes must be >= 1, got {self.votes}")
        if self.loss == "cross-entropy" and self.classifier != "randomised":
            raise ValueError(f"loss must be 0-1 for the {self.classifier} classifier, got cross-entropy")
        if self.loss == "0-1" and self.bound is not None:
            raise ValueError(f"bound must be left out for the 0-1 loss, got {self.bound}")
        if self.bound is not None and not 0 < self.bound < math.inf:
            raise ValueError(f"bound must be > 0 and finite, got {self.bound}")

    @property
    def noisy_votes(self) -> int | None:
        """Fresh votes of one answer; None for the class most probable under noise."""
        return {"randomised": 1, "k-vote": self.votes or DEFAULT_VOTES, "majority": None}[self.classifier]

    @property
    def largest(self) -> float:
        """M, the largest loss; the cross-entropy's must have been settled."""
        if self.loss == "0-1":
            return 1.0
        if self.bound is None:
            raise ValueError("bound must be settled before a loss is certified, got None")
        return self.bound

    def settled(self, num_classes: int) -> "ShiftClaim":
        """The claim with its bound, which may depend on the number of classes."""
        if self.loss == "0-1" or self.bound is not None:
            return self
        return replace(self, bound=math.log(num_classes))

    def in_words(self, value: float, *, eps: float, alpha: float, sigma: float, points: int, noise: NoiseKind) -> str:
        """The guarantee at one eps as a sentence: an accuracy is rounded down, a loss up."""
        over = "the noise" if self.way == "sample" else "test points and noise"
        of = f"these {points} test points" if self.way == "sample" else "the data's"
        who = {
            "randomised": "the classifier that takes one noisy vote",
            "k-vote": f"the classifier that takes the majority of {self.noisy_votes} noisy votes",
            "majority": "the classifier that answers the class most probable under noise",
        }[self.classifier]
        if self.loss == "0-1":
            what = f"{who} (sigma {exact(sigma)}) is right at least {percent(value, 'down')}% of the time"
        else:
            answer = f"the mean cross-entropy of one noisy answer (sigma {exact(sigma)})"
            what = f"{answer}, clipped at {exact(self.largest)}, is at most {rounded(value, 4, 'up')}"
        return (
            f"With probability {confidence(alpha)} over {over}, for every distribution within "
            f"{_DISTANCE[self.cost]} distance {plain(eps)} of {of}, {what}.{proviso(noise)}"
        )
