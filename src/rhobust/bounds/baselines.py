"""Baselines from the same counts: the bounds of Kumar et al. (2022), Lecuyer et al. (2019) and Li et al. (2019)."""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from rhobust.bounds.confidence import betting_upper, clopper_pearson, shuffle
from rhobust.bounds.transport import distances
from rhobust.bounds.validation import MARGIN, FloatOrArray, error_counts, positive, result, unit_interval

POINTS = 200
"""Values of epsilon; each gives a valid radius, so the largest is valid."""
ORDERS = 1 + np.geomspace(1e-3, 1e4, 400)
"""Orders of the divergence; each gives a valid radius, so the largest is valid."""


def kumar_loss(errors: ArrayLike, draws: int, rho: ArrayLike, sigma: float, alpha: float) -> FloatOrArray:
    """Return the bound of Kumar et al. (2022) on the worst-case error around the population.

    Guarantee: let the points be independent samples of P0, each classified under independent noise. With
    probability at least 1 - alpha, for all `rho` at once, the randomised classifier errs with probability
    at most u + erf(eps / (2 sqrt(2) sigma)) under every P with W1(P, P0) <= eps = sqrt(rho). Two Gaussians
    at distance t differ by erf(t / (2 sqrt(2) sigma)) in total variation, which is concave in t. u bounds
    the error without a shift: Clopper-Pearson, as published, for one noise sample per point; for more, the
    betting bound of the mean error rate. Arguments are those of `population_loss`.
    """
    found, draws = error_counts(errors, draws)
    if draws == 1:
        clean = clopper_pearson(found.sum(), found.size, alpha, "upper")
    else:
        clean = betting_upper(shuffle(found) / draws, alpha)
    shift = special.erf(distances(rho, sigma) / (2 * math.sqrt(2)))
    return result(np.minimum(clean + shift + MARGIN, 1.0))


def lecuyer_radius(p_lower: ArrayLike, sigma: ArrayLike) -> FloatOrArray:
    """Return the L2 radius from differential privacy of the Gaussian noise (Lecuyer et al.), rounded down.

    Guarantee: that of `certified_radius`, with a smaller radius. Noise of deviation sigma makes the prediction
    (epsilon, delta)-private for perturbations of length L, delta = 1.25 exp(-(sigma epsilon / L)^2 / 2), epsilon <= 1.
    Privacy bounds the change of probabilities, and the class remains the most likely one as long as
    p > exp(2 epsilon) (1 - p) + (1 + exp(epsilon)) delta. Solved for L:

    R = max over epsilon of sigma epsilon / sqrt(2 log(1.25 (1 + exp(epsilon)) / (p - exp(2 epsilon) (1 - p)))).

    Args:
        p_lower: Lower bound of the class probability, in [0, 1]; the runner-up has at most 1 - p_lower.
        sigma: Standard deviation of the noise.
    """
    p, sigma = np.broadcast_arrays(unit_interval("p_lower", p_lower), positive("sigma", sigma))
    p = p[..., None]
    rest = 1 - p
    # Epsilon must be at most one, and small enough for a positive margin.
    largest = np.minimum(1.0, 0.5 * np.log(np.maximum(p, 0.5) / np.maximum(np.minimum(rest, 0.5), 1e-300)))
    epsilon = largest * np.linspace(0, 1, POINTS + 1)[1:]
    lead = p - np.exp(2 * epsilon) * rest
    safe = np.maximum(lead, 1e-300)
    radius = epsilon / np.sqrt(2 * np.log(1.25 * (1 + np.exp(epsilon)) / safe))
    best = np.where(lead > 0, radius, 0.0).max(axis=-1)
    return result(sigma * np.maximum(best - MARGIN, 0.0))


def li_radius(p_lower: ArrayLike, sigma: ArrayLike) -> FloatOrArray:
    """Return the L2 radius from the Renyi divergence of the Gaussian noise (Li et al.), rounded down.

    Guarantee: that of `certified_radius`, with a smaller radius. The divergence of order a > 1 between the noise around
    two points at distance L is a L^2 / (2 sigma^2). The divergence of a distribution in which another class leads from
    (p, 1 - p) is at least -log(2 m), where m is the mean of p and 1 - p with exponent 1 - a. Hence

    R = max over a of sigma sqrt(-(2 / a) log(2 ((p^(1 - a) + (1 - p)^(1 - a)) / 2)^(1 / (1 - a)))).

    Args:
        p_lower: Lower bound of the class probability, in [0, 1]; the runner-up has at most 1 - p_lower.
        sigma: Standard deviation of the noise.
    """
    p, sigma = np.broadcast_arrays(unit_interval("p_lower", p_lower), positive("sigma", sigma))
    lead = np.maximum(p, 0.5)[..., None]
    power = ORDERS - 1
    with np.errstate(divide="ignore"):
        logs = np.logaddexp(-power * np.log(lead), -power * np.log1p(-lead)) - np.log(2)
    # The margin is subtracted before the root, which amplifies errors near zero.
    divergence = logs / power - np.log(2) - MARGIN
    best = np.sqrt(np.maximum(2 * divergence / ORDERS, 0.0)).max(axis=-1)
    return result(sigma * np.maximum(best - MARGIN, 0.0))
