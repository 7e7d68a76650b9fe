"""How steep and how curved a Gaussian-smoothed bounded loss can be."""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from rhobust.bounds.arguments import MARGIN, FloatOrArray, positive, result, unit_interval

PEAK = 1 / math.sqrt(2 * math.pi)
"""phi(0), the largest slope of the normal distribution function."""

BEND = math.exp(-0.5) * PEAK
"""phi(1), its largest second derivative."""


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
    """Return the transport price above which the inner problem is strongly concave.

    Guarantee: for gamma > phi(1) M / sigma^2 = 0.24197 M / sigma^2, the map
    x -> lhat(x) - gamma ||x - x0||^2 is strongly concave with modulus
    2 gamma - 2 phi(1) M / sigma^2, whatever the loss in [0, M]. No smaller price has this property
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
    p = lhat(x) / M is the exact value, not a bound of it: the right side rises up to p = 0.3173 and
    falls afterwards. The complement of a slab attains it.

    Args:
        p: Smoothed loss divided by its bound, in [0, 1].
        bound: M, the largest loss.
        sigma: Standard deviation of the noise.
    """
    q = -special.ndtri(unit_interval("p", p) / 2)
    # q phi(q) tends to 0 as p does; the cut at 40 keeps infinity times zero out.
    q = np.minimum(q, 40.0)
    height = 2 * q * PEAK * np.exp(-(q**2) / 2)
    return result((height + MARGIN) * positive("bound", bound) / positive("sigma", sigma) ** 2)


def curvature_lower(p: ArrayLike, bound: ArrayLike, sigma: ArrayLike) -> FloatOrArray:
    """Return the smallest eigenvalue that the Hessian of a smoothed loss of value p M can have.

    Guarantee: lambda_min(Hess lhat(x)) >= -(M / sigma^2) 2 q phi(q), q = Phi^{-1}((1 + p)/2), with
    p = lhat(x) / M exact. It is `curvature_upper` of the loss M - l, with the sign turned.

    Args:
        p: Smoothed loss divided by its bound, in [0, 1].
        bound: M, the largest loss.
        sigma: Standard deviation of the noise.
    """
    return result(-np.asarray(curvature_upper(1 - unit_interval("p", p), bound, sigma)))
