"""The bound of Kumar et al., for comparison."""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from rhobust.bounds.arguments import MARGIN, FloatOrArray, result, wrong_answers
from rhobust.bounds.confidence import betting_upper, clopper_pearson, shuffled
from rhobust.bounds.transport import distances


def kumar_loss(errors: ArrayLike, draws: int, rho: ArrayLike, sigma: float, alpha: float) -> FloatOrArray:
    """Return the bound of Kumar et al. (2022) on the worst error near the population.

    Guarantee: let the points be independent draws of P0, each classified under noise of its own. With
    probability at least 1 - alpha, for all `rho` at once, the randomised classifier errs with probability
    at most u + erf(eps / (2 sqrt(2) sigma)) under every P with W1(P, P0) <= eps = sqrt(rho). Two Gaussians
    at distance t differ by erf(t / (2 sqrt(2) sigma)) in total variation, which is concave in t. u bounds
    the error without a shift: Clopper-Pearson's, as published, for one draw a point; for more draws the
    betting bound of the points' shares, which uses them all.

    Args:
        errors: Wrong answers at each point, whole numbers up to `draws`.
        draws: Noise draws at each point.
        rho: Squared radii.
        sigma: Standard deviation of the noise.
        alpha: Probability of failure.
    """
    found, draws = wrong_answers(errors, draws)
    if draws == 1:
        clean = clopper_pearson(found.sum(), found.size, alpha, "upper")
    else:
        clean = betting_upper(shuffled(found) / draws, alpha)
    moved = special.erf(distances(rho, sigma) / (2 * math.sqrt(2)))
    return result(np.minimum(clean + moved + MARGIN, 1.0))
