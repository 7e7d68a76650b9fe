"""Certified radius of randomized smoothing (Cohen et al.), with a router, and an anytime-valid e-value for a radius."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from rhobust.bounds.validation import (
    MARGIN,
    Array,
    FloatOrArray,
    counts,
    open_interval,
    positive,
    result,
    unit_interval,
)

DEEP = 1e-250
"""Tail probability below which the log of the incomplete beta function is computed by a series."""


def certified_radius(p_lower: ArrayLike, sigma: ArrayLike) -> FloatOrArray:
    """Return the certified L2 radius of the smoothed classifier, rounded down.

    Guarantee: if the base classifier predicts c on x + z, z ~ N(0, sigma^2 I), with probability at
    least p_lower, then c is the most likely class on x' + z for every ||x' - x|| < R =
    sigma Phi^{-1}(p_lower) (Cohen, Rosenfeld and Kolter, 2019). If p_lower <= 1/2, R is 0.0.

    Args:
        p_lower: Lower bound of the class probability, in [0, 1].
        sigma: Standard deviation of the noise.

    Example:
        >>> f"{certified_radius(0.99, 0.25):.6f}"
        '0.581587'
    """
    probit = special.ndtri(unit_interval("p_lower", p_lower))
    return result(positive("sigma", sigma) * np.maximum(probit - MARGIN, 0.0))


Claim = tuple[int | None, float]
"""A class, or None, and the L2 radius within which it is certified."""


def routed_radius(route: Claim, answers: Sequence[Claim | None]) -> Claim:
    """Return the class and the certified radius of G(x) = g_{s(x)}(x), where a router s chooses a classifier g_k.

    Guarantee: if within route's radius of x the router names the classifier of that number, and within each answer's
    radius that classifier gives that class, then G gives the returned class within the returned radius of x. Near x
    either the classifier that answers is known, or they all agree, so that it need not be:

    R = max(min(R_s, R_{s(x)}), min_k R_k), the second only if all answers are of one class.

    Args:
        route: Number of the classifier that the router names, and within which radius; None if that is not certified.
        answers: Class and radius of each classifier; None for one that is not known.

    Example:
        >>> routed_radius((1, 0.5), [None, (7, 2.0)])
        (7, 0.5)
        >>> routed_radius((1, 0.5), [(7, 0.75), (7, 2.0)])
        (7, 0.75)
    """
    number, reach = route
    if number is not None and not 0 <= number < len(answers):
        raise ValueError(f"route must name one of {len(answers)} answers, 0 to {len(answers) - 1}, got {number}")
    for _, radius in filter(None, (route, *answers)):
        if not radius >= 0:
            raise ValueError(f"the radius of a claim must be >= 0, got {radius}")
    named = None if number is None else answers[number]
    best: Claim = (None, 0.0)
    if named is not None and named[0] is not None:
        best = named[0], min(reach, named[1])
    known = [answer for answer in answers if answer is not None]
    classes = {answer[0] for answer in known}
    if len(known) == len(answers) and len(classes) == 1 and None not in classes:
        [common], radius = classes, min(answer[1] for answer in known)
        best = common, max(radius, best[1])
    return best


def _stirling_remainder(z: Array) -> Array:
    """Return log Gamma(z) - ((z - 1/2) log z - z + log(2 pi) / 2)."""
    small = np.minimum(z, 16.0)
    exact = special.gammaln(small) - ((small - 0.5) * np.log(small) - small + math.log(2 * math.pi) / 2)
    w = 1 / np.maximum(z, 16.0) ** 2
    series = (1 / 12 - w * (1 / 360 - w * (1 / 1260 - w * (1 / 1680 - w / 1188)))) * np.sqrt(w)
    return np.where(z < 16, exact, series)


def _log_tail_series(b: Array, total: Array, p0: Array) -> Array:
    """Return the log of sum_j prod_{i < j} (total + i) / (b + 1 + i) (1 - p0), a series of decreasing terms."""
    term, sums = np.ones(b.shape), np.ones(b.shape)
    step = 0
    # All terms are positive, so truncation underestimates the sum, which is conservative.
    while step < 1_000_000 and np.any(term > 1e-17 * sums):
        term = term * (total + step) / (b + 1 + step) * (1 - p0)
        sums = sums + term
        step += 1
    return np.log(sums)


def log_e_value(successes: ArrayLike, failures: ArrayLike, p0: ArrayLike) -> FloatOrArray:
    """Return the logarithm of an e-value against the hypothesis p <= p0, rounded down.

    Guarantee: along any sequence of independent trials of probability p <= p0, the e-value is a
    nonnegative supermartingale that starts at 1, so P(it ever reaches 1 / alpha) <= alpha (Ville).
    The test may be evaluated after every trial and stopped at any time. The e-value is the likelihood
    ratio against p0, mixed over p with density Beta(1, 1/2) restricted to (p0, 1):

    e = B(1 + S, 1/2 + F) sf(p0; 1 + S, 1/2 + F) / (B(1, 1/2) sf(p0; 1, 1/2) p0^S (1 - p0)^F).

    To certify a radius r, test p0 = Phi(r / sigma). Of several radii certify the largest one that is
    rejected together with all smaller ones (fixed-sequence testing): this needs no correction of alpha.

    Args:
        successes: S, broadcast against the others.
        failures: F.
        p0: The hypothesis, in (0, 1).

    Example:
        >>> f"{log_e_value(20, 0, 0.5):.6f}"
        '12.572425'
    """
    s, f, p0 = np.broadcast_arrays(
        counts("successes", successes), counts("failures", failures), open_interval("p0", p0)
    )
    a, b = s + 1.0, f + 0.5
    total = a + b
    # log B(a, b) - S log p0 - F log(1 - p0), regrouped by Stirling's formula to avoid the cancellation of
    # terms as large as n log n.
    excess = a - total * p0
    ratio = (
        (a - 1) * np.log1p(excess / (total * p0))
        + (b - 0.5) * np.log1p(-excess / (total * (1 - p0)))
        + 0.5 * np.log(a / total)
        - 0.5 * np.log(total)
        + 0.5 * math.log(2 * math.pi)
    )
    ratio = ratio + _stirling_remainder(a) + _stirling_remainder(b) - _stirling_remainder(total)
    tail = special.betaincc(a, b, p0)
    # B(1, 1/2) sf(p0; 1, 1/2) = 2 sqrt(1 - p0).
    log_e = ratio + np.log(np.maximum(tail, DEEP)) - math.log(2) - 0.5 * np.log1p(-p0)
    deep = tail < DEEP
    if np.any(deep):
        # The tail as a hypergeometric series, in which p0^S (1 - p0)^F cancels exactly.
        series = np.log(p0 / (2 * b)) + _log_tail_series(np.where(deep, b, 1e9), total, p0)
        log_e = np.where(deep, series, log_e)
    return result(log_e - MARGIN * (10 + np.abs(log_e)))
