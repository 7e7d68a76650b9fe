"""Testing a grid of radii while drawing: an answer as soon as it is known, at the latest at a cap."""

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
"""Ratio of the draws at two looks; looking more often would cost time and gain next to nothing."""

Whole = NDArray[np.int64]


def looks(n: int, step: int) -> Whole:
    """The draws after which to look: multiples of `step` that grow by a twentieth, and last n itself."""
    n, step = one_count("n", n, least=1), one_count("step", step, least=1)
    found, count = [], 1
    while count * step < n:
        found.append(count * step)
        count = max(count + 1, math.ceil(GROWTH * count))
    return np.array([*found, n], dtype=np.int64)


def chance_left(failures: Whole, draws: Whole, allowed: Whole, n: int) -> Array:
    """About the probability that at most `allowed` of n draws fail, after `failures` of the first `draws` < n.

    The failures among the other n - draws are predicted from the first by comparing two frequencies on the scale of
    arcsin sqrt, where both have variances that do not depend on what they estimate. No guarantee: it serves to decide
    when to stop. It is 0 where more failed than are allowed.
    """
    others = n - draws
    room = np.clip(allowed - failures + 0.5, 0, others)
    spread = np.sqrt(1 / (draws + 0.5) + 1 / (others + 0.5))
    left = special.ndtr(2 * (_arcsine(room, others) - _arcsine(failures, draws)) / spread)
    return np.where(failures > allowed, 0.0, left)


def _arcsine(count: NDArray[np.number], total: Whole) -> NDArray[np.floating]:
    """Anscombe's transform of a frequency."""
    return np.arcsin(np.sqrt((count + 0.375) / (total + 0.75)))


@dataclass(frozen=True)
class RadiusTest:
    """A test of increasing radii r_0 < r_1 < ... from the votes of one class, which may stop at any look.

    Guarantee: the probability that a claimed radius is false, for any network and any rule of when to look, is at
    most alpha. The hypothesis of r_k is p <= p_k = Phi(r_k / sigma). It is rejected early when its e-value reaches
    1 / (early alpha), or at draw n when the Clopper-Pearson bound at level (1 - early) alpha exceeds p_k. A radius is
    claimed only with all smaller ones, so a false claim needs the rejection of the smallest radius that is false: one
    test, whose two ways of erring have probabilities early alpha and (1 - early) alpha. The grid costs nothing.

    Giving up cannot create a claim. It happens when the votes so far leave a chance below `futility` that the draws up
    to n would still reject the hypothesis (`chance_left`).
    """

    radii: tuple[float, ...]
    """Increasing radii."""
    sigma: float
    """Standard deviation of the noise."""
    alpha: float
    """Probability of a false claim."""
    n: int
    """Draws at most."""
    early: float = 0.2
    """Share of alpha that early rejection may spend."""
    futility: float = 0.005
    """The chance that a radius is still proved below which it is given up."""

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
        # A probability within 1e-15 of one is out of reach of any number of draws that fits a float.
        return np.minimum(exact + MARGIN, 1 - 1e-15)

    @cached_property
    def allowed(self) -> Whole:
        """The most failures by draw n with which each radius can still be claimed; -1 where none can."""
        possible = np.full(len(self.radii), -1, dtype=np.int64)
        hopeless = np.full(len(self.radii), self.n, dtype=np.int64)
        while np.any(hopeless - possible > 1):
            middle = (possible + hopeless) // 2
            failures = np.maximum(middle, 0)
            successes = self.n - failures
            claims = (middle < 0) | self._rejects(successes, failures, self.thresholds, np.full(len(middle), True))
            possible, hopeless = np.where(claims, middle, possible), np.where(claims, hopeless, middle)
        return possible

    def judge(self, successes: Whole, draws: Whole, reached: Whole) -> tuple[Whole, NDArray[np.bool_]]:
        """Look at the votes of many inputs, one entry an input.

        Args:
            successes: Votes for the class so far.
            draws: Draws so far, at most n.
            reached: How many of the smallest radii were claimed at the last look; zeros at the first.

        Returns:
            How many are claimed now, and where drawing should go on.
        """
        successes, draws = np.atleast_1d(successes), np.atleast_1d(draws)
        if np.any(draws > self.n):
            raise ValueError(f"draws must be <= {self.n}, got {draws.max()}")
        reached = np.array(reached, dtype=np.int64)
        failures, last = draws - successes, draws == self.n
        climbing = reached < len(self.radii)
        while np.any(climbing):
            at = np.flatnonzero(climbing)
            rejected = self._rejects(successes[at], failures[at], self.thresholds[reached[at]], last[at])
            reached[at] += rejected
            climbing[at] = rejected & (reached[at] < len(self.radii))
        go_on = ~last & (reached < len(self.radii))
        at = np.flatnonzero(go_on)
        if at.size:
            left = chance_left(failures[at], draws[at], self.allowed[reached[at]], self.n)
            go_on[at] = left >= self.futility
        return reached, go_on

    def _rejects(self, successes: Whole, failures: Whole, p: Array, last: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Where the hypotheses p are rejected; `last` says where draw n has come."""
        early = np.atleast_1d(log_e_value(successes, failures, p)) >= -math.log(self.early * self.alpha)
        if not np.any(last):
            return early
        bound = clopper_pearson(np.minimum(successes, self.n), self.n, (1 - self.early) * self.alpha, "lower")
        return early | (last & (bound > p))


CANDIDATES = 60
"""Numbers of draws that are compared, a tenth apart."""
LEAST = 128
"""Draws that are always taken: fewer would not pay for a batch."""


def draws_for_tolerance(
    successes: ArrayLike, trials: int, *, sigma: float, tolerance: float, alpha: float, n: int
) -> Whole:
    """Return with how many draws each radius is expected to come within a tolerance of that with n draws.

    The number follows from a pilot: the radius that m draws give at the pilot's frequency is compared with that of n
    draws, and the smallest m that loses at most the tolerance is taken. This plans and proves nothing. The radius is
    proved by fresh draws, at its full alpha, since m does not depend on them.

    Args:
        successes: Votes for the class in the pilot, one entry an input.
        trials: Draws of the pilot.
        sigma: Standard deviation of the noise.
        tolerance: How much smaller the radius may be expected to be.
        alpha: Level of the bound that the fresh draws will give.
        n: Draws at most.
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
