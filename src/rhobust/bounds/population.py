"""From a few noise draws at each test point to statements about the worst case near a distribution."""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from .arguments import MARGIN, Array, FloatOrArray, counts, level, one_count, result
from .confidence import clopper_pearson, failure_quantile, survival_upper
from .majorant import MajorantProblem, jumps
from .price import lowest_total
from .surrogate import Cost, Surrogate
from .transport import distances, weighted_worst_case, worst_case_loss

TOLERANCE = 1e-5
"""How closely the price is optimised where each evaluation is a linear programme."""


def _checked(errors: ArrayLike, draws: int) -> tuple[Array, int]:
    draws = one_count("draws", draws, least=1)
    found = counts("errors", errors)
    if found.ndim != 1 or found.size == 0:
        raise ValueError(f"errors must hold one count for each point, got shape {found.shape}")
    if found.max() > draws:
        raise ValueError(f"errors must be <= draws = {draws}, got {found.max():.0f}")
    return found, draws


def population_loss(
    errors: ArrayLike,
    draws: int,
    rho: ArrayLike,
    sigma: float,
    alpha: float,
    *,
    cost: Cost = "w2",
    votes: int = 1,
) -> FloatOrArray:
    """Return the worst error near the population, from a few noise draws at each test point.

    Guarantee: let the test points be independent draws of P0 and the noise independent between
    points. With probability at least 1 - alpha, for all `rho` at once, the randomised classifier errs
    with probability at most the returned value under every P with W(P, P0) <= eps = sqrt(rho).

    For each price kappa, T(p) = Psi(p, kappa) is majorised: h is a nondecreasing function of the
    count K with E h(K) >= T(p) for every p. Then E_{P0} T(p) <= E h(K) = h(0) + sum_i d_i P(K >= i)
    with d_i = h(i) - h(i - 1), and P(K >= i) is bounded for all i at once by `survival_upper`. This
    event does not depend on h, so h (a linear programme) and kappa may be fitted to the same counts.

    Args:
        errors: Wrong answers at each point, whole numbers up to `draws`.
        draws: Noise draws at each point; 10 to 50 suffice for eps up to about 2 sigma.
        rho: Squared radii (eps = sqrt(rho) for every cost); they share the work.
        sigma: Standard deviation of the noise.
        alpha: Probability of failure of the whole curve.
        cost: "w1", "w2" or "winf".
        votes: Certify the classifier that takes the majority of so many fresh noisy votes.
    """
    found, draws = _checked(errors, draws)
    surrogate = Surrogate(cost, votes)
    distance = distances(rho, sigma)
    survival = survival_upper(found, jumps(draws), alpha)
    problem = MajorantProblem(draws, surrogate.bend)

    def shifted(t: float) -> float:
        majorant, _ = problem.solve(surrogate.moved(problem.u, t), survival)
        return majorant.mean_upper(survival)

    def priced(prices: Array) -> tuple[Array, Array]:
        values, slopes = np.empty(prices.size), np.empty(prices.size)
        for i, price in enumerate(prices):
            upper, spent = surrogate.priced(problem.u, price)
            majorant, weights = problem.solve(upper, survival)
            values[i], slopes[i] = majorant.mean_upper(survival), -(weights @ spent)
        return values, slopes

    flat = distance.reshape(-1)
    moving = flat > 0
    totals = np.empty(flat.size)
    if np.any(~moving):
        totals[~moving] = shifted(0.0)
        if votes == 1:
            # T(p) = p is the mean of h(k) = k / draws exactly, with no loss to the grid.
            widths = np.diff(jumps(draws), prepend=0.0)
            totals[~moving] = np.minimum(totals[~moving], widths @ survival / draws + MARGIN)
    far = flat[moving]
    if far.size and cost == "winf":
        totals[moving] = [shifted(t) for t in far]
    elif far.size:
        budgets = surrogate.budgets(far)
        prices = surrogate.prices(far)
        totals[moving] = lowest_total(priced, budgets, prices, ceiling=1.0, tolerance=TOLERANCE)
    return result(np.minimum(totals, 1.0).reshape(distance.shape))


def population_loss_intervals(
    errors: ArrayLike,
    draws: int,
    rho: ArrayLike,
    sigma: float,
    alpha: float,
    *,
    cost: Cost = "w2",
    interval_alpha: float = 1e-3,
) -> FloatOrArray:
    """Return the worst error near the population, from a confidence bound at each test point.

    Guarantee: that of `population_loss`. It uses h(k) = T(p+(k)) + a, where p+(k) is the
    Clopper-Pearson upper bound at level a: T is nondecreasing, at most 1, and p+ falls below p with
    probability at most a, so E h(K) >= T(p). No union over the points is paid. Simple, and close to
    the best possible for thousands of draws a point; with tens of draws `population_loss` is tighter.

    Args:
        errors: Wrong answers at each point, whole numbers up to `draws`.
        draws: Noise draws at each point.
        rho: Squared radii.
        sigma: Standard deviation of the noise.
        alpha: Probability of failure of the whole curve.
        cost: "w1", "w2" or "winf".
        interval_alpha: a, added to the bound; fixed before the draws are seen.
    """
    found, draws = _checked(errors, draws)
    interval_alpha = level("interval_alpha", interval_alpha)
    distance = distances(rho, sigma)
    uppers = np.asarray(clopper_pearson(np.arange(draws + 1), draws, interval_alpha, "upper"))
    survival = np.concatenate([[1.0], survival_upper(found, np.arange(1, draws + 1), alpha), [0.0]])
    # A mean against bounds of the survival function is a mean under the law they describe.
    worst = weighted_worst_case(special.ndtri(uppers), -np.diff(survival), distance.reshape(-1), Surrogate(cost))
    return result(np.minimum(worst + interval_alpha + MARGIN, 1.0).reshape(distance.shape))


def sample_loss(
    errors: ArrayLike,
    draws: int,
    rho: ArrayLike,
    sigma: float,
    alpha: float,
    *,
    cost: Cost = "w2",
    interval_alpha: float | None = None,
) -> FloatOrArray:
    """Return the worst error near the test sample itself, as a distribution on its n points.

    Guarantee: with probability at least 1 - alpha over the noise, for all `rho` at once, the
    randomised classifier errs with probability at most the returned value under every P within
    eps = sqrt(rho) of the uniform distribution on the test points. Each point gets a Clopper-Pearson
    upper bound at level alpha / n (union bound). With `interval_alpha` each gets that level instead,
    and K / n is added, K = `failure_quantile(n, interval_alpha, alpha)`; this needs noise that is
    independent between points.

    Args:
        errors: Wrong answers at each point, whole numbers up to `draws`.
        draws: Noise draws at each point.
        rho: Squared radii.
        sigma: Standard deviation of the noise.
        alpha: Probability of failure of the whole curve.
        cost: "w1", "w2" or "winf".
        interval_alpha: Level of each interval; None for the union bound.
    """
    found, draws = _checked(errors, draws)
    alpha = level("alpha", alpha)
    if interval_alpha is None:
        each, failed = alpha / found.size, 0
    else:
        each = level("interval_alpha", interval_alpha)
        failed = failure_quantile(found.size, each, alpha)
    worst = worst_case_loss(clopper_pearson(found, draws, each, "upper"), rho, sigma, cost=cost)
    return result(np.minimum(np.asarray(worst) + failed / found.size + MARGIN * (failed > 0), 1.0))


def kumar_loss(errors: int, n: int, rho: ArrayLike, sigma: float, alpha: float) -> FloatOrArray:
    """Return the bound of Kumar et al. (2022) on the worst error near the population, for comparison.

    Guarantee: let n points be independent draws of P0, each classified once under its own noise, with
    `errors` wrong answers. With probability at least 1 - alpha, for all `rho` at once, the randomised
    classifier errs with probability at most u + erf(eps / (2 sqrt(2) sigma)) under every P with
    W1(P, P0) <= eps = sqrt(rho), u being the Clopper-Pearson upper bound. Two Gaussians at distance t
    differ by erf(t / (2 sqrt(2) sigma)) in total variation, which is concave in t.

    Args:
        errors: Wrong answers among the n points, one draw each.
        n: Number of points.
        rho: Squared radii.
        sigma: Standard deviation of the noise.
        alpha: Probability of failure.
    """
    clean = clopper_pearson(one_count("errors", errors), one_count("n", n, least=1), alpha, "upper")
    moved = special.erf(distances(rho, sigma) / (2 * math.sqrt(2)))
    return result(np.minimum(clean + moved + MARGIN, 1.0))
