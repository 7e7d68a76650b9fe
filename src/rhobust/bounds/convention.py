"""Budgets for clean inputs, and the paper's budgets for noisy ones."""

import numpy as np
from numpy.typing import ArrayLike

from rhobust.bounds.arguments import FloatOrArray, nonnegative, one_count, one_positive, result


def noisy_rho(rho: ArrayLike, dimension: int, sigma: float) -> FloatOrArray:
    """Return rho + d sigma^2: the transport cost that independent noise adds to a clean budget, for display.

    If W_c(P, P0) <= rho then W_c(P * N, P0) <= rho + d sigma^2; the converse is false.

    Args:
        rho: Squared radii between clean inputs.
        dimension: d, numbers in an input.
        sigma: Standard deviation of the noise.
    """
    return result(nonnegative("rho", rho) + _noise_cost(dimension, sigma))


def clean_rho(rho_noisy: ArrayLike, dimension: int, sigma: float) -> FloatOrArray:
    """Return the clean budget rho_noisy - d sigma^2 that a budget for noisy inputs leaves, and refuse a negative one.

    gamma rho_noisy + E phi_gamma, with the noise in the cost of phi_gamma, equals gamma rho plus the mean of the
    surrogate with clean cost: both conventions give the same number. Below d sigma^2 the noisy reading proves
    nothing: with the loss 1 everywhere its "bound" 1 + gamma (rho_noisy - d sigma^2) lies below the loss.

    Args:
        rho_noisy: Squared radii in which the noise is counted.
        dimension: d, numbers in an input.
        sigma: Standard deviation of the noise.
    """
    budget, used = nonnegative("rho_noisy", rho_noisy), _noise_cost(dimension, sigma)
    left = np.asarray(budget - used)
    # Equality up to rounding is a clean budget of zero.
    left = np.where(np.abs(left) <= 1e-12 * used, 0.0, left)
    if np.any(left < 0):
        raise ValueError(
            f"rho_noisy must be >= dimension * sigma^2 = {used:.6g}, the cost of the noise, got {np.min(budget):.6g}"
        )
    return result(left)


def _noise_cost(dimension: int, sigma: float) -> float:
    return one_count("dimension", dimension, least=1) * one_positive("sigma", sigma) ** 2
