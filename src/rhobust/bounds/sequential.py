"""Sequential tests over a grid of radii, by e-values and by exact boundaries; sample sizes for two stages."""

import math
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from rhobust.bounds.confidence import clopper_pearson
from rhobust.bounds.radius import certified_radius, log_e_value
from rhobust.bounds.validation import MARGIN, Array, counts, level, nonnegative, one_count, one_positive, open_interval

GROWTH = 1.05
"""Ratio of the sample sizes of two interim looks; more frequent looks cost time and save few samples."""
Whole = NDArray[np.int64]
Mask = NDArray[np.bool_]
CANDIDATES = 60
"""Number of sample sizes compared."""
LEAST = 128
"""Smallest sample size: fewer would not fill a batch."""
GATE = 0.05
"""Share of alpha for the smallest radius, where the votes that are tested also selected the class."""
SLACK = 1e-3
"""Share of alpha that `BoundaryTest` leaves for events that are far from likely, so that GATE can be avoided."""
WINDOW = 1e-18
"""Probability in each tail of a step's failures that is not followed, but counted as a false claim."""


def looks(n: int, step: int) -> Whole:
    """Sample sizes of the interim looks: multiples of `step` that grow by 5%, and finally n."""
    n, step = one_count("n", n, least=1), one_count("step", step, least=1)
    found, count = [], 1
    while count * step < n:
        found.append(count * step)
        count = max(count + 1, math.ceil(GROWTH * count))
    return np.array([*found, n], dtype=np.int64)


def chance_left(failures: Whole, draws: Whole, allowed: Whole, n: int) -> Array:
    """Approximate P(at most `allowed` of n samples fail), given `failures` among the first `draws` < n.

    The failures among the other n - draws are predicted by the variance-stabilised (arcsine) difference of two
    frequencies. An approximation without guarantee, used for futility stopping only. It is 0 if more failed than are
    allowed.
    """
    others = n - draws
    spare = np.clip(allowed - failures + 0.5, 0, others)
    spread = np.sqrt(1 / (draws + 0.5) + 1 / (others + 0.5))
    left = special.ndtr(2 * (_arcsine(spare, others) - _arcsine(failures, draws)) / spread)
    return np.where(failures > allowed, 0.0, left)


def _arcsine(count: NDArray[np.number], total: Whole) -> NDArray[np.floating]:
    """Anscombe's transform of a frequency."""
    return np.arcsin(np.sqrt((count + 0.375) / (total + 0.75)))


@dataclass(frozen=True)
class RadiusHypotheses:
    """The null hypotheses of a sequential test of increasing radii: that of r_k is p <= p_k = Phi(r_k / sigma).

    The class may be selected by the votes that are tested (`reused`). Then r_0 is tested at GATE alpha and the others
    at (1 - GATE) alpha, and a certified radius is false with probability at most alpha still. Let c be the class of
    largest probability. If that is above p_0, all other classes together are below 1/2 <= p_0, and one of them passes
    r_0 only if their joint votes would: probability at most GATE alpha. A false radius of c itself is larger than r_0:
    at most (1 - GATE) alpha. If no class is above p_0, at most three groups of classes hold all of them, none of the
    groups above p_0: at most 3 GATE alpha. A single radius is tested at alpha / 3. Where other tests may certify radii
    too (`paired`), both happen at once, and the others have (1 - 3 GATE) alpha.
    """

    radii: tuple[float, ...]
    """Increasing radii."""
    sigma: float
    """Standard deviation of the noise."""
    alpha: float
    """Probability of a false certificate."""
    n: int
    """Largest number of noise samples."""
    reused: bool = field(default=False, kw_only=True)
    """Whether the votes that are tested also selected the class, in any way; False: other samples did."""
    paired: ClassVar[bool] = False
    """Whether other tests may certify radii too, so that a class can be claimed at r_k without p > p_0."""

    def __post_init__(self) -> None:
        radii = np.atleast_1d(nonnegative("radii", self.radii))
        if radii.ndim > 1 or radii.size == 0 or np.any(np.diff(radii) <= 0):
            raise ValueError(f"radii must increase, and there must be at least one, got {self.radii}")
        one_positive("sigma", self.sigma)
        level("alpha", self.alpha)
        one_count("n", self.n, least=1)

    @cached_property
    def thresholds(self) -> Array:
        """p_k, rounded up; the hypotheses are p <= p_k."""
        exact = special.ndtr(np.asarray(self.radii, dtype=np.float64) / self.sigma)
        # A probability within 1e-15 of one cannot be certified by any practical number of samples.
        return np.minimum(exact + MARGIN, 1 - 1e-15)

    @property
    def tested_alpha(self) -> float:
        """The part of alpha that these hypotheses have: all of it."""
        return self.alpha

    @cached_property
    def levels(self) -> Array:
        """The level of each radius's test."""
        if not self.reused:
            return np.full(len(self.radii), self.tested_alpha)
        if len(self.radii) == 1:
            return self._shared(1 / 3, 0.0)
        return self._shared(GATE, 1 - 3 * GATE if self.paired else 1 - GATE)

    def _shared(self, smallest: float, others: float) -> Array:
        """Levels from shares of alpha; rounding does not raise a sum of them above alpha."""
        return np.array([smallest, *[others] * (len(self.radii) - 1)]) * self.tested_alpha * (1 - MARGIN)

    def _continues(self, failures: Whole, draws: Whole, reached: Whole, allowed: Whole, futility: ArrayLike) -> Mask:
        """Whether the sampling of each input goes on: radii are left, and the next one is likely to be certified.

        Args:
            failures: Votes for other classes so far.
            draws: Noise samples so far.
            reached: Number of radii certified.
            allowed: Largest number of failures among n samples with which each radius is certified.
            futility: Least probability of certifying the next radius (`chance_left`), broadcast against the inputs.
        """
        going = (draws < self.n) & (reached < len(self.radii))
        at = np.flatnonzero(going)
        if at.size:
            left = chance_left(failures[at], draws[at], allowed[reached[at]], self.n)
            going[at] = left >= np.broadcast_to(futility, going.shape)[at]
        return going


@dataclass(frozen=True)
class RadiusTest(RadiusHypotheses):
    """Sequential test of increasing radii r_0 < r_1 < ... from the votes of one class; it may stop at any look.

    Guarantee: for any network and any stopping rule, a certified radius is false with probability at most alpha. The
    null hypothesis of r_k is p <= p_k = Phi(r_k / sigma). It is rejected early if its e-value reaches
    1 / (early alpha), or at sample n if the Clopper-Pearson bound at level (1 - early) alpha exceeds p_k. A radius is
    certified only together with all smaller ones (fixed-sequence testing), so a false certificate requires the
    rejection of the smallest false radius: one test, whose early and final rejections err with probabilities
    early alpha and (1 - early) alpha. No correction for the number of radii is needed.

    Futility stopping cannot create a certificate. It occurs if the votes so far leave a probability below `futility`
    that the hypothesis is still rejected within n samples (`chance_left`).
    """

    early: float = 0.2
    """Fraction of alpha spent on early rejection."""
    futility: float = 0.005
    """Stop if the probability of certifying the next radius falls below this."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("early", "futility"):
            open_interval(name, getattr(self, name))

    @cached_property
    def allowed(self) -> Whole:
        """Largest number of failures among n samples with which each radius is certified; -1 if there is none."""
        low = np.full(len(self.radii), -1, dtype=np.int64)
        high = np.full(len(self.radii), self.n, dtype=np.int64)
        while np.any(high - low > 1):
            middle = (low + high) // 2
            failures = np.maximum(middle, 0)
            successes = self.n - failures
            every, last = np.arange(len(middle)), np.full(len(middle), True)
            certified = (middle < 0) | self._rejects(successes, failures, every, last)
            low, high = np.where(certified, middle, low), np.where(certified, high, middle)
        return low

    def decide(self, successes: Whole, draws: Whole, reached: Whole) -> tuple[Whole, Mask]:
        """Interim look at the votes of many inputs, one entry per input.

        Args:
            successes: Votes for the class so far.
            draws: Noise samples so far, at most n.
            reached: Number of radii certified at the last look; zeros at the first.

        Returns:
            The number of radii certified now, and whether sampling continues.
        """
        successes, draws = np.atleast_1d(successes), np.atleast_1d(draws)
        if np.any(draws > self.n):
            raise ValueError(f"draws must be <= {self.n}, got {draws.max()}")
        reached = np.array(reached, dtype=np.int64)
        failures, last = draws - successes, draws == self.n
        testing = reached < len(self.radii)
        while np.any(testing):
            at = np.flatnonzero(testing)
            rejected = self._rejects(successes[at], failures[at], reached[at], last[at])
            reached[at] += rejected
            testing[at] = rejected & (reached[at] < len(self.radii))
        return reached, self._continues(failures, draws, reached, self.allowed, self.futility)

    def _rejects(self, successes: Whole, failures: Whole, radius: Whole, last: Mask) -> Mask:
        """Whether the hypothesis of each radius, given by its number, is rejected; `last` marks all n samples."""
        p, alpha = self.thresholds[radius], self.levels[radius]
        early = np.atleast_1d(log_e_value(successes, failures, p)) >= -np.log(self.early * alpha)
        if not np.any(last):
            return early
        bound = clopper_pearson(np.minimum(successes, self.n), self.n, (1 - self.early) * alpha, "lower")
        return early | (last & (bound > p))


def draws_for_tolerance(
    successes: ArrayLike, trials: int, *, sigma: float, tolerance: float, alpha: float, n: int
) -> Whole:
    """Return the sample size at which each expected radius is within a tolerance of the radius for n samples.

    From a pilot sample: the smallest m for which the radius at the pilot's frequency loses at most the tolerance.
    This plans and proves nothing. The certificate uses fresh samples at its full alpha, which is valid because m does
    not depend on them.

    Args:
        successes: Votes for the class in the pilot, one entry per input.
        trials: Size of the pilot sample.
        sigma: Standard deviation of the noise.
        tolerance: Largest expected loss of radius.
        alpha: Level of the certificate from the fresh samples.
        n: Largest sample size.
    """
    pilot = np.atleast_1d(counts("successes", successes)) / one_count("trials", trials, least=1)
    tolerance, alpha = one_positive("tolerance", tolerance), level("alpha", alpha)
    n = one_count("n", n, least=1)
    spaced = np.geomspace(min(LEAST, n), n, CANDIDATES)
    candidates = np.unique(np.round(spaced).astype(np.int64))
    expected = np.floor(pilot[:, None] * candidates)
    lower = np.asarray(clopper_pearson(expected, np.broadcast_to(candidates, expected.shape), alpha, "lower"))
    radii = np.asarray(certified_radius(lower, sigma))
    return candidates[np.argmax(radii >= radii[:, -1:] - tolerance, axis=1)]


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
