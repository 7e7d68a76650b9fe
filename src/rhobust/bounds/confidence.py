"""Confidence bounds for shares and means, and tests that a count contradicts a claim."""

import math
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
"""Smaller tails of the Beta distribution are not computed well enough to rest a bound on."""
BISECTIONS = 60
"""Halvings of an interval of length 1 at most: then it is shorter than the margin."""


def clopper_pearson(k: ArrayLike, n: ArrayLike, alpha: ArrayLike, side: Side) -> FloatOrArray:
    """Return an exact one-sided confidence bound for a success probability.

    Guarantee: if `k` counts the successes in `n` independent trials of probability p, then with
    probability at least 1 - alpha the bound lies on its side of p. The upper bound solves
    P(Bin(n, u) <= k) = alpha, that is u = BetaInv(1 - alpha; k + 1, n - k); the lower bound solves
    P(Bin(n, l) >= k) = alpha, that is l = BetaInv(alpha; k, n - k + 1).

    Args:
        k: Successes, broadcast against `n`.
        n: Trials, at least 1.
        alpha: Probability of failure, of this one side; broadcast too.
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
        # The parameters of the certain case k = n are replaced: Beta(n + 1, 0) does not exist.
        failures = np.maximum(trials - successes, 0.5)
        bound = special.betainccinv(successes + 1, failures, alpha) + MARGIN
        bound = _checked(bound, special.betaincc, successes + 1, failures, alpha, successes / trials, 1.0)
        return result(np.where((successes < trials) & (bound < 1), bound, 1.0))
    if side == "lower":
        wins = np.maximum(successes, 0.5)
        bound = special.betaincinv(wins, trials - successes + 1, alpha) - MARGIN
        bound = _checked(bound, special.betainc, wins, trials - successes + 1, alpha, successes / trials, 0.0)
        return result(np.where((successes > 0) & (bound > 0), bound, 0.0))
    raise ValueError(f"side must be 'lower' or 'upper', got {side!r}")


def _checked(bound: Array, tail: np.ufunc, a: Array, b: Array, alpha: Array, share: Array, far: float) -> Array:
    """The bound where its tail is at most alpha, else one found by bisection between the share and the far end.

    The library's inverses of the Beta distribution are wrong by far in narrow windows of alpha where a parameter is
    1000, and not a number for some tiny alphas; the distribution itself is right to the last digits. Where alpha is so
    small that its tails are not to be trusted either, nothing is known.
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
    the past), the bound is at least mu with probability at least 1 - alpha. A gambler who believes
    that the mean lies below m holds the capital prod_i (1 - lam_i (x_i - m)), which is a martingale
    when m = mu; the bound is the smallest m at which the capital has ever reached 1 / alpha
    (Ville's inequality; Waudby-Smith and Ramdas, 2024).

    The bets lam_i look only at x_1..x_{i-1}, so `x` must be in the order in which it was sampled.

    Args:
        x: Values, sampling order along the last axis; leading axes are separate samples.
        alpha: Probability of failure, of each sample.
    """
    values = unit_interval("x", x)
    alpha = level("alpha", alpha)
    if values.ndim == 0 or values.shape[-1] == 0:
        raise ValueError(f"x must hold at least one value along its last axis, got shape {values.shape}")
    n = values.shape[-1]
    goal = math.log(1 / alpha)

    # Running mean and variance, started at 1/2 and 1/4; the bet on x_i uses the variance up to i - 1.
    seen = np.arange(1, n + 1) + 1
    mean = (0.5 + np.cumsum(values, axis=-1)) / seen
    variance = (0.25 + np.cumsum((values - mean) ** 2, axis=-1)) / seen
    past = np.concatenate([np.full((*values.shape[:-1], 1), 0.25), variance[..., :-1]], axis=-1)
    bet = np.sqrt(2 * goal / (n * past))

    # The capital grows with m, so the means that are ruled out form an interval up to 1. Fifty-two
    # halvings keep m below 1 in float64, where the cap on the bet would divide by zero.
    low, high = np.zeros(values.shape[:-1]), np.ones(values.shape[:-1])
    for _ in range(52):
        m = ((low + high) / 2)[..., None]
        capital = np.cumsum(np.log1p(-np.minimum(bet, 0.9 / (1 - m)) * (values - m)), axis=-1)
        ruled_out = capital.max(axis=-1) >= goal
        low, high = np.where(ruled_out, low, m[..., 0]), np.where(ruled_out, m[..., 0], high)
    return result(np.minimum(high + MARGIN, 1.0))


def shuffled(values: Array) -> Array:
    """Return values in a fixed random order.

    The bets of `betting_upper` need an order that does not depend on the values. A sample of independent
    draws that was sorted afterwards, say by class, has such an order again once it is shuffled.
    """
    return values[np.random.default_rng(0).permutation(len(values))]


def dkw_margin(n: int, alpha: float) -> float:
    """Return the one-sided Dvoretzky-Kiefer-Wolfowitz margin with Massart's constant.

    Guarantee: for n independent draws and every threshold at once, P(X >= t) exceeds the observed
    fraction by at most sqrt(log(1 / alpha) / (2 n)), with probability at least 1 - alpha. Massart's
    one-sided form needs alpha <= 1/2. Hence it also bounds the mean of every nondecreasing function
    with values in [0, 1], for all such functions at once.
    """
    if not 0 < alpha <= 0.5:
        raise ValueError(f"alpha must lie in (0, 1/2], got {alpha}")
    return math.sqrt(math.log(1 / alpha) / (2 * one_count("n", n, least=1))) + MARGIN


def survival_upper(values: ArrayLike, thresholds: ArrayLike, alpha: float) -> Array:
    """Return upper bounds of P(X >= t) that hold for all given thresholds t at once.

    Guarantee: if `values` are independent draws of X, then with probability at least 1 - alpha every
    returned number is at least its P(X >= t). Each is the smaller of two bounds that share alpha
    equally: the observed fraction plus the DKW margin, best near one half, and Clopper-Pearson at
    alpha / (2 len(thresholds)), best near zero and one.

    Args:
        values: The draws.
        thresholds: Increasing thresholds, chosen without looking at `values`.
        alpha: Probability that any of the bounds fails.
    """
    draws, steps = np.sort(np.ravel(values)), np.ravel(thresholds)
    alpha = level("alpha", alpha)
    if draws.size == 0 or np.isnan(draws).any():
        raise ValueError("values must hold at least one number and no NaN")
    if np.any(np.diff(steps) <= 0):
        raise ValueError("thresholds must be increasing")
    reached = draws.size - np.searchsorted(draws, steps, side="left")
    uniform = reached / draws.size + dkw_margin(draws.size, alpha / 2) + MARGIN
    pointwise = clopper_pearson(reached, draws.size, alpha / (2 * steps.size), "upper")
    # P(X >= t) falls with t, so a bound at a smaller threshold also serves the larger ones.
    return np.minimum.accumulate(np.minimum(np.minimum(uniform, pointwise), 1.0))


def failure_quantile(n: int, alpha: float, delta: float) -> int:
    """Return how many of n certificates may be wrong, up to probability delta.

    Guarantee: if n independent certificates each fail with probability at most alpha, then with
    probability at least 1 - delta no more than the returned K of them fail; K is the (1 - delta)
    quantile of Bin(n, alpha). An accuracy counted over n certificates is thus right after K / n has
    been subtracted.
    """
    n, alpha, delta = one_count("n", n, least=1), level("alpha", alpha), level("delta", delta)
    k = max(int(stats.binom.isf(delta, n, alpha)), 0)
    # scipy's quantile is a search in floats: step until the tail itself confirms it.
    while stats.binom.sf(k, n, alpha) > delta:
        k += 1
    return k


BEYOND_DOUBT = 1e-6
"""A vote is beyond doubt where a label of probability one half would get as few votes so rarely."""
CHANCE = 1e-3
"""Probability that sound certificates and fair votes are called contradictory."""


@cache
def beyond_doubt(label_votes: int, votes: int) -> bool:
    """Return whether so few votes for a label are no accident.

    Guarantee: if the label has at least one half of the probability under noise, the answer is True with probability
    at most `BEYOND_DOUBT`: it is True where P(Bin(votes, 1/2) <= label_votes) lies below that.

    Args:
        label_votes: Votes for the label.
        votes: Votes in all.
    """
    return bool(special.bdtr(label_votes, votes, 0.5) < BEYOND_DOUBT)


def refuted_by_chance(n: int, alpha: float, votings: int) -> int:
    """Return how many of n examples may be broken beyond doubt within their certified radius though all is sound.

    Guarantee: if the examples are independent, each gets a false certificate with probability at most alpha, and each
    is voted on at most `votings` times, then with probability at least 1 - `CHANCE` no more examples than these are
    refuted. One example is refuted only if its certificate is false or one of the votes on it is a fluke, so with
    probability at most alpha + votings `BEYOND_DOUBT`. Those that got no certificate count too: alpha bounds the
    probability of a false certificate, not the share of false ones among those that were given.

    Args:
        n: Attacked examples for which a certificate was sought; none are refuted of none.
        alpha: Probability that one certificate is false.
        votings: Votes on moved copies of one example, at most.
    """
    each = alpha + votings * BEYOND_DOUBT
    return failure_quantile(n, each, CHANCE) if n and each < 1 else n
