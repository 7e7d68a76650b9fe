"""Loss after a measured shift: from distances between inputs before and after it, or from votes on both."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from rhobust.bounds.confidence import betting_upper, clopper_pearson, shuffle
from rhobust.bounds.majorant import MajorantProblem, count_bounds
from rhobust.bounds.population import population_loss
from rhobust.bounds.surrogate import Surrogate
from rhobust.bounds.validation import MARGIN, Array, counts, error_counts, level, nonnegative, one_positive

TRIED = 8
"""Number of penalties for which the linear programme is solved, the most promising first."""
PLAIN = 1 / 8
"""Fraction of alpha for the bound "error plus disagreement"; the bound from pseudo-labels gets the rest."""


class EpsUpper(NamedTuple):
    """Simultaneous upper confidence bounds of the root mean square distance."""

    cap: float
    """Distances are truncated at the cap in `capped`."""
    capped: float
    """Bound of sqrt(E min(D, cap)^2)."""
    uncapped: float
    """Bound of sqrt(E D^2), hence of the W2 distance between the inputs before and after."""


class MeasuredLoss(NamedTuple):
    """Upper bound of the loss after a measured change, and the cost function that gave it."""

    loss: float
    """Upper bound of the loss: the bound for distances up to `free`, plus `excess`."""
    free: float
    """Distance that every input may move at zero cost; 0 if the bound is trivial."""
    scale: float
    """An input that moves by free + scale or more has cost 1; infinite if the bound is trivial."""
    excess: float
    """Upper bound of the mean cost E min(((D - free)_+ / scale)^2, 1)."""


def caps(least: float, most: float) -> Array:
    """Return a geometric grid of distances from `least` to `most`, four per factor of two."""
    least, most = one_positive("least", least), one_positive("most", most)
    if most < least:
        raise ValueError(f"most must be >= least = {least:g}, got {most:g}")
    return np.geomspace(least, most, math.ceil(4 * math.log2(most / least)) + 1)


def cost_functions(least: float, most: float) -> tuple[Array, Array]:
    """Return the pairs (free, scale) of a grid that depends on no data: `measured_loss` takes the best of them.

    free = 0 with every scale; or free > 0 with a scale of half, once or twice its size.
    """
    steps = caps(least, most)
    free = np.concatenate([np.zeros(steps.size), np.repeat(steps, 3)])
    return free, np.concatenate([steps, np.outer(steps, [0.5, 1, 2]).ravel()])


def _distances(value: ArrayLike, most: float) -> Array:
    array = nonnegative("distances", value)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"distances must hold one number per pair, got shape {array.shape}")
    if array.max() > most * (1 + MARGIN):
        raise ValueError(f"distances must be <= most = {most:g}, got {array.max():g}")
    return array


def excess_upper(distances: ArrayLike, free: float, scale: float, alpha: float) -> float:
    """Return an upper confidence bound of E min(((D - free)_+ / scale)^2, 1).

    Guarantee: if `distances` are independent samples of D, and `free` and `scale` were fixed before, the
    bound fails with probability at most alpha. The distances are shuffled, so their order does not matter.

    Args:
        distances: The measured distances.
        free: Distance at zero cost.
        scale: Distance beyond `free` at which the cost reaches one.
        alpha: Probability of failure.
    """
    array = _distances(distances, math.inf)
    free, scale = float(nonnegative("free", free)), one_positive("scale", scale)
    return float(betting_upper(shuffle(_costs(array, free, scale)), alpha))


def _costs(distances: Array, free: float, scale: float) -> Array:
    return np.minimum(np.square(np.maximum(distances - free, 0.0) / scale), 1.0)


def eps_upper(distances: ArrayLike, most: float, alpha: float, *, least: float) -> EpsUpper:
    """Return upper confidence bounds of the root mean square distance between inputs before and after a change.

    Guarantee: if `distances` are independent samples of D <= most, both bounds hold with probability at
    least 1 - alpha. They are two of c sqrt(`excess_upper`(distances, 0, c, alpha / J)) over J caps c from
    `least` to `most` that were fixed before (union bound), so the cap may be chosen afterwards: the smallest
    that no distance exceeds.

    Args:
        distances: The measured distances.
        most: The largest possible distance; sqrt(d) for images in [0, 1]^d.
        alpha: Probability of failure.
        least: The smallest cap, fixed independently of the distances.
    """
    grid = caps(least, most)
    array = _distances(distances, most)
    each = level("alpha", alpha) / grid.size
    cap = float(grid[min(np.searchsorted(grid, array.max()), grid.size - 1)])

    def bound(at: float) -> float:
        return at * math.sqrt(excess_upper(array, 0.0, at, each)) * (1 + MARGIN)

    return EpsUpper(cap, bound(cap), bound(float(grid[-1])))


def measured_loss(
    errors: ArrayLike,
    draws: int,
    distances: ArrayLike,
    sigma: float,
    alpha: float,
    *,
    least: float,
    most: float,
    votes: int | None = 1,
) -> MeasuredLoss:
    """Return an upper bound of the classifier's error after a measured change of the inputs.

    Guarantee: let the test points be independent samples of P0 with noise independent between points;
    let `distances` be independent samples of D, the distance between an input of P0 and its changed
    version. The two samples may be the same inputs. With probability at least 1 - alpha, the error after
    the change is at most the returned loss, and so is the error after every other change of P0 whose
    distances are stochastically no larger.

    Moving x by D raises its probit u by at most D / sigma. Hence for every `free` and `scale`, with
    kappa = 2 (sigma / scale)^2, p(x') <= Psi(Phi(u + free / sigma), kappa) + min(((D - free)_+ / scale)^2, 1).
    The mean of the first term is bounded as in `population_loss`, for all pairs at once, with half of
    alpha; that of the second by `excess_upper`, with the other half shared by all pairs of a grid.

    Args:
        errors: Errors at each test point, whole numbers up to `draws`.
        draws: Noise samples per test point.
        distances: The measured distance of each pair.
        sigma: Standard deviation of the noise.
        alpha: Probability of failure.
        least: The smallest distance of the grid, fixed independently of the distances.
        most: The largest possible distance; sqrt(d) for images in [0, 1]^d.
        votes: Noisy votes per prediction; None for the most probable class under noise.
    """
    found, draws = error_counts(errors, draws)
    measured = _distances(distances, most)
    sigma, half = one_positive("sigma", sigma), level("alpha", alpha) / 2
    free, scale = cost_functions(least, most)
    # Rounded outward: a larger free distance and a smaller penalty.
    start, penalty = free / sigma * (1 + MARGIN), 2 * (sigma / scale) ** 2 * (1 - MARGIN)
    surrogate = Surrogate("w2", votes)

    # A plug-in estimate ranks the penalties; the linear programme is solved for the best ones only.
    values, repeats = np.unique(found, return_counts=True)
    likely = surrogate.penalised(special.ndtri((values + 0.5) / (draws + 1))[:, None] + start, penalty)[0]
    costs = [_costs(measured, *pair).mean() for pair in zip(free, scale, strict=True)]
    promising = np.argsort(repeats @ likely / found.size + costs)

    bounds = count_bounds(found, draws, half)
    problem = MajorantProblem(draws, surrogate.curvature)
    best = MeasuredLoss(1.0, 0.0, math.inf, 0.0)
    for i in promising[:TRIED]:
        excess = excess_upper(measured, free[i], scale[i], half / free.size)
        upper = np.minimum(surrogate.penalised(problem.u + start[i], penalty[i])[0], 1.0)
        majorant, _ = problem.solve(upper, bounds)
        loss = majorant.mean_upper(bounds) + excess + MARGIN
        if loss < best.loss:
            best = MeasuredLoss(loss, float(free[i]), float(scale[i]), excess)
    return best


class RecentredLoss(NamedTuple):
    """Upper bounds of the error under every distribution within each distance of the changed data's."""

    loss: Array
    """The bound at each rho."""
    source: tuple[str, ...]
    """What gave it, at each rho: "labels", "pseudo-labels" or "disagreement"."""


def recentred_loss(
    disagreements: ArrayLike,
    draws: int,
    rho: ArrayLike,
    sigma: float,
    alpha: float,
    *,
    mislabelled: ArrayLike,
    errors: ArrayLike,
    differing: ArrayLike,
    errors_after: ArrayLike | None = None,
    votes: int | None = 1,
) -> RecentredLoss:
    """Return the worst-case error around the changed data, from pairs that need no labels.

    Guarantee: let the pairs (X, X') be independent, labelled inputs (X, Y) independent samples of the same P0 (they may
    be the same inputs), and let X' keep the label of X. Let yhat be a label that depends on X and on noise of its
    own. With probability at least 1 - alpha, for all `rho` at once, the classifier errs with probability at
    most the returned loss under every P within W2 distance eps = sqrt(rho) of the law of (X', Y).

    The smallest of three bounds at shared alpha. f(w) != Y implies f(w) != yhat or yhat != Y, so the error is
    at most the worst-case rate of votes against yhat around the changed inputs, plus P(yhat != Y): "pseudo-labels".
    And f(w) != Y implies f(w - X' + X) != Y or f(w) != f(w - X' + X), so it is at most the worst-case error around P0
    plus the worst-case rate at which two votes under one noise differ: "disagreement". With the labels of changed
    inputs, `population_loss` of the errors there: "labels"; if all have one, it gets all of alpha.

    Args:
        disagreements: At each pair, the votes at X' that are not yhat.
        draws: Votes at each pair and at each labelled input.
        rho: Squared radii around the changed data.
        sigma: Standard deviation of the noise.
        alpha: Probability of failure of the whole curve.
        mislabelled: At each labelled input, whether yhat is not its label.
        errors: At each labelled input, the wrong votes before the change.
        differing: At each pair, the noise samples under which the votes at X and X' differ.
        errors_after: At each pair with a label, the wrong votes after the change; None without such pairs.
        votes: Noisy votes per prediction; None for the most probable class under noise.
    """
    against, draws = error_counts(disagreements, draws)
    wrong = counts("mislabelled", mislabelled)
    if wrong.ndim != 1 or wrong.size == 0 or wrong.max() > 1:
        raise ValueError(f"mislabelled must hold 0 or 1 per labelled input, got shape {wrong.shape}")
    left, found = level("alpha", alpha), dict[str, Array]()
    if errors_after is not None:
        after, _ = error_counts(errors_after, draws)
        used = left if after.size == against.size else left / 2
        found["labels"] = np.atleast_1d(population_loss(after, draws, rho, sigma, used, votes=votes))
        left -= used
    plain = PLAIN * left if votes is not None else 0.0
    if left > 0:
        # The cost of a level a at n samples is about log(1 / a) / n: the sum is least for levels proportional to 1 / n.
        share = against.size / (against.size + wrong.size)
        mistaken = clopper_pearson(int(wrong.sum()), wrong.size, share * (left - plain), "upper")
        opposed = population_loss(against, draws, rho, sigma, (1 - share) * (left - plain), votes=votes)
        found["pseudo-labels"] = np.atleast_1d(opposed) + float(mistaken)
    if left > 0 and votes is not None:
        before = population_loss(errors, draws, rho, sigma, plain / 2, votes=votes)
        # A majority that was right is still right unless one of its votes differs.
        changed = population_loss(differing, draws, rho, sigma, plain / 2, votes=votes, agree=1)
        found["disagreement"] = np.atleast_1d(before) + np.atleast_1d(changed)
    table = np.stack(list(found.values()))
    best = table.argmin(axis=0)
    return RecentredLoss(np.minimum(table.min(axis=0) + MARGIN, 1.0), tuple(list(found)[place] for place in best))
