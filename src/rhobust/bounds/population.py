"""From a few noise draws at each test point to the worst case near the population."""

import numpy as np
from numpy.typing import ArrayLike

from rhobust.bounds.arguments import Array, FloatOrArray, result, wrong_answers
from rhobust.bounds.counts import count_bounds
from rhobust.bounds.majorant import MajorantProblem
from rhobust.bounds.price import lowest_total
from rhobust.bounds.surrogate import Cost, Surrogate
from rhobust.bounds.transport import distances

TOLERANCE = 1e-5
"""How closely the price is optimised where each evaluation is a linear programme."""


def population_loss(
    errors: ArrayLike,
    draws: int,
    rho: ArrayLike,
    sigma: float,
    alpha: float,
    *,
    cost: Cost = "w2",
    votes: int | None = 1,
) -> FloatOrArray:
    """Return the worst error near the population, from a few noise draws at each test point.

    Guarantee: let the test points be independent draws of P0 and the noise independent between
    points. With probability at least 1 - alpha, for all `rho` at once, the classifier errs with
    probability at most the returned value under every P with W(P, P0) <= eps = sqrt(rho). For a loss
    in [0, M] that is not 0 or 1, count by `dithered_counts`; M times the value bounds its mean.

    For each price kappa, T(p) = Psi(p, kappa) is majorised: h is a function of the count K with
    E h(K) >= T(p) for every p, a sum with nonnegative coefficients of 1{K >= i}, 1{K = 1} and K / draws.
    Then E_{P0} T(p) <= E h(K), and the mean of every term is bounded by `count_bounds`, all at once. That
    event does not depend on h, so h (a linear programme) and kappa may be fitted to the same counts.

    Args:
        errors: Wrong answers at each point, whole numbers up to `draws`.
        draws: Noise draws at each point; 10 to 50 suffice for eps up to about 2 sigma, the majority vote
            needs hundreds.
        rho: Squared radii (eps = sqrt(rho) for every cost); they share the work.
        sigma: Standard deviation of the noise.
        alpha: Probability of failure of the whole curve.
        cost: "w1", "w2" or "winf".
        votes: Certify the classifier that takes the majority of so many fresh noisy votes; None for the
            class most probable under noise.
    """
    found, draws = wrong_answers(errors, draws)
    surrogate = Surrogate(cost, votes)
    distance = distances(rho, sigma)
    bounds = count_bounds(found, draws, alpha)
    problem = MajorantProblem(draws, surrogate.bend)

    def shifted(t: float) -> float:
        majorant, _ = problem.solve(surrogate.moved(problem.u, t), bounds)
        return majorant.mean_upper(bounds)

    def priced(prices: Array) -> tuple[Array, Array]:
        values, slopes = np.empty(prices.size), np.empty(prices.size)
        for i, price in enumerate(prices):
            upper, spent = surrogate.priced(problem.u, price)
            majorant, weights = problem.solve(upper, bounds)
            values[i], slopes[i] = majorant.mean_upper(bounds), -(weights @ spent)
        return values, slopes

    flat = distance.reshape(-1)
    moving = flat > 0
    totals = np.empty(flat.size)
    if np.any(~moving):
        totals[~moving] = shifted(0.0)
        if votes == 1:
            # T(p) = p is the mean of h(k) = k / draws exactly, with no loss to the grid.
            totals[~moving] = np.minimum(totals[~moving], bounds.mean)
    far = flat[moving]
    if far.size and cost == "winf":
        totals[moving] = [shifted(t) for t in far]
    elif far.size:
        budgets = surrogate.budgets(far)
        prices = surrogate.prices(far)
        totals[moving] = lowest_total(priced, budgets, prices, ceiling=1.0, tolerance=TOLERANCE)
    return result(np.minimum(totals, 1.0).reshape(distance.shape))
