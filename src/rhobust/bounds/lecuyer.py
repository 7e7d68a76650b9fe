"""The radius that differential privacy gives (Lecuyer et al., 2019), for comparison."""

import numpy as np
from numpy.typing import ArrayLike

from rhobust.bounds.arguments import MARGIN, FloatOrArray, positive, result, unit_interval

POINTS = 200
"""Values of epsilon that are tried; each gives a valid radius, so the largest may be taken."""


def lecuyer_radius(p_lower: ArrayLike, sigma: ArrayLike) -> FloatOrArray:
    """Return the L2 radius that differential privacy of the Gaussian noise proves, rounded down.

    Guarantee: that of `certified_radius`, with a smaller radius. Noise of deviation sigma makes the vote
    (epsilon, delta)-private for moves of length L with delta = 1.25 exp(-(sigma epsilon / L)^2 / 2), epsilon <= 1.
    Privacy bounds how far probabilities change, and the class keeps its lead as long as
    p > exp(2 epsilon) (1 - p) + (1 + exp(epsilon)) delta. Solved for L:

    R = max over epsilon of sigma epsilon / sqrt(2 log(1.25 (1 + exp(epsilon)) / (p - exp(2 epsilon) (1 - p)))).

    Args:
        p_lower: A lower bound of the probability of the class, in [0, 1]; all others together have at most the rest.
        sigma: Standard deviation of the noise.
    """
    p, sigma = np.broadcast_arrays(unit_interval("p_lower", p_lower), positive("sigma", sigma))
    p = p[..., None]
    rest = 1 - p
    # Epsilon must be at most one, and small enough to leave a lead.
    largest = np.minimum(1.0, 0.5 * np.log(np.maximum(p, 0.5) / np.maximum(np.minimum(rest, 0.5), 1e-300)))
    epsilon = largest * np.linspace(0, 1, POINTS + 1)[1:]
    lead = p - np.exp(2 * epsilon) * rest
    safe = np.maximum(lead, 1e-300)
    radius = epsilon / np.sqrt(2 * np.log(1.25 * (1 + np.exp(epsilon)) / safe))
    best = np.where(lead > 0, radius, 0.0).max(axis=-1)
    return result(sigma * np.maximum(best - MARGIN, 0.0))
