"""The radius that the Renyi divergence gives (Li et al., 2019), for comparison."""

import numpy as np
from numpy.typing import ArrayLike

from rhobust.bounds.arguments import MARGIN, FloatOrArray, positive, result, unit_interval

ORDERS = 1 + np.geomspace(1e-3, 1e4, 400)
"""Orders of the divergence that are tried; each gives a valid radius, so the largest may be taken."""


def li_radius(p_lower: ArrayLike, sigma: ArrayLike) -> FloatOrArray:
    """Return the L2 radius that the Renyi divergence of the Gaussian noise proves, rounded down.

    Guarantee: that of `certified_radius`, with a smaller radius. The divergence of order a > 1 between the noise around
    two points at distance L is a L^2 / (2 sigma^2). Votes in which another class leads diverge from p, 1 - p by at
    least -log(2 m), where m is the mean of p and 1 - p with exponent 1 - a. Hence

    R = max over a of sigma sqrt(-(2 / a) log(2 ((p^(1 - a) + (1 - p)^(1 - a)) / 2)^(1 / (1 - a)))).

    Args:
        p_lower: A lower bound of the probability of the class, in [0, 1]; all others together have at most the rest.
        sigma: Standard deviation of the noise.
    """
    p, sigma = np.broadcast_arrays(unit_interval("p_lower", p_lower), positive("sigma", sigma))
    lead = np.maximum(p, 0.5)[..., None]
    power = ORDERS - 1
    with np.errstate(divide="ignore"):
        logs = np.logaddexp(-power * np.log(lead), -power * np.log1p(-lead)) - np.log(2)
    # The margin comes off before the root, which would enlarge an error near zero.
    divergence = logs / power - np.log(2) - MARGIN
    best = np.sqrt(np.maximum(2 * divergence / ORDERS, 0.0)).max(axis=-1)
    return result(sigma * np.maximum(best - MARGIN, 0.0))
