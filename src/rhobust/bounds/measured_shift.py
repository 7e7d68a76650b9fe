"""The loss after a change of the inputs whose distances were measured on a sample of pairs."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from rhobust.bounds.confidence import betting_upper, shuffled
from rhobust.bounds.majorant import MajorantProblem, count_bounds
from rhobust.bounds.surrogate import Surrogate
from rhobust.bounds.validation import MARGIN, Array, level, nonnegative, one_positive, wrong_answers

TRIED = 8
"""Prices for which the loss is bounded by linear programming, the most promising first."""


class EpsUpper(NamedTuple):
    """Upper confidence bounds of the root mean square distance, which hold together."""

    cap: float
    """A distance above the cap counts as the cap in `capped`."""
    capped: float
    """Bound of sqrt(E min(D, cap)^2)."""
    uncapped: float
    """Bound of sqrt(E D^2), hence of the W2 distance between the inputs before and after."""


class MeasuredLoss(NamedTuple):
    """A bound of the loss after a measured change, and the price that gave it."""

    loss: float
    """Upper bound of the loss: what distances up to `free` can do, plus `excess`."""
    free: float
    """The distance that every input may move at no charge; 0 where no price helps."""
    scale: float
    """An input that moves by free + scale or more is charged as lost; infinite where no price helps."""
    excess: float
    """Upper bound of the charge E min(((D - free)_+ / scale)^2, 1)."""


def caps(least: float, most: float) -> Array:
    """Return distances from `least` to `most`, four for each doubling, both ends included."""
    least, most = one_positive("least", least), one_positive("most", most)
    if most < least:
        raise ValueError(f"most must be >= least = {least:g}, got {most:g}")
    return np.geomspace(least, most, math.ceil(4 * math.log2(most / least)) + 1)


def _distances(value: ArrayLike, most: float) -> Array:
    array = nonnegative("distances", value)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"distances must hold one number for each pair, got shape {array.shape}")
    if array.max() > most * (1 + MARGIN):
        raise ValueError(f"distances must be <= most = {most:g}, got {array.max():g}")
    return array


def excess_upper(distances: ArrayLike, free: float, scale: float, alpha: float) -> float:
    """Return an upper confidence bound of E min(((D - free)_+ / scale)^2, 1).

    Guarantee: if `distances` are independent draws of D, and `free` and `scale` were fixed before, the
    bound fails with probability at most alpha. Their order does not matter: they are shuffled.

    Args:
        distances: The distances measured.
        free: Distance that is not charged.
        scale: Distance beyond `free` at which the charge reaches one.
        alpha: Probability of failure.
    """
    array = _distances(distances, math.inf)
    free, scale = float(nonnegative("free", free)), one_positive("scale", scale)
    return float(betting_upper(shuffled(_charges(array, free, scale)), alpha))


def _charges(distances: Array, free: float, scale: float) -> Array:
    return np.minimum(np.square(np.maximum(distances - free, 0.0) / scale), 1.0)


def eps_upper(distances: ArrayLike, most: float, alpha: float, *, least: float) -> EpsUpper:
    """Return upper confidence bounds of how far a change moves inputs in root mean square.

    Guarantee: if `distances` are independent draws of D <= most, both bounds hold with probability at
    least 1 - alpha. They are two of c sqrt(`excess_upper`(distances, 0, c, alpha / J)) over J caps c from
    `least` to `most` that were fixed before, so the one shown may be chosen afterwards: the smallest
    that no distance exceeds.

    Args:
        distances: The distances measured.
        most: The largest possible distance; sqrt(d) for images in [0, 1]^d.
        alpha: Probability of failure.
        least: The smallest cap, fixed without looking at the distances.
    """
    grid = caps(least, most)
    array = _distances(distances, most)
    each = level("alpha", alpha) / grid.size
    cap = float(grid[min(np.searchsorted(grid, array.max()), grid.size - 1)])

    def bound(at: float) -> float:
        return at * math.sqrt(excess_upper(array, 0.0, at, each)) * (1 + MARGIN)

    return EpsUpper(cap, bound(cap), bound(float(grid[-1])))


def measured_loss(
    errors: ArrayLike, draws: int, distances: ArrayLike, sigma: float, alpha: float, *, least: float, most: float
) -> MeasuredLoss:
    """Return a bound of the randomised classifier's error after a change of the inputs.

    Guarantee: let the test points be independent draws of P0 with noise independent between points;
    let `distances` be independent draws of D, the distance between an input of P0 and what the change
    makes of it. The two samples may be the same inputs. With probability at least 1 - alpha, the error
    after the change is at most the returned loss; and so it is after every other change of P0 whose
    distances are stochastically no larger.

    Moving x by D raises its probit u by at most D / sigma. Hence for every `free` and `scale`, with
    kappa = 2 (sigma / scale)^2, p(x') <= Psi(Phi(u + free / sigma), kappa) + min(((D - free)_+ / scale)^2, 1).
    The mean of the first term is bounded as in `population_loss`, for all pairs at once, with half of
    alpha; that of the second by `excess_upper`, with the other half shared by all pairs of a grid.

    Args:
        errors: Wrong answers at each test point, whole numbers up to `draws`.
        draws: Noise draws at each test point.
        distances: The distance of each pair that was measured.
        sigma: Standard deviation of the noise.
        alpha: Probability of failure.
        least: The smallest distance of the grid, fixed without looking at the distances.
        most: The largest possible distance; sqrt(d) for images in [0, 1]^d.
    """
    wrong, draws = wrong_answers(errors, draws)
    moved = _distances(distances, most)
    sigma, half = one_positive("sigma", sigma), level("alpha", alpha) / 2
    steps = caps(least, most)
    # Nothing free; or something, and then a scale that is half of it, as large, or twice as large.
    free = np.concatenate([np.zeros(steps.size), np.repeat(steps, 3)])
    scale = np.concatenate([steps, np.outer(steps, [0.5, 1, 2]).ravel()])
    # Rounded outward: a little further for nothing, and a little cheaper from there.
    start, price = free / sigma * (1 + MARGIN), 2 * (sigma / scale) ** 2 * (1 - MARGIN)
    surrogate = Surrogate("w2")

    # What the counts and distances themselves suggest says which prices are worth a linear programme.
    found, repeats = np.unique(wrong, return_counts=True)
    likely = surrogate.priced(special.ndtri((found + 0.5) / (draws + 1))[:, None] + start, price)[0]
    charged = [_charges(moved, *pair).mean() for pair in zip(free, scale, strict=True)]
    promising = np.argsort(repeats @ likely / wrong.size + charged)

    bounds = count_bounds(wrong, draws, half)
    problem = MajorantProblem(draws, surrogate.bend)
    best = MeasuredLoss(1.0, 0.0, math.inf, 0.0)
    for i in promising[:TRIED]:
        excess = excess_upper(moved, free[i], scale[i], half / free.size)
        upper = np.minimum(surrogate.priced(problem.u + start[i], price[i])[0], 1.0)
        majorant, _ = problem.solve(upper, bounds)
        loss = majorant.mean_upper(bounds) + excess + MARGIN
        if loss < best.loss:
            best = MeasuredLoss(loss, float(free[i]), float(scale[i]), excess)
    return best
