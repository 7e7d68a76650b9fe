"""Sequential tests over a grid of radii, by e-values and by exact boundaries; sample sizes for two stages."""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

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
