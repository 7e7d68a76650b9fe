"""Thresholds of prediction sets whose coverage is certified under shift, by fixed-sequence testing."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rhobust.bounds.majorant import CountBounds, MajorantProblem, count_bounds
from rhobust.bounds.surrogate import Cost, Surrogate
from rhobust.bounds.transport import distances, minimise_dual
from rhobust.bounds.validation import Array, counts, level, one_count, open_interval

TOLERANCE = 1e-4
"""Tolerance of the minimisation over the penalty; a threshold that is this close to the target may be missed."""


class CertifiedThreshold(NamedTuple):
    """The last of a sequence of thresholds that was certified."""

    place: int
    """Its place in the sequence, 0 for the first, which needs no proof: its sets hold all classes."""
    miss: float
    """Upper bound of the miss rate there in its own test; 0 at the first. The statement is the target, not this."""


def certified_threshold(
    misses: ArrayLike,
    draws: int,
    rho: float,
    sigma: float,
    alpha: float,
    *,
    target: float,
    cost: Cost = "w2",
    votes: int = 1,
) -> CertifiedThreshold:
    """Return the smallest prediction sets of a sequence that miss the label at most at the target rate under shift.

    Guarantee: let the points be independent samples of P0 and the noise independent between points; let the sets of
    the sequence be nested, each within the one before, and the first hold all classes. With probability at least
    1 - alpha the sets of the returned place miss the label with probability at most `target` under every P with
    W(P, P0) <= eps = sqrt(rho).

    Fixed-sequence testing: "the label is not in the set of one noisy input" is a loss in {0, 1}, whose worst rate
    over the ball `population_loss` bounds at level alpha. The places are tested in order, each at the whole alpha, and
    the first failure ends it. The true worst rates never fall along the sequence; so a false choice needs that
    the test of the first false place passes, which happens with probability at most alpha.

    Args:
        misses: For each point and place, the noise samples out of `draws` whose set has not the label.
        draws: Noise samples per point.
        rho: Squared radius.
        sigma: Standard deviation of the noise.
        alpha: Probability of failure.
        target: Largest miss rate, 1 - coverage.
        cost: "w1", "w2" or "winf".
        votes: A label is in the set of this many noisy inputs if more than half of their sets hold it.
    """
    table, draws = counts("misses", misses), one_count("draws", draws, least=1)
    if table.ndim != 2 or table.size == 0 or table.max() > draws:
        raise ValueError(f"misses must hold counts up to draws = {draws}, one row per point, got shape {table.shape}")
    if np.any(table[:, 0]) or np.any(np.diff(table, axis=1) < 0):
        raise ValueError("misses must be 0 at the first place and never fall, got other counts")
    target, alpha = float(open_interval("target", target)), level("alpha", alpha)
    surrogate = Surrogate(cost, votes)
    test = _Test(draws, surrogate, float(distances(rho, sigma)), target)
    found, miss = CertifiedThreshold(0, 0.0), 0.0
    for place in range(1, table.shape[1]):
        column = table[:, place]
        if place == 1 or not np.array_equal(column, table[:, place - 1]):
            miss = test.miss(count_bounds(column, draws, alpha))
        if miss > target:
            break
        found = CertifiedThreshold(place, miss)
    return found


class _Test:
    """Bounds of one miss rate after the other; a penalty that sufficed for the last is tried first for the next."""

    def __init__(self, draws: int, surrogate: Surrogate, distance: float, target: float) -> None:
        self.problem, self.surrogate = MajorantProblem(draws, surrogate.curvature), surrogate
        self.distance, self.target, self.penalty = distance, target, 0.0

    def miss(self, bounds: CountBounds) -> float:
        """Upper bound of the worst miss rate: any that is at most the target, else the smallest."""
        problem, surrogate = self.problem, self.surrogate
        if self.distance == 0 or surrogate.cost == "winf":
            return problem.moved(surrogate, bounds, self.distance)
        budget = float(surrogate.budgets(np.array([self.distance]))[0])
        known: dict[float, float] = {}

        def evaluate(penalties: Array) -> tuple[Array, Array]:
            values, slopes = problem.penalised(surrogate, bounds, penalties)
            known.update(zip(penalties.tolist(), (penalties * budget + values).tolist(), strict=True))
            return values, slopes

        if self.penalty:
            evaluate(np.array([self.penalty]))
            if known[self.penalty] <= self.target:
                return known[self.penalty]
        penalties = surrogate.penalties(np.array([self.distance]))
        value = float(minimise_dual(evaluate, np.array([budget]), penalties, ceiling=1.0, tolerance=TOLERANCE)[0])
        self.penalty = min(known, key=known.__getitem__)
        return value
