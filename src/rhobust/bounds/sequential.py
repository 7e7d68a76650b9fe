"""Sequential (anytime-valid) test over a grid of radii, and sample-size planning for the two-stage procedure."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from rhobust.bounds.confidence import clopper_pearson
from rhobust.bounds.radius import certified_radius, log_e_value
from rhobust.bounds.validation import MARGIN, Array, counts, level, nonnegative, one_count, one_positive, open_interval

GROWTH = 1.05
"""Ratio of the sample sizes of two interim looks; more frequent looks cost time and save few samples."""
Whole = NDArray[np.int64]
CANDIDATES = 60
"""Number of sample sizes compared."""
LEAST = 128
"""Smallest sample size: fewer would not fill a batch."""


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
class RadiusTest:
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

    radii: tuple[float, ...]
    """Increasing radii."""
    sigma: float
    """Standard deviation of the noise."""
    alpha: float
    """Probability of a false certificate."""
    n: int
    """Largest number of noise samples."""
    early: float = 0.2
    """Fraction of alpha spent on early rejection."""
    futility: float = 0.005
    """Stop if the probability of certifying the next radius falls below this."""

    def __post_init__(self) -> None:
        radii = np.atleast_1d(nonnegative("radii", self.radii))
        if radii.ndim > 1 or radii.size == 0 or np.any(np.diff(radii) <= 0):
            raise ValueError(f"radii must increase, and there must be at least one, got {self.radii}")
        one_positive("sigma", self.sigma)
        level("alpha", self.alpha)
        one_count("n", self.n, least=1)
        for name in ("early", "futility"):
            open_interval(name, getattr(self, name))

    @cached_property
    def thresholds(self) -> Array:
        """p_k, rounded up; the hypotheses are p <= p_k."""
        exact = special.ndtr(np.asarray(self.radii, dtype=np.float64) / self.sigma)
        # A probability within 1e-15 of one cannot be certified by any practical number of samples.
        return np.minimum(exact + MARGIN, 1 - 1e-15)

    @cached_property
    def allowed(self) -> Whole:
        """Largest number of failures among n samples with which each radius is certified; -1 if there is none."""
        low = np.full(len(self.radii), -1, dtype=np.int64)
        high = np.full(len(self.radii), self.n, dtype=np.int64)
        while np.any(high - low > 1):
            middle = (low + high) // 2
            failures = np.maximum(middle, 0)
            successes = self.n - failures
            certified = (middle < 0) | self._rejects(successes, failures, self.thresholds, np.full(len(middle), True))
            low, high = np.where(certified, middle, low), np.where(certified, high, middle)
        return low

    def decide(self, successes: Whole, draws: Whole, reached: Whole) -> tuple[Whole, NDArray[np.bool_]]:
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
            rejected = self._rejects(successes[at], failures[at], self.thresholds[reached[at]], last[at])
            reached[at] += rejected
            testing[at] = rejected & (reached[at] < len(self.radii))
        unfinished = ~last & (reached < len(self.radii))
        at = np.flatnonzero(unfinished)
        if at.size:
            left = chance_left(failures[at], draws[at], self.allowed[reached[at]], self.n)
            unfinished[at] = left >= self.futility
        return reached, unfinished

    def _rejects(self, successes: Whole, failures: Whole, p: Array, last: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Whether each hypothesis p is rejected; `last` marks the inputs with all n samples."""
        early = np.atleast_1d(log_e_value(successes, failures, p)) >= -math.log(self.early * self.alpha)
        if not np.any(last):
            return early
        bound = clopper_pearson(np.minimum(successes, self.n), self.n, (1 - self.early) * self.alpha, "lower")
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
