"""What the counts of wrong answers say about the law of such a count."""

import math
from typing import NamedTuple

import numpy as np

from rhobust.bounds.arguments import Array, level
from rhobust.bounds.confidence import betting_upper, clopper_pearson, shuffled

STEPS = 128
"""Most thresholds that are watched; with more draws than this, some counts are not told apart."""

MEAN, ONCE = 1 / 4, 1 / 8
"""Shares of alpha for the mean and for P(K = 1); the thresholds have the rest."""


def jumps(draws: int) -> Array:
    """Return the counts at which a majorant may jump: all of them, or few that are dense at the ends."""
    if draws <= STEPS:
        return np.arange(1.0, draws + 1)
    spread = np.sin(np.linspace(0, math.pi / 2, STEPS + 1)) ** 2
    return np.unique(np.maximum(np.round(draws * spread), 1.0))


class CountBounds(NamedTuple):
    """Upper bounds about the count K of wrong answers among the draws at a random point; they hold together."""

    survival: Array
    """P(K >= i) for each i of `jumps`."""
    once: float = 1.0
    """P(K = 1)."""
    mean: float = 1.0
    """E K / draws."""


def count_bounds(errors: Array, draws: int, alpha: float) -> CountBounds:
    """Return bounds about the count of wrong answers at a random point.

    Guarantee: if `errors` are independent draws of K, all the bounds hold with probability at least
    1 - alpha. The probabilities have Clopper-Pearson bounds, the mean a betting bound. The i-th threshold
    has a share of alpha that falls as 1 / i: the sum of these is a logarithm, so the first thresholds, where
    most majorants do most of their rising, are almost as sharp as if they were alone.

    Args:
        errors: Wrong answers at each point, whole numbers up to `draws`.
        draws: Noise draws at each point.
        alpha: Probability that any of the bounds fails.
    """
    alpha = level("alpha", alpha)
    steps = jumps(draws)
    reached = errors.size - np.searchsorted(np.sort(errors), steps, side="left")
    shares = 1 / np.arange(1, steps.size + 1)
    each = (1 - MEAN - ONCE) * alpha * shares / shares.sum()
    survival = np.asarray(clopper_pearson(reached, errors.size, each, "upper"))
    once = clopper_pearson(np.count_nonzero(errors == 1), errors.size, ONCE * alpha, "upper")
    mean = betting_upper(shuffled(errors) / draws, MEAN * alpha)
    # P(K >= i) falls with i, so a bound at a smaller threshold also serves the larger ones.
    return CountBounds(np.minimum.accumulate(survival), float(once), float(mean))
