"""Other certificates from the same draws, to be shown beside ours."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rhobust.bounds import Cost, kumar_loss, population_loss

from rhobust.certificates.claim import Classifier


@dataclass(frozen=True, slots=True)
class Comparison:
    """A certificate beside ours: it holds with probability 1 - alpha on its own, not together with the others."""

    name: str
    """"kumar": Kumar et al., 2022; "ours": this package's bound for another distance; "cohen": the share of inputs
    whose radius (Cohen et al., 2019) exceeds eps, for the population."""
    classifier: Classifier
    cost: Cost
    certified_accuracy: tuple[float, ...]
    """A lower bound of the accuracy at each eps."""


def compare(
    errors: np.ndarray, *, draws: int, eps: Sequence[float], sigma: float, level: float
) -> tuple[Comparison, ...]:
    """What other bounds make of the wrong votes, all of them statements about the population.

    A distribution within W-infinity distance eps moves every input by at most eps, so the accuracy of the majority vote
    under it is at least the share of inputs with a certified radius above eps: Cohen's certified accuracy.

    Args:
        errors: Wrong votes of each point.
        draws: Votes a point.
        eps: Sizes of the shift.
        sigma: Standard deviation of the smoothing noise.
        level: Probability that one of them is false, each on its own.
    """
    rho = np.square(np.asarray(eps, dtype=float))

    def comparison(name: str, classifier: Classifier, cost: Cost, loss: object) -> Comparison:
        accuracy = np.maximum(0.0, 1 - np.atleast_1d(np.asarray(loss, dtype=float)))
        return Comparison(name, classifier, cost, tuple(accuracy.tolist()))

    def ours(cost: Cost, votes: int | None = 1) -> object:
        return population_loss(errors, draws, rho, sigma, level, cost=cost, votes=votes)

    return (
        comparison("ours", "randomised", "w1", ours("w1")),
        comparison("kumar", "randomised", "w1", kumar_loss(errors, draws, rho, sigma, level)),
        comparison("ours", "randomised", "winf", ours("winf")),
        comparison("cohen", "majority", "winf", ours("winf", None)),
    )
