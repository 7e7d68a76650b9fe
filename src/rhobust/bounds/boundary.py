"""Sequential test of radii by exact boundaries: the probability of a false rejection is computed look by look."""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy import stats

from rhobust.bounds.sequential import Mask, RadiusHypotheses, Whole, looks
from rhobust.bounds.validation import MARGIN, Array, one_count, open_interval

SLACK = 1e-3
"""Share of alpha that `BoundaryTest` leaves for events that are far from likely, so that GATE can be avoided."""
WINDOW = 1e-18
"""Probability in each tail of a step's failures that is not followed, but counted as a false claim."""


@dataclass(frozen=True)
class BoundaryTest(RadiusHypotheses):
    """Sequential test of increasing radii r_0 < r_1 < ... from the votes of one class, with exact boundaries.

    Guarantee: for any network and any stopping rule, a certified radius is false with probability at most alpha. The
    null hypothesis of r_k is p <= p_k = Phi(r_k / sigma). It is rejected at look j, after n_j samples, if at most c_kj
    of them fail. The boundary c_k is chosen before sampling, such that at p = p_k the probability that any look up to n
    rejects is at most alpha, computed by following the exact binomial walk; for smaller p it is smaller, since failures
    increase with 1 - p on one probability space. A radius is certified only together with all smaller ones
    (fixed-sequence testing), so a false certificate requires the rejection of the smallest false radius: one test. No
    correction for the number of radii is needed.

    Alpha is spent where real networks stop: a share `first` as soon as samples without any failure can reject, a share
    `last` at sample n, the rest in proportion to the logarithm of the number of samples. Futility stopping cannot
    create a certificate. It occurs if the votes so far leave a small probability that the hypothesis is still rejected
    at sample n (`chance_left`).
    """

    step: int
    """Looks are at multiples of this number of samples."""
    first: float = 0.7
    """Share of alpha for samples without failures."""
    last: float = 0.1
    """Share of alpha for sample n."""
    futility: float = 0.4
    """Stop if the probability of certifying the next radius falls below this times sqrt(samples so far / n)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_count("step", self.step, least=1)
        for name in ("first", "last", "futility"):
            open_interval(name, getattr(self, name))
        if self.first + self.last > 1:
            raise ValueError(f"first and last must add up to at most 1, got {self.first} and {self.last}")

    @cached_property
    def levels(self) -> Array:
        """The level of each radius's test.

        Where votes are reused, alpha / 2 for r_0 and alpha for the others, less a little, are enough if votes can
        distinguish r_0 from r_1: but for a probability that is summed up over the looks, no two of the events that make
        a claim false happen at the same p. Where they cannot, the levels are those of `RadiusHypotheses`.
        """
        if not self.reused:
            return super().levels
        levels, alpha = self._shared((1 - SLACK) / 2, 1 - SLACK), self.tested_alpha
        sizes = self._looks(levels)
        smallest, *others = self._boundaries(levels, sizes)

        def passes(boundary: Whole, p: float) -> float:
            """Bound of the probability that a class, or a group of classes, of probability p passes."""
            return float(stats.binom.cdf(boundary, sizes, 1 - p).sum()) * (1 + MARGIN)

        leading = max((passes(boundary, 1 / 2) for boundary in others), default=0.0) if self.paired else 0.0
        enough = 2 * levels[0] + passes(smallest, 1 / 3) + leading <= alpha
        if others:
            between = float(self.thresholds[:2].mean())
            enough &= levels[1] + passes(smallest, 1 - between) <= alpha
            enough &= all(levels[0] + passes(boundary, between) <= alpha for boundary in others)
        return levels if enough else super().levels

    @cached_property
    def looks(self) -> Whole:
        """Sample sizes of the looks: those of `looks`, and where each radius can first be rejected."""
        return self._looks(self.levels)

    @cached_property
    def boundaries(self) -> Whole:
        """c_kj: the largest number of failures with which look j rejects p_k, `(radii, looks)`; -1 if none does."""
        return self._boundaries(self.levels, self.looks)

    def _looks(self, levels: Array) -> Whole:
        earliest = np.log(self.first * levels) / np.log(self.thresholds)
        added = np.ceil(earliest / self.step).astype(np.int64) * self.step
        return np.unique(np.concatenate([looks(self.n, self.step), added[added < self.n]]))

    def _boundaries(self, levels: Array, sizes: Whole) -> Whole:
        tests, known = zip(self.thresholds.tolist(), levels.tolist(), strict=True), tuple(sizes.tolist())
        return np.array([_boundary(p, alpha, known, self.first, self.last) for p, alpha in tests])

    @property
    def allowed(self) -> Whole:
        """Largest number of failures among n samples with which each radius is certified; -1 if there is none."""
        return self.boundaries[:, -1]

    def decide(self, successes: Whole, draws: Whole, reached: Whole) -> tuple[Whole, Mask]:
        """Interim look at the votes of many inputs, one entry per input; arguments as in `RadiusTest.decide`."""
        successes, draws = np.atleast_1d(successes), np.atleast_1d(draws)
        reached, holds = np.array(reached, dtype=np.int64), self.holds(successes, draws)
        # A radius counts only together with all smaller ones.
        for radius in range(len(self.radii)):
            reached += (reached == radius) & holds[:, radius]
        return reached, self._continues(draws - successes, draws, reached, self.allowed, self._least_chance(draws))

    def holds(self, successes: Whole, draws: Whole) -> Mask:
        """Which hypotheses the votes of each input reject at its look, `(inputs, radii)`."""
        if not np.isin(draws, self.looks).all():
            raise ValueError(f"draws must be those of a look, got {draws[~np.isin(draws, self.looks)][0]}")
        return (draws - successes)[:, None] <= self.boundaries[:, np.searchsorted(self.looks, draws)].T

    def _least_chance(self, draws: Whole) -> Array:
        """The futility after so many samples: the longer it has taken, the more a decision will still cost."""
        return self.futility * np.sqrt(draws / self.n)


@lru_cache(maxsize=256)
def _boundary(p: float, alpha: float, sizes: tuple[int, ...], first: float, last: float) -> tuple[int, ...]:
    """The boundary of one hypothesis: at each look as many failures as the alpha spent so far allows.

    The walk of failures that has not been rejected yet is followed from look to look, at p. What its truncation leaves
    out is counted as rejected, so that the probability of a rejection is never underestimated.
    """
    failure, n = 1 - p, sizes[-1]
    start = max(math.log(first * alpha) / math.log(p), sizes[0])
    spread = math.log(max(n / start, 1 + 1e-9))
    low, weights, spent, before = 0, np.ones(1), 0.0, 0
    found = []
    for size in sizes:
        more = size - before
        least, most = int(stats.binom.ppf(WINDOW, more, failure)), int(stats.binom.isf(WINDOW, more, failure))
        # Relative errors of the probabilities are far below MARGIN.
        step = stats.binom.pmf(np.arange(least, most + 1), more, failure) * (1 + MARGIN)
        spent += weights.sum() * 2 * WINDOW
        low, weights, before = low + least, np.convolve(weights, step), size
        time = min(max(math.log(max(size, 1) / start) / spread, 0.0), 1.0)
        part = 1.0 if size == n else first + (1 - first - last) * time
        total = np.cumsum(weights)
        count = int(np.searchsorted(total, alpha * part - spent, side="right"))
        if count:
            spent += float(total[count - 1])
            weights, low = weights[count:], low + count
        # A walk with fewer failures than any that is still followed was rejected before.
        found.append(low - 1)
        weights, dropped = _trimmed(weights)
        spent += dropped
    return tuple(found)


def _trimmed(weights: Array) -> tuple[Array, float]:
    """Drop the largest numbers of failures while they have next to no probability; returns that probability too."""
    above = np.cumsum(weights[::-1])[::-1]
    kept = max(1, int(np.count_nonzero(above > WINDOW)))
    return weights[:kept], float(above[kept]) if kept < len(weights) else 0.0
