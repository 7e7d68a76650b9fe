"""Worst-case loss around the population or the test sample, from error counts at sampled points."""

from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from rhobust.bounds.confidence import clopper_pearson, failure_quantile, survival_upper
from rhobust.bounds.majorant import MajorantProblem, SecondStage, count_bounds
from rhobust.bounds.surrogate import EDGE, Cost, Surrogate
from rhobust.bounds.transport import distances, minimise_dual, weighted_worst_case, worst_case
from rhobust.bounds.validation import (
    MARGIN,
    Array,
    FloatOrArray,
    error_counts,
    level,
    one_positive,
    points,
    result,
    unit_interval,
)

TOLERANCE = 1e-5
"""Tolerance of the minimisation over the penalty; each evaluation is a linear programme."""
CELLS = 400
"""Grid values to which per-point upper bounds are rounded up, so that few thresholds are needed."""


def population_loss(
    errors: ArrayLike,
    draws: int,
    rho: ArrayLike,
    sigma: float,
    alpha: float,
    *,
    cost: Cost = "w2",
    votes: int | None = 1,
    agree: int | None = None,
    second: SecondStage | None = None,
) -> FloatOrArray:
    """Return the worst-case error around the population, from a few noise samples per test point.

    Guarantee: let the test points be independent samples of P0 and the noise independent between
    points. With probability at least 1 - alpha, for all `rho` at once, the classifier errs with
    probability at most the returned value under every P with W(P, P0) <= eps = sqrt(rho). For a loss
    in [0, M] that is not 0 or 1, count by `randomized_counts`; M times the value bounds its mean.

    For each penalty kappa, T(p) = Psi(p, kappa) is majorised: h is a function of the count K with
    E h(K) >= T(p) for every p, a sum with nonnegative coefficients of 1{K >= i}, 1{K = 1} and K / draws.
    Then E_{P0} T(p) <= E h(K), and the mean of every term is bounded by `count_bounds`, all at once. That
    event does not depend on h, so h (a linear programme) and kappa may be fitted to the same counts.

    Args:
        errors: Errors at each point, whole numbers up to `draws`.
        draws: Noise samples per point; 10 to 50 suffice for eps up to about 2 sigma, the exact majority
            needs hundreds.
        rho: Squared radii (eps = sqrt(rho) for every cost); the bounds hold simultaneously.
        sigma: Standard deviation of the noise.
        alpha: Probability of failure of the whole curve.
        cost: "w1", "w2" or "winf".
        votes: Certify the classifier that takes the majority of this many fresh noisy votes; None for the
            most probable class under noise.
        agree: Bound the probability that at least so many of the votes are wrong, as a wrong answer needs of a
            classifier that answers only where so many agree; default: half of them, a tie included.
        second: Further noise samples at some of the points; from eps = 1.5 sigma on they are worth more than more
            samples at all points. Default: none.
    """
    found, draws = error_counts(errors, draws)
    surrogate = Surrogate(cost, votes, agree)
    distance = distances(rho, sigma)
    bounds = count_bounds(found, draws, alpha, second)
    problem = MajorantProblem(draws, surrogate.curvature, 0 if second is None else second.draws)

    flat = distance.reshape(-1)
    moving = flat > 0
    totals = np.empty(flat.size)
    if np.any(~moving):
        totals[~moving] = problem.moved(surrogate, bounds, 0.0)
    far = flat[moving]
    if far.size and cost == "winf":
        totals[moving] = [problem.moved(surrogate, bounds, t) for t in far]
    elif far.size:
        budgets = surrogate.budgets(far)
        penalties = surrogate.penalties(far)
        totals[moving] = minimise_dual(
            partial(problem.penalised, surrogate, bounds), budgets, penalties, ceiling=1.0, tolerance=TOLERANCE
        )
    return result(np.minimum(totals, 1.0).reshape(distance.shape))


def randomized_counts(losses: ArrayLike, bound: float, uniform: ArrayLike) -> NDArray[np.int64]:
    """Randomized rounding of losses in [0, M] to error counts: a loss l counts with probability l / M.

    Guarantee: if the losses at a point are independent with mean M p and the uniform numbers are
    independent of them and of each other, the point's count follows a binomial law of probability at
    least p: exactly p for real uniform numbers, and at most 2^-53 more for multiples of 2^-53 in [0, 1).
    So every bound for error counts holds for the mean loss divided by M.

    Args:
        losses: Losses, one row per point and one column per noise sample.
        bound: M, the largest loss.
        uniform: Numbers in [0, 1), of the same shape.
    """
    values, bound = np.asarray(losses, dtype=np.float64), one_positive("bound", bound)
    outside = ~((values >= 0) & (values <= bound))
    if values.ndim != 2 or values.size == 0:
        raise ValueError(
            f"losses must hold one row per point and one column per noise sample, got shape {values.shape}"
        )
    if outside.any():
        raise ValueError(f"losses must be in [0, {bound:.6g}], their bound, got {values[outside].flat[0]:.6g}")
    thresholds = unit_interval("uniform", uniform)
    if thresholds.shape != values.shape:
        raise ValueError(f"uniform must have the shape of losses {values.shape}, got {thresholds.shape}")
    # A zero loss never counts; otherwise "at most" makes the probability at least l / M on a grid of numbers.
    return ((thresholds <= values / bound) & (values > 0)).sum(axis=1)


def population_loss_intervals(
    errors: ArrayLike,
    draws: int,
    rho: ArrayLike,
    sigma: float,
    alpha: float,
    *,
    cost: Cost = "w2",
    votes: int | None = 1,
    interval_alpha: float = 1e-3,
) -> FloatOrArray:
    """Return the worst-case error around the population, from a Clopper-Pearson bound at each test point.

    Guarantee: that of `population_loss`. It uses h(k) = T(p+(k)) + a, where p+(k) is the
    Clopper-Pearson upper bound at level a: T is nondecreasing, at most 1, and p+ is below p with
    probability at most a, so E h(K) >= T(p). No union bound over the points is needed. Near optimal for
    thousands of noise samples per point; with tens `population_loss` is tighter.

    Arguments are those of `population_loss`; `interval_alpha` is a, which must be fixed before sampling.
    """
    found, draws = error_counts(errors, draws)
    each = level("interval_alpha", interval_alpha)
    ends = np.asarray(clopper_pearson(np.arange(draws + 1), draws, each, "upper"))
    survival = survival_upper(found, np.arange(1, draws + 1), alpha)
    return _under_band(ends, survival, rho, sigma, Surrogate(cost, votes), each)


def population_loss_uppers(
    uppers: ArrayLike, rho: ArrayLike, sigma: float, alpha: float, *, cost: Cost = "w2", interval_alpha: float
) -> FloatOrArray:
    """Return the worst-case smoothed loss around the population, from an upper confidence bound at each test point.

    Guarantee: let the test points be independent samples of P0, and let each upper bound, from independent noise,
    be below its point's p = lhat / M with probability at most `interval_alpha`. With
    probability at least 1 - alpha, for all `rho` at once, M times the returned value bounds E_P lhat for
    every P with W(P, P0) <= eps = sqrt(rho). As in `population_loss_intervals`; the bounds, e.g. from
    `betting_upper`, are rounded up to a fixed grid, whose survival function is bounded.

    The other arguments are those of `population_loss`; `uppers` are bounds of lhat / M, in [0, 1].
    """
    found, each = points("uppers", uppers), level("interval_alpha", interval_alpha)
    grid = np.concatenate([[0.0], special.ndtr(np.linspace(-EDGE, EDGE, CELLS)), [1.0]])
    cells = np.searchsorted(grid, found, side="left")
    survival = survival_upper(cells, np.arange(1, grid.size), alpha)
    return _under_band(grid, survival, rho, sigma, Surrogate(cost), each)


def _under_band(
    values: Array, survival: Array, rho: ArrayLike, sigma: float, surrogate: Surrogate, each: float
) -> FloatOrArray:
    """Return the worst case of a variable on increasing `values` whose survival function is at most `survival`."""
    # The bounds of the survival function define a distribution that dominates the variable's.
    weights = -np.diff(np.concatenate([[1.0], survival, [0.0]]))
    distance = distances(rho, sigma)
    held = weights > 0  # most counts do not occur
    worst = weighted_worst_case(special.ndtri(values[held]), weights[held], distance.reshape(-1), surrogate)
    return result(np.minimum(worst + each + MARGIN, 1.0).reshape(distance.shape))


def sample_loss(
    errors: ArrayLike,
    draws: int,
    rho: ArrayLike,
    sigma: float,
    alpha: float,
    *,
    cost: Cost = "w2",
    votes: int | None = 1,
    interval_alpha: float | None = None,
) -> FloatOrArray:
    """Return the worst-case error around the test sample, as the uniform distribution on its n points.

    Guarantee: with probability at least 1 - alpha over the noise, for all `rho` at once, the classifier
    errs with probability at most the returned value under every P within eps = sqrt(rho) of the uniform
    distribution on the test points. Each point gets a Clopper-Pearson upper bound at level alpha / n
    (union bound). With `interval_alpha` each gets that level instead, and K / n is added,
    K = `failure_quantile(n, interval_alpha, alpha)`; this needs noise that is independent between points. The other
    arguments are those of `population_loss`.
    """
    found, draws = error_counts(errors, draws)
    alpha = level("alpha", alpha)
    if interval_alpha is None:
        each, failed = alpha / found.size, 0
    else:
        each = level("interval_alpha", interval_alpha)
        failed = failure_quantile(found.size, each, alpha)
    worst = worst_case(clopper_pearson(found, draws, each, "upper"), rho, sigma, Surrogate(cost, votes))
    return result(np.minimum(np.asarray(worst) + failed / found.size + MARGIN * (failed > 0), 1.0))
