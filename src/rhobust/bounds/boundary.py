"""Exact group-sequential test over a grid of radii: boundaries whose probability of a false claim is computed."""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from rhobust.bounds.sequential import Whole, chance_left, looks
from rhobust.bounds.validation import MARGIN, Array, level, nonnegative, one_count, one_positive, open_interval

WINDOW = 1e-18
"""Probability in each tail of a step's failures that is not followed, but counted as a false claim."""


@dataclass(frozen=True)
class BoundaryTest:
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

    radii: tuple[float, ...]
    """Increasing radii."""
    sigma: float
    """Standard deviation of the noise."""
    alpha: float
    """Probability of a false certificate."""
    n: int
    """Largest number of noise samples."""
    step: int
    """Looks are at multiples of this number of samples."""
    first: float = 0.7
    """Share of alpha for samples without failures."""
    last: float = 0.1
    """Share of alpha for sample n."""
    futility: float = 0.4
    """Stop if the probability of certifying the next radius falls below this times sqrt(samples so far / n)."""

    def __post_init__(self) -> None:
        radii = np.atleast_1d(nonnegative("radii", self.radii))
        if radii.ndim > 1 or radii.size == 0 or np.any(np.diff(radii) <= 0):
            raise ValueError(f"radii must increase, and there must be at least one, got {self.radii}")
        one_positive("sigma", self.sigma)
        level("alpha", self.alpha)
        one_count("n", self.n, least=1)
        one_count("step", self.step, least=1)
        for name in ("first", "last", "futility"):
            open_interval(name, getattr(self, name))
        if self.first + self.last > 1:
            raise ValueError(f"first and last must add up to at most 1, got {self.first} and {self.last}")

    @cached_property
    def thresholds(self) -> Array:
        """p_k, rounded up; the hypotheses are p <= p_k."""
        exact = special.ndtr(np.asarray(self.radii, dtype=np.float64) / self.sigma)
        # A probability within 1e-15 of one cannot be certified by any practical number of samples.
        return np.minimum(exact + MARGIN, 1 - 1e-15)

    @cached_property
    def looks(self) -> Whole:
        """Sample sizes of the looks: those of `looks`, and where each radius can first be rejected."""
        earliest = math.log(self.first * self.alpha) / np.log(self.thresholds)
        added = np.ceil(earliest / self.step).astype(np.int64) * self.step
        return np.unique(np.concatenate([looks(self.n, self.step), added[added < self.n]]))

    @cached_property
    def boundaries(self) -> Whole:
        """c_kj: the largest number of failures with which look j rejects p_k, `(radii, looks)`; -1 if none does."""
        sizes = tuple(self.looks.tolist())
        return np.array([_boundary(p, self.alpha, sizes, self.first, self.last) for p in self.thresholds.tolist()])

    @property
    def allowed(self) -> Whole:
        """Largest number of failures among n samples with which each radius is certified; -1 if there is none."""
        return self.boundaries[:, -1]

    def decide(self, successes: Whole, draws: Whole, reached: Whole) -> tuple[Whole, NDArray[np.bool_]]:
        """Interim look at the votes of many inputs, one entry per input; arguments as in `RadiusTest.decide`."""
        successes, draws = np.atleast_1d(successes), np.atleast_1d(draws)
        reached = np.array(reached, dtype=np.int64)
        if not np.isin(draws, self.looks).all():
            raise ValueError(f"draws must be those of a look, got {draws[~np.isin(draws, self.looks)][0]}")
        failures, at = draws - successes, np.searchsorted(self.looks, draws)
        # A radius counts only together with all smaller ones.
        holds = failures[:, None] <= self.boundaries[:, at].T
        for radius in range(len(self.radii)):
            reached += (reached == radius) & holds[:, radius]
        unfinished = (draws < self.n) & (reached < len(self.radii))
        places = np.flatnonzero(unfinished)
        if places.size:
            left = chance_left(failures[places], draws[places], self.allowed[reached[places]], self.n)
            # The longer it has taken, the more samples a decision will still cost.
            unfinished[places] = left >= self.futility * np.sqrt(draws[places] / self.n)
        return reached, unfinished


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
