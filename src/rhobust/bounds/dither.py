"""Losses between 0 and M as votes."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rhobust.bounds.arguments import one_positive, unit_interval


def dithered_counts(losses: ArrayLike, bound: float, uniform: ArrayLike) -> NDArray[np.int64]:
    """Turn losses in [0, M] into counts of wrong answers: a loss l counts with probability l / M.

    Guarantee: if the losses at a point are independent draws of mean M p and the uniform numbers are
    independent of them and of each other, the point's count follows a binomial law of probability at
    least p: exactly p for real uniform numbers, and at most 2^-53 more for multiples of 2^-53 in [0, 1).
    So every bound for wrong answers holds for the mean loss divided by M.

    Args:
        losses: Losses, one row a point and one column a draw.
        bound: M, the largest loss.
        uniform: Numbers in [0, 1), of the same shape.
    """
    values, bound = np.asarray(losses, dtype=np.float64), one_positive("bound", bound)
    outside = ~((values >= 0) & (values <= bound))
    if values.ndim != 2 or values.size == 0:
        raise ValueError(f"losses must hold one row a point and one column a draw, got shape {values.shape}")
    if outside.any():
        raise ValueError(f"losses must lie in [0, {bound:.6g}], their bound, got {values[outside].flat[0]:.6g}")
    thresholds = unit_interval("uniform", uniform)
    if thresholds.shape != values.shape:
        raise ValueError(f"uniform must have the shape of losses {values.shape}, got {thresholds.shape}")
    # A zero loss never counts; otherwise "at most" makes the probability at least l / M on a grid of numbers.
    return ((thresholds <= values / bound) & (values > 0)).sum(axis=1)
