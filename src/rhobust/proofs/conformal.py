"""Prediction sets with certified coverage under shift, from how often the sets of noisy inputs miss the label."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from scipy import special

from rhobust.bounds import certified_threshold
from rhobust.formatting import format_confidence, format_distance, format_number, format_percent, format_setting
from rhobust.proofs.claim import NoiseCertificate, NoiseSamples, scope_of_validity
from rhobust.settings import check_level

Score = Literal["probability", "adaptive", "regularised"]
SCORES: tuple[Score, ...] = get_args(Score)
"""Scores that are compared for the smallest sets."""
SHARES: dict[Score, float] = {"probability": 0.9, "adaptive": 0.05, "regularised": 0.05}
"""Shares of alpha of scores that are compared; the first has the smallest mean sets for most networks."""
PENALTY, FREE_RANKS = 0.1, 1
"""The regularised score adds `PENALTY` per rank beyond the first `FREE_RANKS` after the top."""
STEPS = 181
"""Thresholds between sets of nearly all classes and of nearly none."""


def threshold_grid(score: Score, num_classes: int) -> np.ndarray:
    """Thresholds from the safest on: infinity, for the set of all classes, and then 1 - t with t from 1e-6 to 0.998.

    A class is in the set if its score is at most the threshold. The grid does not depend on data: it is even in the
    log-odds of t. The regularised score may exceed 1, and gets a few thresholds there.
    """
    high = []
    if score == "regularised":
        most = PENALTY * max(num_classes - 1 - FREE_RANKS, 0)
        high = [1 + most * part for part in (0.75, 0.5, 0.25, 0.1)] if most else []
    return np.array([math.inf, *high, *(1 - special.expit(np.linspace(-14, 6, STEPS)))])


@dataclass(frozen=True, slots=True)
class SetCounts:
    """Of one score: how far along the grid sets still have the label, and the other classes."""

    last: np.ndarray
    """For each point and noise sample, the last place of the grid whose set has the label."""
    classes: np.ndarray
    """For each point and class, the last place whose set has the class, in the set of the first noise samples."""

    def misses(self, places: int) -> np.ndarray:
        """For each point and place, the noise samples whose set has not the label."""
        return (self.last[:, :, None] < np.arange(places)).sum(axis=1)


@dataclass(frozen=True, slots=True)
class ConformalCertificate(NoiseCertificate):
    """Prediction sets whose coverage is certified under every shift up to eps.

    Guarantee: with probability at least 1 - alpha over calibration points and noise, under every distribution within W2
    distance eps of the data's, the set of a fresh noisy input holds the label with probability at least `coverage`.
    With `conditional` the same holds for every class: under every distribution within eps of the class's own.
    """

    coverage: float
    """Smallest probability that the set holds the label."""
    eps: float
    """Size of the shift."""
    score: Score
    """How unlikely a class is: 1 - its probability; the probability of all likelier classes; the same plus a penalty
    on its rank."""
    thresholds: tuple[float | None, ...]
    """A class is in the set if its score is at most the threshold: one, or one per class; None for infinity."""
    conditional: bool
    """Whether coverage holds in every class."""
    mean_size: float
    """Mean number of classes in a set at the calibration points: an estimate, no bound."""
    measured_coverage: float
    """Share of sets that hold the label there, without a shift: an estimate, no bound."""
    votes: int
    """Noisy inputs per set: a class is in it if it is in the sets of more than half of them."""

    @classmethod
    def from_counts(
        cls,
        counts: Mapping[Score, SetCounts],
        labels: np.ndarray,
        samples: NoiseSamples,
        *,
        num_classes: int,
        coverage: float,
        eps: float,
        conditional: bool,
        votes: int = 1,
    ) -> "ConformalCertificate":
        """The certificate with the smallest sets among the scores, which share alpha; arguments as its fields."""
        check_level(coverage, "coverage")
        draws, sigma = samples.draws, samples.sigma
        level = samples.corrected(draws * len(labels))
        parts = [np.flatnonzero(labels == label) for label in range(num_classes)] if conditional else [...]
        best: ConformalCertificate | None = None
        for score, found in counts.items():
            each = level * SHARES[score] / sum(SHARES[one] for one in counts) / len(parts)
            grid = threshold_grid(score, num_classes)
            misses = found.misses(grid.size)
            places = [
                certified_threshold(misses[part], draws, eps**2, sigma, each, target=1 - coverage, votes=votes).place
                if part is ... or len(part)
                else 0
                for part in parts
            ]
            held = found.classes >= (np.array(places) if conditional else places[0])
            candidate = cls(
                coverage=coverage,
                eps=eps,
                score=score,
                thresholds=tuple(None if place == 0 else float(grid[place]) for place in places),
                conditional=conditional,
                mean_size=float(held.sum(axis=1).mean()),
                measured_coverage=float(held[np.arange(len(labels)), labels].mean()),
                votes=votes,
                **samples.described(len(labels)),
            )
            if best is None or candidate.mean_size < best.mean_size:
                best = candidate
        assert best is not None
        return best

    def statement(self) -> str:
        """The guarantee in words, rounded to the safe side."""
        what = "one noisy input" if self.votes == 1 else f"the majority of {self.votes} noisy inputs"
        # Rounded up: larger sets hold the label as well.
        limits = [format_number(one, 4, "up") for one in self.thresholds if one is not None]
        # With a threshold for each class one number is not the rule, even if all others are infinite.
        common = len(self.thresholds) == len(limits) == 1
        rule = f"{self.score} score at most {limits[0]}" if common else f"{self.score} score"
        whose = "that of any one class" if self.conditional else "the data's"
        return (
            f"With probability {format_confidence(self.alpha)} over calibration points and noise, for every"
            f" distribution within W2 distance {format_distance(self.eps)} of {whose}, the prediction set of {what}"
            f" (sigma {format_setting(self.sigma)}, {rule}) holds the label at least"
            f" {format_percent(self.coverage, 'down')}% of the time.{scope_of_validity(self.noise)}"
        )
