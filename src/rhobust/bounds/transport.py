"""Worst-case mean loss over a Wasserstein ball: the dual, its minimisation, primal lower bounds, noisy budgets."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from rhobust.bounds.confidence import betting_upper, shuffled
from rhobust.bounds.surrogate import Cost, Surrogate
from rhobust.bounds.validation import (
    MARGIN,
    Array,
    FloatOrArray,
    level,
    nonnegative,
    one_count,
    one_positive,
    points,
    result,
)

FARTHEST = 1e100
"""A distance, in units of the noise, at which every loss that can be reached is; its square is still a float."""


def distances(rho: ArrayLike, sigma: float) -> Array:
    """Return eps / sigma = sqrt(rho) / sigma, rounded up, zero where rho is; beyond `FARTHEST` nothing changes."""
    return np.minimum(np.sqrt(nonnegative("rho", rho)) / one_positive("sigma", sigma) * (1 + MARGIN), FARTHEST)


def weighted_worst_case(u: Array, weights: Array, distance: Array, surrogate: Surrogate) -> Array:
    """Return the worst mean loss when the atom with probit u_i has mass weights_i, for each distance."""
    # Rounded weights may add up to less than one, and a loss of one has no margin of its own.
    weights = weights * (1 + MARGIN)
    moving = distance > 0
    if surrogate.cost == "winf" or not np.any(moving):
        return np.minimum([weights @ surrogate.moved(u, t) for t in distance], 1.0)
    if surrogate.votes is None:
        return _knapsack(u, weights, distance, surrogate)

    def evaluate(prices: Array) -> tuple[Array, Array]:
        values, spent = surrogate.priced(u[:, None], prices)
        return weights @ values, -(weights @ spent)

    far = distance[moving]
    totals = np.full(distance.size, weights @ surrogate.moved(u, 0.0))
    totals[moving] = lowest_total(
        evaluate,
        surrogate.budgets(far),
        surrogate.prices(far),
        # Free transport brings every point to certain loss, except where the loss vanishes everywhere.
        ceiling=float(weights @ (u > -np.inf)),
        tolerance=surrogate.tolerance,
    )
    return np.minimum(totals, 1.0)


def _knapsack(u: Array, weights: Array, distance: Array, surrogate: Surrogate) -> Array:
    """Return the mass that can be turned when the atom at probit u costs |u|^q / q a unit: cheapest first."""
    radii = np.maximum(-u - MARGIN, 0.0)
    order = np.argsort(radii)
    prices = surrogate.budgets(radii[order])
    masses = np.concatenate([[0.0], np.cumsum(weights[order])])
    with np.errstate(invalid="ignore"):  # a point that can never be turned has weight times infinity
        paid = np.concatenate([[0.0], np.cumsum(np.where(weights[order] > 0, prices * weights[order], 0.0))])
    budget = surrogate.budgets(distance)
    turned = np.searchsorted(paid[1:], budget, side="right")
    # A last infinite price stands for "no point left"; an infinite radius can never be turned.
    next_price = np.concatenate([prices, [np.inf]])[turned]
    return np.minimum(masses[turned] + (budget - paid[turned]) / next_price + MARGIN, 1.0)


def worst_case(p: ArrayLike, rho: ArrayLike, sigma: float, surrogate: Surrogate) -> FloatOrArray:
    """Return the worst mean loss near points of losses p, on the unit scale, for any classifier and cost."""
    # Equal losses, as counts of few draws produce, are solved once.
    atoms, repeats = np.unique(points("p", p), return_counts=True)
    distance = distances(rho, sigma)
    weights = repeats / repeats.sum()
    worst = weighted_worst_case(special.ndtri(atoms), weights, distance.reshape(-1), surrogate)
    return result(worst.reshape(distance.shape))


def worst_case_loss(
    p: ArrayLike, rho: ArrayLike, sigma: float, *, cost: Cost = "w2", bound: float = 1.0
) -> FloatOrArray:
    """Return the worst mean smoothed loss over all distributions within eps = sqrt(rho) of the points.

    Guarantee: let P0 be the uniform distribution on points x_i with lhat(x_i) <= bound p_i. Then
    E_P lhat is at most the returned value for every P with W(P, P0) <= eps, where labels may not
    change. `rho` is always the squared radius. With r = rho / sigma^2 and u_i = Phi^{-1}(p_i):

    - "w2": mean squared distance <= rho: bound inf_kappa { kappa r / 2 + mean Psi(p_i, kappa) };
    - "w1": mean distance <= sqrt(rho): bound inf_lam { lam sqrt(r) + mean Psi1(p_i, lam) };
    - "winf": every distance <= sqrt(rho): bound mean Phi(u_i + sqrt(r)).

    These are attained by half-spaces. The value is that of a price actually evaluated, at most the
    loss's bound, and the price is optimised to 1e-12.

    Args:
        p: Smoothed losses divided by `bound`, or upper bounds of them, in [0, 1], one for each point.
        rho: Squared radii; all of them share the work and hold at once.
        sigma: Standard deviation of the noise.
        cost: "w1", "w2" or "winf".
        bound: M, the largest loss.

    Example:
        >>> f"{worst_case_loss([0.01, 0.2, 0.6], 1.0, 1.0):.6f}"
        '0.542103'
    """
    return result(one_positive("bound", bound) * np.asarray(worst_case(p, rho, sigma, Surrogate(cost))))


def k_vote_worst_case(p: ArrayLike, votes: int, rho: ArrayLike, sigma: float, *, cost: Cost = "w2") -> FloatOrArray:
    """Return the worst error of the classifier that takes the majority of a few noisy votes.

    Guarantee: with P0 uniform on points at which the base classifier errs under noise with
    probability at most p_i, the classifier that draws `votes` noises afresh for each answer errs with
    probability at most the returned value under every P within eps = sqrt(rho) of P0. Its error where
    the base errs with probability q is at most T(q) = P(Bin(votes, q) >= votes / 2), ties counted as
    errors, and inf_kappa { kappa r / 2 + mean_i sup_t T(Phi(u_i + t)) - kappa t^2 / 2 } is bounded on
    a grid of t, raised by what the curvature 2 phi(1) votes allows between grid points.

    Args:
        p: Error probabilities of one vote, or upper bounds of them, one for each point.
        votes: Number of votes, at least 1.
        rho: Squared radii.
        sigma: Standard deviation of the noise.
        cost: "w1", "w2" or "winf".
    """
    return worst_case(p, rho, sigma, Surrogate(cost, one_count("votes", votes, least=1)))


def majority_worst_case(p: ArrayLike, rho: ArrayLike, sigma: float, *, cost: Cost = "w2") -> FloatOrArray:
    """Return the worst error of the exact majority vote: a fractional knapsack over the radii.

    Guarantee: with P0 uniform on points at which the base classifier errs under noise with
    probability at most p_i, the classifier that answers the most likely class errs with probability
    at most the returned value under every P within eps = sqrt(rho) of P0. Point i can only be turned
    at distance R_i = -sigma Phi^{-1}(p_i) (0 if p_i >= 1/2), so the adversary turns the cheapest
    points first: inf_gamma { gamma rho + mean (1 - gamma R_i^2)_+ } for "w2".

    Args:
        p: Error probabilities of one noisy answer, or upper bounds of them, one for each point.
        rho: Squared radii.
        sigma: Standard deviation of the noise.
        cost: "w1", "w2" or "winf".
    """
    return worst_case(p, rho, sigma, Surrogate(cost, None))


def lowest_total(
    evaluate: Callable[[Array], tuple[Array, Array]],
    budgets: Array,
    prices: Array,
    *,
    ceiling: float,
    tolerance: float,
) -> Array:
    """Return min over prices of price * budget + value(price), for each budget.

    Guarantee: every returned number is the total at a price that was evaluated, or at price zero, so it
    is a valid upper bound whenever each value is. `value` is convex, so its tangents bound it from
    below; the search adds the price where two of them cross until the best total is within `tolerance`
    of that bound. All evaluations serve all budgets.

    Args:
        evaluate: Maps prices to values and slopes; wrong slopes could only cost tightness.
        budgets: What may be spent, one number for each question.
        prices: Where to begin, increasing.
        ceiling: The value at price zero.
        tolerance: Distance from the best total at which to stop.
    """
    values, slopes = evaluate(prices)
    for _ in range(60):
        wanted = set()
        for budget in budgets:
            best = min(ceiling, np.min(prices * budget + values))
            rising = np.flatnonzero(slopes + budget >= 0)
            if rising.size == 0:
                continue  # the best price lies at the upper end, up to rounding
            right = int(rising[0])
            x1 = prices[right]
            if right == 0:
                # Between zero and the first price the total is at least the tangent's value at zero, and at least the
                # value at that price, from which the total there is no further than what is paid.
                if best - (values[0] - slopes[0] * x1) > tolerance and x1 * budget > tolerance:
                    wanted.add(float(x1) / 10)
                continue
            left = right - 1
            x0 = prices[left]
            cross = values[left] - slopes[left] * x0 - values[right] + slopes[right] * x1
            x = cross / (slopes[right] - slopes[left])
            floor = x * budget + values[left] + slopes[left] * (x - x0)
            if best - floor > tolerance and x1 - x0 > 1e-9 * x1:
                # Kept off the ends, so that the bracket shrinks even if rounding misplaces the crossing.
                wanted.add(float(np.clip(x, x0 + 0.02 * (x1 - x0), x1 - 0.02 * (x1 - x0))))
        if not wanted:
            break
        more = np.array(sorted(wanted))
        more_values, more_slopes = evaluate(more)
        order = np.argsort(np.concatenate([prices, more]))
        prices = np.concatenate([prices, more])[order]
        values = np.concatenate([values, more_values])[order]
        slopes = np.concatenate([slopes, more_slopes])[order]
    return np.minimum(np.min(prices * budgets[:, None] + values, axis=1), ceiling)


def moved_loss(
    squared_distances: ArrayLike, losses: ArrayLike, alpha: float, *, limit: float, bound: float
) -> tuple[float, float]:
    """Return what moving each point proves: an upper bound of the cost, and a lower bound of the loss reached.

    Guarantee: let (x_i, x_i') be independent pairs, x_i drawn from P0 and x_i' with the same label, and let
    `losses[i]` have mean lhat(x_i') given the pair, from fresh noise. With probability at least 1 - alpha the law
    of x' lies within the squared radius of the first number and has a mean loss of at least the second: both
    are betting bounds at alpha / 2.

    Args:
        squared_distances: ||x_i' - x_i||^2.
        losses: Mean loss at x_i' under a few draws, in [0, bound].
        alpha: Probability that one of the two fails.
        limit: The largest possible squared distance, known beforehand.
        bound: M, the largest loss.
    """
    limit, bound, half = one_positive("limit", limit), one_positive("bound", bound), level("alpha", alpha) / 2
    cost = points("squared_distances / limit", nonnegative("squared_distances", squared_distances) / limit)
    gain = points("1 - losses / bound", 1 - np.asarray(losses, dtype=np.float64) / bound)
    spent = limit * float(betting_upper(shuffled(cost), half)) * (1 + MARGIN)
    return spent, max(bound * (1 - float(betting_upper(shuffled(gain), half))) - MARGIN, 0.0)


def attained_loss(spent: ArrayLike, reached: ArrayLike, rho: ArrayLike) -> FloatOrArray:
    """Return a lower bound of the worst loss within each budget, from shifts of known cost and loss.

    Guarantee: if some distribution within the budget `spent[i]` has a loss of at least `reached[i]`, for
    every i, then the worst loss within `rho` is at least the returned value. The worst loss never falls
    and is concave in the budget, since a mixture of two shifts costs the mixture of their costs: so it
    lies above the least concave nondecreasing curve through the given points.

    Args:
        spent: Squared radii that the shifts need, upper bounds of them; one must be 0.
        reached: Lower bounds of the losses reached.
        rho: Squared radii asked for.
    """
    cost, loss = nonnegative("spent", spent).reshape(-1), np.asarray(reached, dtype=np.float64).reshape(-1)
    if cost.shape != loss.shape or not np.any(cost == 0):
        raise ValueError(f"spent must hold one budget for each loss, one of them 0, got {cost.size} for {loss.size}")
    order = np.lexsort((-loss, cost))
    hull: list[tuple[float, float]] = []
    for x, y in zip(cost[order], loss[order], strict=True):
        if hull and y <= hull[-1][1]:
            continue  # no more loss for no less money
        while len(hull) > 1:
            (x0, y0), (x1, y1) = hull[-2:]
            if (y1 - y0) * (x - x0) > (y - y0) * (x1 - x0):
                break
            hull.pop()
        hull.append((float(x), float(y)))
    budgets, losses = (np.array(side) for side in zip(*hull, strict=True))
    return result(np.interp(nonnegative("rho", rho), budgets, losses) - MARGIN)


def noisy_rho(rho: ArrayLike, dimension: int, sigma: float) -> FloatOrArray:
    """Return rho + d sigma^2: the transport cost that independent noise adds to a clean budget, for display.

    If W_c(P, P0) <= rho then W_c(P * N, P0) <= rho + d sigma^2; the converse is false.

    Args:
        rho: Squared radii between clean inputs.
        dimension: d, numbers in an input.
        sigma: Standard deviation of the noise.
    """
    return result(nonnegative("rho", rho) + _noise_cost(dimension, sigma))


def clean_rho(rho_noisy: ArrayLike, dimension: int, sigma: float) -> FloatOrArray:
    """Return the clean budget rho_noisy - d sigma^2 that a budget for noisy inputs leaves, and refuse a negative one.

    gamma rho_noisy + E phi_gamma, with the noise in the cost of phi_gamma, equals gamma rho plus the mean of the
    surrogate with clean cost: both conventions give the same number. Below d sigma^2 the noisy reading proves
    nothing: with the loss 1 everywhere its "bound" 1 + gamma (rho_noisy - d sigma^2) lies below the loss.

    Args:
        rho_noisy: Squared radii in which the noise is counted.
        dimension: d, numbers in an input.
        sigma: Standard deviation of the noise.
    """
    budget, used = nonnegative("rho_noisy", rho_noisy), _noise_cost(dimension, sigma)
    left = np.asarray(budget - used)
    # Equality up to rounding is a clean budget of zero.
    left = np.where(np.abs(left) <= 1e-12 * used, 0.0, left)
    if np.any(left < 0):
        raise ValueError(
            f"rho_noisy must be >= dimension * sigma^2 = {used:.6g}, the cost of the noise, got {np.min(budget):.6g}"
        )
    return result(left)


def _noise_cost(dimension: int, sigma: float) -> float:
    return one_count("dimension", dimension, least=1) * one_positive("sigma", sigma) ** 2
