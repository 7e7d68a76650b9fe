"""How many draws estimate a radius to a tolerance."""

import numpy as np
from numpy.typing import ArrayLike

from rhobust.bounds.arguments import counts, level, one_count, one_positive
from rhobust.bounds.confidence import clopper_pearson
from rhobust.bounds.radius import certified_radius
from rhobust.bounds.sequential import Whole

CANDIDATES = 60
"""Numbers of draws that are compared, a tenth apart."""
LEAST = 128
"""Draws that are always taken: fewer would not pay for a batch."""


def draws_for_tolerance(
    successes: ArrayLike, trials: int, *, sigma: float, tolerance: float, alpha: float, n: int
) -> Whole:
    """Return with how many draws each radius is expected to come within a tolerance of that with n draws.

    The number follows from a pilot: the radius that m draws give at the pilot's frequency is compared with that of n
    draws, and the smallest m that loses at most the tolerance is taken. This plans and proves nothing. The radius is
    proved by fresh draws, at its full alpha, since m does not depend on them.

    Args:
        successes: Votes for the class in the pilot, one entry an input.
        trials: Draws of the pilot.
        sigma: Standard deviation of the noise.
        tolerance: How much smaller the radius may be expected to be.
        alpha: Level of the bound that the fresh draws will give.
        n: Draws at most.
    """
    pilot = np.atleast_1d(counts("successes", successes)) / one_count("trials", trials, least=1)
    tolerance, alpha = one_positive("tolerance", tolerance), level("alpha", alpha)
    n = one_count("n", n, least=1)
    spaced = np.geomspace(min(LEAST, n), n, CANDIDATES)
    candidates = np.unique(np.round(spaced).astype(np.int64))
    expected = np.floor(pilot[:, None] * candidates)
    lower = np.asarray(clopper_pearson(expected, np.broadcast_to(candidates, expected.shape), alpha, "lower"))
    radii = np.asarray(certified_radius(lower, sigma))
    return candidates[np.argmax(radii >= radii[:, -1:] - tolerance, axis=1)]
