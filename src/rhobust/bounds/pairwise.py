"""Sequential test of radii against each other class by itself: Cohen's theorem with the runner-up's probability."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from rhobust.bounds.boundary import BoundaryTest
from rhobust.bounds.sequential import Mask, Whole
from rhobust.bounds.validation import MARGIN, Array, FloatOrArray, counts, nonnegative, open_interval, positive, result

DEPTH = 1.5
"""How far below Phi(r / sigma) a class probability is expected to be certified, in probits."""
TANGENTS = np.linspace(0.0, DEPTH, 10)
"""Where the hypothesis is bounded by tangents: this far below r / sigma, in probits."""
STAKES = 0.9 * 0.5 ** np.arange(10)
"""Parts of its capital that a bet on a vote may lose."""
PRICE = 3.0
"""What the mixture costs against its best bet, roughly: used to predict, not to prove."""


def log_pairwise_e_value(
    successes: ArrayLike, runner_up: ArrayLike, draws: ArrayLike, radius: ArrayLike, sigma: float
) -> FloatOrArray:
    """Return the logarithm of an e-value against "class b may overtake class a within the radius", rounded down.

    Guarantee: along any sequence of independent votes with Phi^{-1}(p_a) - Phi^{-1}(p_b) <= t = 2 radius / sigma, the
    hypothesis, the e-value is a nonnegative supermartingale that starts at 1, so P(it ever reaches 1 / alpha) <= alpha
    (Ville). Where the hypothesis is false, a is more probable than b at every point within the radius (Cohen et al.,
    2019, Theorem 1). It says p_b >= g(p_a) with g(p) = Phi(Phi^{-1}(p) - t), which is convex. So for each tangent
    g(p) >= h + m p

    E[s] >= h,  s(a) = -m,  s(b) = 1,  s(any other class) = 0,

    and the product of 1 + lambda (h - s) over the votes, 0 <= lambda < 1 / (1 - h), is a nonnegative supermartingale.
    The e-value is the mean over several tangents and lambda. It depends on the counts only, and falls if votes for
    other classes become votes for b: the runner-up's votes give the smallest e-value of all classes.

    Args:
        successes: Votes for a, broadcast against the others.
        runner_up: Votes for b.
        draws: All votes.
        radius: L2 radius.
        sigma: Standard deviation of the noise.

    Example:
        >>> f"{log_pairwise_e_value(700, 200, 1000, 0.1, 0.25):.3f}"
        '18.414'
        >>> f"{log_pairwise_e_value(700, 300, 1000, 0.1, 0.25):.3f}"
        '1.081'
    """
    a, b, n, r = np.broadcast_arrays(
        counts("successes", successes),
        counts("runner_up", runner_up),
        counts("draws", draws),
        nonnegative("radius", radius),
    )
    if np.any(a + b > n):
        raise ValueError(f"successes and runner_up must be <= draws together, got {np.max(a + b - n):.0f} more")
    votes, found = np.stack([a, b, n - a - b], axis=-1).reshape(-1, 3), np.empty(a.size)
    probits = 2 * nonnegative("radius / sigma", r.reshape(-1) / positive("sigma", sigma))
    for t in np.unique(probits):
        at = probits == t
        # Relative errors of the factors' logarithms are far below MARGIN, and no logarithm is larger than 3.
        bets = votes[at] @ _log_factors(float(t))
        found[at] = special.logsumexp(bets, axis=1) - math.log(bets.shape[1])
    return result((found - MARGIN * (10 + 3 * votes.sum(axis=1))).reshape(a.shape))


@lru_cache(maxsize=256)
def _log_factors(t: float) -> Array:
    """log(1 + lambda (h - s)) for a vote for a, for b and for others, (3, bets), rounded down."""
    t += MARGIN * (1 + t)
    z = t / 2 - TANGENTS
    slope, touched = np.exp(t * (z - t / 2)), special.ndtr(z - t)
    below = slope * special.ndtr(z)
    h = touched - below - MARGIN * (touched + below)
    won = (touched + slope * special.ndtr(-z)) * (1 - MARGIN)  # h + m, without cancellation
    stakes = STAKES / (1 - h[:, None])
    factors = np.stack([stakes * won[:, None], stakes * (h - 1)[:, None], stakes * h[:, None]])
    return np.log1p(factors).reshape(3, -1)


def _chance_against(successes: Whole, runner_up: Whole, draws: Whole, t: Array, n: int, needed: float) -> Array:
    """Approximate P(the e-value reaches exp(needed) at sample n), given the votes of the first `draws` < n.

    The difference of the probits is taken for normal, with the variance of the votes so far. An approximation without
    guarantee, used for futility stopping only.
    """
    a, b = (successes + 0.5) / (draws + 1.5), (runner_up + 0.5) / (draws + 1.5)
    za, zb = special.ndtri(a), special.ndtri(b)
    da, db = (np.exp(z * z / 2) * math.sqrt(2 * math.pi) for z in (za, zb))
    variance = a * (1 - a) * da**2 + b * (1 - b) * db**2 + 2 * a * b * da * db
    enough = np.sqrt(2 * (needed + PRICE) * variance / n)
    return special.ndtr((za - zb - t - enough) / np.sqrt(variance * (1 / draws - 1 / n)))


@dataclass(frozen=True)
class PairwiseTest(BoundaryTest):
    """Sequential test of increasing radii by exact boundaries, and against each other class by e-values.

    Guarantee: for any network and any stopping rule, a certified radius is false with probability at most alpha. The
    theorem of Cohen et al. (2019) certifies r if Phi^{-1}(p_a) - Phi^{-1}(p_b) > 2 r / sigma for every other class b.
    `BoundaryTest` takes 1 - p_a for p_b, which loses wherever the other votes are spread over several classes; it is
    kept, at (1 - share) alpha. At share alpha each radius is also tested against each other class, by
    `log_pairwise_e_value`. A radius is certified if its boundary rejects, or if the e-values against all other classes
    do, and only together with all smaller ones. So a false certificate needs, for the smallest false radius of the
    class, a rejection by its boundary, or one by the e-value against one class b that may overtake it there: no
    correction for the number of classes or of radii. Where the votes that are counted select the class, at the first
    look, the e-values use those after it.

    Futility stopping cannot create a certificate. It occurs if neither test is likely to succeed (`chance_left`).
    """

    share: float = 0.1
    """Share of alpha for the tests against each other class."""
    paired: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        open_interval("share", self.share)

    @property
    def tested_alpha(self) -> float:
        """The part of alpha that the boundaries have."""
        return (1 - self.share) * self.alpha

    @property
    def needed(self) -> float:
        """The logarithm of the e-value that rejects, rounded up."""
        return -math.log(self.share * self.alpha) + MARGIN

    def decide_pairs(
        self, successes: Whole, draws: Whole, reached: Whole, runner_up: Whole, selecting: Whole
    ) -> tuple[Whole, Mask]:
        """Interim look at the votes of many inputs, one entry per input; as `decide`, with the runner-up's votes.

        Args:
            successes: Votes for the class so far.
            draws: Noise samples so far, those of a look.
            reached: Number of radii certified at the last look; zeros at the first.
            runner_up: Votes for the other class that has most of them.
            selecting: Votes for the class at the first look, if the votes are reused.

        Returns:
            The number of radii certified now, and whether sampling continues.
        """
        reached, holds = np.array(reached, dtype=np.int64), self.holds(successes, draws)
        for radius in range(len(self.radii)):
            at = np.flatnonzero(reached == radius)
            proved = holds[at, radius]
            left = at[~proved]
            proved[~proved] = self._beats(successes[left], draws[left], runner_up[left], selecting[left], radius)
            reached[at] += proved
        least = self._least_chance(draws)
        going = self._continues(draws - successes, draws, reached, self.allowed, least)
        at = np.flatnonzero(~going & (draws < self.n) & (reached < len(self.radii)))
        if at.size:
            t = 2 * np.asarray(self.radii)[reached[at]] / self.sigma
            left = _chance_against(successes[at], runner_up[at], draws[at], t, self.n, self.needed)
            going[at] = left >= least[at]
        return reached, going

    def _beats(self, successes: Whole, draws: Whole, runner_up: Whole, selecting: Whole, radius: int) -> Mask:
        """Whether the e-values against all other classes reject; none of these has more votes than `runner_up`."""
        if self.reused:
            successes, draws = successes - selecting, draws - self.looks[0]
        runner_up, found = np.minimum(runner_up, draws - successes), np.zeros(len(draws), dtype=bool)
        # Most inputs need no e-value: votes that seem to fulfil the hypothesis have a small one, and where no third
        # class has votes the boundary is the better test.
        lead = special.ndtri((successes + 0.5) / (draws + 1)) - special.ndtri((runner_up + 0.5) / (draws + 1))
        at = np.flatnonzero((lead > 2 * self.radii[radius] / self.sigma) & (runner_up < draws - successes))
        if at.size:
            votes = successes[at], runner_up[at], draws[at]
            found[at] = log_pairwise_e_value(*votes, self.radii[radius], self.sigma) >= self.needed
        return found
