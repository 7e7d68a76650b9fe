"""The one-dimensional transport problem: how much loss one unit of distance can buy."""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from rhobust.bounds.arguments import MARGIN, Array, FloatOrArray, positive, result, unit_interval
from rhobust.bounds.curvature import BEND, PEAK

FAR = 40.0
"""A distance, in standard deviations, at which the normal density is zero in float64."""


def _density(a: Array) -> Array:
    return PEAK * np.exp(-(a**2) / 2)


def _root(u: Array, kappa: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """Bracket the point where phi(a) - kappa (a - u) changes from plus to minus, by bisection."""
    # A bracket is at most 80 wide; 62 halvings bring it below the spacing of floats near 1.
    for _ in range(62):
        middle = (low + high) / 2
        rising = _density(middle) > kappa * (middle - u)
        low, high = np.where(rising, middle, low), np.where(rising, high, middle)
    return low, high


def psi_probit(u: Array, kappa: Array) -> tuple[Array, Array]:
    """Return a guaranteed upper value of Psi and its maximiser tau, from u = Phi^{-1}(p).

    The objective Phi(a) - kappa (a - u)^2 / 2 in a = u + tau has slope h(a) = phi(a) - kappa (a - u).
    For kappa >= phi(1), h falls throughout and has one root. For kappa < phi(1), h falls up to a1,
    rises to a2 and falls again, where a1 < -1 < a2 < 0 solve -a phi(a) = kappa, so there are at most
    two local maxima, one on [u, a1] and one beyond a2. On a bracket [low, high] around a maximiser
    the objective is at most Phi(high) - kappa (low - u)^2 / 2.
    """
    single = kappa >= BEND
    inner = -2 * math.pi * np.where(single, 0.1, kappa) ** 2
    first = np.where(single, -np.inf, -np.sqrt(-special.lambertw(inner, -1).real))
    second = np.where(single, -np.inf, -np.sqrt(-special.lambertw(inner, 0).real))
    u, kappa, first, second = np.broadcast_arrays(u, kappa, first, second)

    finite = np.isfinite(u)
    value, tau = np.array(special.ndtr(u)), np.zeros(u.shape)
    start = np.maximum(u, second)
    top = np.maximum(np.minimum(u + PEAK / np.maximum(kappa, 1e-300), np.maximum(u, 0) + FAR), start)
    with np.errstate(invalid="ignore"):  # infinities of u and of the absent critical points
        near = finite & (u < first) & (_density(first) <= kappa * (first - u))
        beyond = finite & (_density(start) >= kappa * (start - u))
    # Where rounding denies both, the critical points lie so close that h is flat between them, and zero.
    between = finite & ~near & ~beyond
    for chosen, left, right in ((near, u, first), (beyond, start, top), (between, np.maximum(u, first), start)):
        at, price = u[chosen], kappa[chosen]
        low, high = _root(at, price, left[chosen], right[chosen])
        reached = special.ndtr(high) - price * np.maximum(low - at, 0) ** 2 / 2
        better = reached > value[chosen]
        tau[chosen] = np.where(better, high - at, tau[chosen])
        value[chosen] = np.where(better, reached, value[chosen])
    return np.where(finite, np.minimum(value + MARGIN, 1.0), value), tau


def psi1_probit(u: Array, lam: Array) -> tuple[Array, Array]:
    """Return a guaranteed upper value of Psi1 and its maximiser tau, from u = Phi^{-1}(p)."""
    u, lam = np.broadcast_arrays(u, lam)
    finite = np.isfinite(u)
    # phi(a) = lam on the falling side; a price above phi(0) never pays.
    a = np.sqrt(2 * np.maximum(math.log(PEAK) - np.log(lam), 0.0))
    stay = special.ndtr(u)
    tau = np.where(finite & (a > u), a - np.where(finite, u, 0.0), 0.0)
    move = special.ndtr(a) - lam * tau
    tau = np.where((tau > 0) & (move > stay), tau, 0.0)
    value = np.where(tau > 0, move, stay)
    return np.where(finite, np.minimum(value + MARGIN, 1.0), value), tau


def psi(p: ArrayLike, kappa: ArrayLike) -> FloatOrArray:
    """Return a guaranteed upper value of Psi(p, kappa) = sup_{t >= 0} Phi(Phi^{-1}(p) + t) - kappa t^2/2.

    Guarantee: for every loss with values in [0, M] and every p >= lhat(x0) / M,
    sup_x lhat(x) - gamma ||x - x0||^2 <= M Psi(p, kappa) with kappa = 2 gamma sigma^2 / M. It is an
    equality for half-spaces. The returned value exceeds Psi by about 1e-12.

    Args:
        p: Smoothed loss divided by its bound, in [0, 1], broadcast against `kappa`.
        kappa: Price of squared distance in units of the noise, above zero.

    Example:
        >>> f"{psi(0.1, 0.3):.10f}"
        '0.2539860032'
    """
    value, _ = psi_probit(special.ndtri(unit_interval("p", p)), positive("kappa", kappa))
    return result(value)


def psi_slope(p: ArrayLike, kappa: ArrayLike) -> FloatOrArray:
    """Return dPsi/dp = exp((u^2 - a^2) / 2), with u = Phi^{-1}(p) and a = u + t at the maximiser t.

    By the envelope theorem this is the weight with which a change of p enters the certificate. Where
    two maximisers tie, Psi has a kink and one of its two slopes is returned; at p = 0 and p = 1 the
    limit 1. A derivative, not a bound: it is not rounded.

    Args:
        p: Smoothed loss divided by its bound, in [0, 1], broadcast against `kappa`.
        kappa: Price of squared distance in units of the noise, above zero.
    """
    u = special.ndtri(unit_interval("p", p))
    _, tau = psi_probit(u, positive("kappa", kappa))
    return result(np.exp(-tau * (2 * np.where(np.isfinite(u), u, 0.0) + tau) / 2))


def psi1(p: ArrayLike, lam: ArrayLike) -> FloatOrArray:
    """Return a guaranteed upper value of Psi1(p, lam) = sup_{t >= 0} Phi(Phi^{-1}(p) + t) - lam t.

    Guarantee: for every loss with values in [0, M] and every p >= lhat(x0) / M,
    sup_x lhat(x) - gamma ||x - x0|| <= M Psi1(p, lam) with lam = gamma sigma / M. Closed form: the
    larger of p and Phi(a) - lam (a - u), where a >= 0 solves phi(a) = lam.

    Args:
        p: Smoothed loss divided by its bound, in [0, 1], broadcast against `lam`.
        lam: Price of distance in units of the noise, above zero.
    """
    value, _ = psi1_probit(special.ndtri(unit_interval("p", p)), positive("lam", lam))
    return result(value)
