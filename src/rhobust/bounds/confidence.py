"""Confidence bounds of proportions, means and distributions; contradicted certificates; the noise sampler's error."""

import math
from fractions import Fraction
from functools import cache
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy import special, stats

from rhobust.bounds.validation import (
    MARGIN,
    Array,
    FloatOrArray,
    counts,
    level,
    one_count,
    open_interval,
    result,
    unit_interval,
)

Side: TypeAlias = Literal["lower", "upper"]
TINIEST = 1e-200
"""Smallest tail probability of the Beta distribution that float64 computes accurately enough for a bound."""
BISECTIONS = 60
"""Bisections of an interval of length 1; the result is narrower than `MARGIN`."""
SIGNIFICANCE = 1e-6
"""Level of the binomial test that the label has lost a vote of the smoothed classifier."""
CHANCE = 1e-3
"""Probability that valid certificates are called contradictory."""
NoiseKind = Literal["grid", "float"]
"""grid: exact integer noise, for images on the 1/255 grid; float: float32 noise."""
LEVELS = 255
"""Steps of the pixel grid: the values of an 8-bit image are k / 255."""
BITS = 62
"""Resolution of the sampler's uniform variable."""


def clopper_pearson(k: ArrayLike, n: ArrayLike, alpha: ArrayLike, side: Side) -> FloatOrArray:
    """Return an exact one-sided confidence bound for a success probability.

    Guarantee: if `k` counts the successes in `n` independent trials of probability p, then with
    probability at least 1 - alpha the upper bound is >= p (the lower bound is <= p). The upper bound solves
    P(Bin(n, u) <= k) = alpha, that is u = BetaInv(1 - alpha; k + 1, n - k); the lower bound solves
    P(Bin(n, l) >= k) = alpha, that is l = BetaInv(alpha; k, n - k + 1).

    Args:
        k: Successes, broadcast against `n`.
        n: Trials, at least 1.
        alpha: Probability of failure of this one-sided bound; broadcast too.
        side: "lower" or "upper".

    Example:
        >>> f"{clopper_pearson(5, 100, 0.001, 'upper'):.6f}"
        '0.155367'
    """
    alpha = open_interval("alpha", alpha)
    successes, trials, alpha = np.broadcast_arrays(counts("k", k), counts("n", n, least=1), alpha)
    if np.any(successes > trials):
        at = np.argmax(successes > trials)
        raise ValueError(f"k must be <= n, got {successes.flat[at]:.0f} of {trials.flat[at]:.0f}")
    if side == "upper":
        # Valid parameters for k = n, where Beta(n + 1, 0) does not exist; that bound is 1 below.
        failures = np.maximum(trials - successes, 0.5)
        bound = special.betainccinv(successes + 1, failures, alpha) + MARGIN
        bound = _verify(bound, special.betaincc, successes + 1, failures, alpha, successes / trials, 1.0)
        return result(np.where((successes < trials) & (bound < 1), bound, 1.0))
    if side == "lower":
        wins = np.maximum(successes, 0.5)
        bound = special.betaincinv(wins, trials - successes + 1, alpha) - MARGIN
        bound = _verify(bound, special.betainc, wins, trials - successes + 1, alpha, successes / trials, 0.0)
        return result(np.where((successes > 0) & (bound > 0), bound, 0.0))
    raise ValueError(f"side must be 'lower' or 'upper', got {side!r}")


def _verify(bound: Array, tail: np.ufunc, a: Array, b: Array, alpha: Array, share: Array, far: float) -> Array:
    """The bound if its tail probability is at most alpha, else by bisection towards the trivial bound.

    scipy's inverses of the Beta distribution are far off in narrow windows of alpha if a parameter is 1000, and NaN
    for some tiny alphas; its distribution function is accurate. For alpha below `TINIEST` the trivial bound `far` is
    returned.
    """
    bound = np.where(alpha < TINIEST, far, bound)
    wrong = ~(tail(a, b, np.clip(bound, 0, 1)) <= alpha)
    if np.any(wrong):
        at = [values[wrong] for values in np.broadcast_arrays(a, b, alpha)]
        inside, safe = np.broadcast_to(share, wrong.shape)[wrong].astype(float), np.full(int(wrong.sum()), far)
        for _ in range(BISECTIONS):
            middle = (inside + safe) / 2
            holds = tail(at[0], at[1], middle) <= at[2]
            inside, safe = np.where(holds, inside, middle), np.where(holds, middle, safe)
        bound[wrong] = safe + (MARGIN if far else -MARGIN)
    return bound


def betting_upper(x: ArrayLike, alpha: float) -> FloatOrArray:
    """Return an upper confidence bound for the mean of independent values in [0, 1].

    Guarantee: if the values are independent with mean mu (or only have conditional mean mu given
    the past), the bound is at least mu with probability at least 1 - alpha. The capital process
    prod_i (1 - lam_i (x_i - m)) is a nonnegative martingale if m = mu; the bound is the smallest m at
    which the capital has ever reached 1 / alpha (Ville's inequality; Waudby-Smith and Ramdas, 2024).

    The bets lam_i depend on x_1..x_{i-1} only, so `x` must be in sampling order.

    Args:
        x: Values, sampling order along the last axis; leading axes are separate samples.
        alpha: Probability of failure per sample.
    """
    values = unit_interval("x", x)
    alpha = level("alpha", alpha)
    if values.ndim == 0 or values.shape[-1] == 0:
        raise ValueError(f"x must hold at least one value along its last axis, got shape {values.shape}")
    n = values.shape[-1]
    goal = math.log(1 / alpha)

    # Running mean and variance, initialised at 1/2 and 1/4; the bet on x_i uses the variance up to i - 1.
    count = np.arange(1, n + 1) + 1
    mean = (0.5 + np.cumsum(values, axis=-1)) / count
    variance = (0.25 + np.cumsum((values - mean) ** 2, axis=-1)) / count
    past = np.concatenate([np.full((*values.shape[:-1], 1), 0.25), variance[..., :-1]], axis=-1)
    bet = np.sqrt(2 * goal / (n * past))

    # The capital increases with m, so the rejected means form an interval up to 1. With 52 bisections m stays
    # below 1 in float64; at m = 1 the cap on the bet would divide by zero.
    low, high = np.zeros(values.shape[:-1]), np.ones(values.shape[:-1])
    for _ in range(52):
        m = ((low + high) / 2)[..., None]
        capital = np.cumsum(np.log1p(-np.minimum(bet, 0.9 / (1 - m)) * (values - m)), axis=-1)
        rejected = capital.max(axis=-1) >= goal
        low, high = np.where(rejected, low, m[..., 0]), np.where(rejected, m[..., 0], high)
    return result(np.minimum(high + MARGIN, 1.0))


def shuffle(values: Array) -> Array:
    """Return values in a fixed random order.

    The bets of `betting_upper` need an order that does not depend on the values. Shuffling restores one for an
    independent sample that was sorted afterwards, e.g. by class.
    """
    return values[np.random.default_rng(0).permutation(len(values))]


def dkw_margin(n: int, alpha: float) -> float:
    """Return the one-sided Dvoretzky-Kiefer-Wolfowitz margin with Massart's constant.

    Guarantee: for n independent samples and every threshold at once, P(X >= t) exceeds the observed
    fraction by at most sqrt(log(1 / alpha) / (2 n)), with probability at least 1 - alpha. Massart's
    one-sided form needs alpha <= 1/2. Hence it also bounds the mean of every nondecreasing function
    with values in [0, 1], for all such functions at once.
    """
    if not 0 < alpha <= 0.5:
        raise ValueError(f"alpha must be in (0, 1/2], got {alpha}")
    return math.sqrt(math.log(1 / alpha) / (2 * one_count("n", n, least=1))) + MARGIN


def survival_upper(values: ArrayLike, thresholds: ArrayLike, alpha: float) -> Array:
    """Return upper bounds of P(X >= t) that hold for all given thresholds t at once.

    Guarantee: if `values` are independent samples of X, then with probability at least 1 - alpha every
    returned number is at least its P(X >= t). Each is the smaller of two bounds that share alpha
    equally: the observed fraction plus the DKW margin, best near one half, and Clopper-Pearson at
    alpha / (2 len(thresholds)), best near zero and one.

    Args:
        values: The samples.
        thresholds: Increasing thresholds, chosen independently of `values`.
        alpha: Probability that any of the bounds fails.
    """
    samples, steps = np.sort(np.ravel(values)), np.ravel(thresholds)
    alpha = level("alpha", alpha)
    if samples.size == 0 or np.isnan(samples).any():
        raise ValueError("values must hold at least one number and no NaN")
    if np.any(np.diff(steps) <= 0):
        raise ValueError("thresholds must be increasing")
    reached = samples.size - np.searchsorted(samples, steps, side="left")
    uniform = reached / samples.size + dkw_margin(samples.size, alpha / 2) + MARGIN
    pointwise = clopper_pearson(reached, samples.size, alpha / (2 * steps.size), "upper")
    # P(X >= t) decreases in t, so a bound at a threshold is valid at every larger one.
    return np.minimum.accumulate(np.minimum(np.minimum(uniform, pointwise), 1.0))


def failure_quantile(n: int, alpha: float, delta: float) -> int:
    """Return the number of n certificates that may be wrong, except with probability delta.

    Guarantee: if n independent certificates each fail with probability at most alpha, then with
    probability at least 1 - delta no more than the returned K of them fail; K is the (1 - delta)
    quantile of Bin(n, alpha). Subtracting K / n makes an accuracy counted over n certificates valid.
    """
    n, alpha, delta = one_count("n", n, least=1), level("alpha", alpha), level("delta", delta)
    k = max(int(stats.binom.isf(delta, n, alpha)), 0)
    # scipy's quantile is a floating-point search: increase it until the tail probability confirms it.
    while stats.binom.sf(k, n, alpha) > delta:
        k += 1
    return k


def missed_by_sample(n: int, forged: int, drawn: int) -> float:
    """Return the probability that a random sample of rows holds none of the forged ones.

    Guarantee: if `drawn` of n rows are chosen at random, all choices alike and unknown to whoever forged `forged` of
    the rows, then the sample misses all of them with this probability, which is hypergeometric:
    C(n - forged, drawn) / C(n, drawn).

    Args:
        n: Rows.
        forged: Forged rows among them.
        drawn: Rows in the sample.
    """
    return float(_missed(*_sample(n, forged, drawn)))


def smallest_found(n: int, drawn: int, delta: float) -> int | None:
    """Return the smallest number of forged rows of which a random sample misses all with probability at most delta.

    Guarantee: if at least so many of n rows are forged, a sample of `drawn` rows (`missed_by_sample`) holds one of them
    with probability at least 1 - delta. Computed exactly, in rational numbers. None if nothing is drawn.

    Args:
        n: Rows, at least 1.
        drawn: Rows in the sample.
        delta: Probability of missing all of the forged rows.

    Example:
        >>> smallest_found(200, 10, 0.01)
        73
    """
    n, _, drawn = _sample(one_count("n", n, least=1), 0, drawn)
    most = Fraction(level("delta", delta))
    if drawn == 0:
        return None
    low, high = 0, n - drawn + 1  # of none all are missed; of so many one is always in the sample
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _missed(n, middle, drawn) <= most else (middle, high)
    return high


def _sample(n: int, forged: int, drawn: int) -> tuple[int, int, int]:
    n, forged, drawn = (one_count(name, value) for name, value in (("n", n), ("forged", forged), ("drawn", drawn)))
    if max(forged, drawn) > n:
        raise ValueError(f"forged and drawn must be <= n, got {forged} and {drawn} of {n}")
    return n, forged, drawn


def _missed(n: int, forged: int, drawn: int) -> Fraction:
    return Fraction(math.comb(n - forged, drawn), math.comb(n, drawn))


@cache
def rejects_label(label_votes: int, runner_up_votes: int, num_classes: int) -> bool:
    """Return whether binomial tests reject that the label is as probable under noise as every other class.

    Guarantee: if it is, the result is True with probability at most `SIGNIFICANCE`. Of the votes for the label and for
    one other class, the label has then at least Bin(both, 1/2), whatever their number. The result is True if
    P(Bin(label_votes + runner_up_votes, 1/2) <= label_votes) < `SIGNIFICANCE` / (num_classes - 1), a union bound over
    the other classes.

    Args:
        label_votes: Votes for the label.
        runner_up_votes: Votes for the other class that has most of them.
        num_classes: Number of classes.
    """
    both = label_votes + runner_up_votes
    return bool(special.bdtr(label_votes, both, 0.5) * (num_classes - 1) < SIGNIFICANCE)


def contradictions_by_chance(n: int, alpha: float, tests: int) -> int:
    """Return how many of n valid certificates an attack may seem to contradict by chance.

    Guarantee: if the examples are independent, each gets a false certificate with probability at most alpha, and at
    most `tests` adversarial inputs per example are tested by `rejects_label`, then with probability at least
    1 - `CHANCE` no more than the returned number of examples is rejected within its certified radius. An example is
    rejected only if its certificate is false or one of its tests errs, so with probability at most
    alpha + tests `SIGNIFICANCE`. Abstentions count in n: alpha bounds the probability of a false certificate, not the
    fraction of false ones among those issued.

    Args:
        n: Attacked examples for which certification was attempted.
        alpha: Probability that one certificate is false.
        tests: Largest number of adversarial inputs tested per example.
    """
    each = alpha + tests * SIGNIFICANCE
    return failure_quantile(n, each, CHANCE) if n and each < 1 else n


def grid_reach(sigma: float) -> int:
    """Integers on each side of 0 that the sampler's table holds: Phi(-9.2) < 2^-65 is beyond its resolution."""
    if not 0 < sigma <= 10:
        raise ValueError(f"sigma must be in (0, 10] for noise on the pixel grid, got {sigma}")
    return int(9.2 * LEVELS * sigma) + 1


def grid_deviation(sigma: float) -> float:
    """Upper bound of the total variation distance between `grid_block` and its distribution, per coordinate."""
    # Each threshold has an error of at most half a unit of 2^-62; the two tails beyond the table have less than a unit.
    return (2 * grid_reach(sigma) + 2) * 2.0**-BITS


def corrected_alpha(alpha: float, *, sigma: float, dimension: int, draws: int, noise: NoiseKind) -> float:
    """Alpha after the sampler's correction: alpha - draws * dimension * delta(sigma).

    delta is the total variation distance between the integer sampler and its exact law, per number. A statement that
    is false with probability at most the corrected alpha under exact noise is false with probability at most alpha
    under the sampler. Float noise is not corrected: its certificate holds for ideal Gaussian noise only, and says so.

    Args:
        alpha: Probability that the statement may be false.
        sigma: Standard deviation of the noise.
        dimension: Numbers per input.
        draws: Noise samples that the statement depends on.
        noise: "grid" or "float".
    """
    if noise == "float":
        return alpha
    left = alpha - draws * dimension * grid_deviation(sigma)
    if not left > 0:
        raise ValueError(f"alpha must exceed the sampler's deviation {alpha - left:.3g}, got {alpha}")
    return left
