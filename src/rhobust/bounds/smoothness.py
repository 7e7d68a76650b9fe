"""Smoothness of a smoothed loss: gradient and Hessian bounds, concavity threshold, gap of the inner problem."""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import special, stats

from rhobust.bounds.validation import (
    MARGIN,
    FloatOrArray,
    level,
    nonnegative,
    one_count,
    one_positive,
    positive,
    result,
    unit_interval,
)

PEAK = 1 / math.sqrt(2 * math.pi)
"""phi(0), the largest derivative of the normal distribution function."""
BEND = math.exp(-0.5) * PEAK
"""phi(1), its largest second derivative."""
DEVIATIONS = 2.0
"""Standard deviations in Cantelli's inequality: a block misses by more with probability at most 1/5."""


def smoothness(bound: ArrayLike, sigma: ArrayLike) -> FloatOrArray:
    """Return the smallest valid Lipschitz constant of the gradient of a smoothed loss.

    Guarantee: for every measurable loss with values in [0, M], the smoothed loss
    lhat(x) = E l(x + z), z ~ N(0, sigma^2 I), has ||Hess lhat|| <= 2 phi(1) M / sigma^2 =
    0.48394 M / sigma^2 in every dimension. A slab of half-width sigma attains it.

    Args:
        bound: M, the largest loss (or the range of the loss).
        sigma: Standard deviation of the noise.

    Example:
        >>> f"{smoothness(1.0, 1.0):.10f}"
        '0.4839414490'
    """
    return result(2 * BEND * positive("bound", bound) / positive("sigma", sigma) ** 2 * (1 + MARGIN))


def concavity_threshold(bound: ArrayLike, sigma: ArrayLike) -> FloatOrArray:
    """Return the penalty gamma above which the inner problem is strongly concave.

    Guarantee: for gamma > phi(1) M / sigma^2 = 0.24197 M / sigma^2, the map
    x -> lhat(x) - gamma ||x - x0||^2 is strongly concave with modulus
    2 gamma - 2 phi(1) M / sigma^2, for every loss in [0, M]. No smaller penalty has this property
    for all losses.

    Args:
        bound: M, the largest loss.
        sigma: Standard deviation of the noise.
    """
    return result(BEND * positive("bound", bound) / positive("sigma", sigma) ** 2 * (1 + MARGIN))


def gradient_bound(p: ArrayLike, bound: ArrayLike, sigma: ArrayLike) -> FloatOrArray:
    """Return the largest gradient norm of a smoothed loss of value p M.

    Guarantee: ||grad lhat(x)|| <= (M / sigma) phi(Phi^{-1}(p)) where p = lhat(x) / M; half-spaces
    attain it. Hence Phi^{-1}(lhat / M) is 1/sigma-Lipschitz.

    Args:
        p: Smoothed loss divided by its bound, in [0, 1].
        bound: M, the largest loss.
        sigma: Standard deviation of the noise.
    """
    height = PEAK * np.exp(-(special.ndtri(unit_interval("p", p)) ** 2) / 2)
    return result((height + MARGIN) * positive("bound", bound) / positive("sigma", sigma))


def curvature_upper(p: ArrayLike, bound: ArrayLike, sigma: ArrayLike) -> FloatOrArray:
    """Return the largest eigenvalue that the Hessian of a smoothed loss of value p M can have.

    Guarantee: lambda_max(Hess lhat(x)) <= (M / sigma^2) 2 q phi(q), q = Phi^{-1}(1 - p/2), where
    p = lhat(x) / M is the exact value, not a bound of it: the right side increases up to p = 0.3173 and
    decreases afterwards. The complement of a slab attains it.

    Args:
        p: Smoothed loss divided by its bound, in [0, 1].
        bound: M, the largest loss.
        sigma: Standard deviation of the noise.
    """
    q = -special.ndtri(unit_interval("p", p) / 2)
    # q phi(q) tends to 0 with p; the cut at 40 avoids infinity times zero.
    q = np.minimum(q, 40.0)
    height = 2 * q * PEAK * np.exp(-(q**2) / 2)
    return result((height + MARGIN) * positive("bound", bound) / positive("sigma", sigma) ** 2)


def curvature_lower(p: ArrayLike, bound: ArrayLike, sigma: ArrayLike) -> FloatOrArray:
    """Return the smallest eigenvalue that the Hessian of a smoothed loss of value p M can have.

    Guarantee: lambda_min(Hess lhat(x)) >= -(M / sigma^2) 2 q phi(q), q = Phi^{-1}((1 + p)/2), with
    p = lhat(x) / M exact. It is minus `curvature_upper` of the loss M - l.

    Args:
        p: Smoothed loss divided by its bound, in [0, 1].
        bound: M, the largest loss.
        sigma: Standard deviation of the noise.
    """
    return result(-np.asarray(curvature_upper(1 - unit_interval("p", p), bound, sigma)))


def gradient_blocks(alpha: float) -> int:
    """Return the number of independent blocks that `squared_gradient_upper` needs at level alpha.

    The smallest odd B with P(Bin(B, 1/5) > B/2) <= alpha.
    """
    alpha, blocks = level("alpha", alpha), 1
    while stats.binom.sf(blocks // 2, blocks, 1 / (1 + DEVIATIONS**2)) > alpha:
        blocks += 2
    return blocks


def squared_gradient_upper(
    products: ArrayLike, half: int, dimension: int, alpha: float, *, bound: float, sigma: float
) -> FloatOrArray:
    """Return an upper confidence bound of a squared gradient norm, from products of independent estimates.

    Guarantee: with probability at least 1 - alpha the bound is at least ||g||^2, g = grad lhat(x) + c for a
    fixed vector c. Each product is <G1, G2>, where G1 and G2 are means of c + (l(x + z) - M/2) z / sigma^2 over
    `half` fresh noise samples each. A product has mean ||g||^2 and variance at most V(||g||^2),
    V(y) = d v^2 / half^2 + 2 v y / half with v = M^2 / (4 sigma^2). It is two standard deviations below its
    mean with probability at most 1/5 (Cantelli), the median of enough blocks with probability at most
    alpha, and otherwise ||g||^2 is at most the larger solution y of y = median + 2 sqrt(V(y)).

    Args:
        products: Products along the last axis; an odd number, at least `gradient_blocks(alpha)`.
        half: Noise samples of each of the two estimates in a block.
        dimension: d, the input dimension.
        alpha: Probability of failure per bound.
        bound: M, the largest loss.
        sigma: Standard deviation of the noise.
    """
    values = np.asarray(products, dtype=np.float64)
    needed = gradient_blocks(alpha)
    if values.ndim == 0 or values.shape[-1] < needed or values.shape[-1] % 2 == 0 or np.isnan(values).any():
        raise ValueError(f"products must be an odd number of at least {needed} values, got shape {values.shape}")
    variance = one_positive("bound", bound) ** 2 / (4 * one_positive("sigma", sigma) ** 2)
    half = one_count("half", half, least=1)
    fixed = one_count("dimension", dimension, least=1) * variance**2 / half**2
    rate = 2 * variance / half
    median = np.median(values, axis=-1)
    share = DEVIATIONS**2 / 2 * rate
    upper = median + share + np.sqrt(np.maximum((median + share) ** 2 - median**2 + DEVIATIONS**2 * fixed, 0.0))
    return result(np.maximum(upper, 0.0) * (1 + MARGIN))


def gap_bound(
    value: ArrayLike, squared_gradient: ArrayLike, gamma: float, *, bound: float, sigma: float
) -> FloatOrArray:
    """Return an upper bound of sup_x lhat(x) - gamma ||x - x0||^2 in the concave regime.

    Guarantee: for gamma > phi(1) M / sigma^2 the objective F is strongly concave with modulus
    mu = 2 gamma - 2 phi(1) M / sigma^2, so that sup F <= F(x) + ||grad F(x)||^2 / (2 mu) at any point x.

    Args:
        value: F at the point, or an upper bound of it.
        squared_gradient: ||grad F||^2 there, or an upper bound of it.
        gamma: Penalty per unit of squared distance.
        bound: M, the largest loss.
        sigma: Standard deviation of the noise.
    """
    modulus = 2 * one_positive("gamma", gamma) - float(smoothness(bound, sigma))
    if not modulus > 0:
        least = float(smoothness(bound, sigma)) / 2
        raise ValueError(f"gamma must exceed the concavity threshold {least:.6g}, got {gamma:.6g}")
    gap = nonnegative("squared_gradient", squared_gradient) / (2 * modulus)
    return result(np.asarray(value, dtype=np.float64) + gap * (1 + MARGIN) + MARGIN)
