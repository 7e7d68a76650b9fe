"""Worst-case mean loss over a Wasserstein ball: dual upper bound, primal lower bound, attack, clean and noisy rho."""

import itertools
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from rhobust.bounds.confidence import betting_upper, shuffle
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
"""Cap on distances in units of the noise: the worst case is constant beyond it, and its square is a float."""


def distances(rho: ArrayLike, sigma: float) -> Array:
    """Return eps / sigma = sqrt(rho) / sigma, rounded up (0 for rho = 0), at most `FARTHEST`."""
    return np.minimum(np.sqrt(nonnegative("rho", rho)) / one_positive("sigma", sigma) * (1 + MARGIN), FARTHEST)


def weighted_worst_case(u: Array, weights: Array, distance: Array, surrogate: Surrogate) -> Array:
    """Return the worst-case mean loss for each distance, if the atom with probit u_i has mass weights_i."""
    # Rounded weights may sum to less than one.
    weights = weights * (1 + MARGIN)
    moving = distance > 0
    if surrogate.cost == "winf" or not np.any(moving):
        return np.minimum([weights @ surrogate.shifted(u, t) for t in distance], 1.0)
    if surrogate.votes is None:
        return _knapsack(u, weights, distance, surrogate)

    def evaluate(penalties: Array) -> tuple[Array, Array]:
        values, spent = surrogate.penalised(u[:, None], penalties)
        return weights @ values, -(weights @ spent)

    far = distance[moving]
    totals = np.full(distance.size, weights @ surrogate.shifted(u, 0.0))
    totals[moving] = minimise_dual(
        evaluate,
        surrogate.budgets(far),
        surrogate.penalties(far),
        # At penalty zero every point reaches loss 1, except where the loss is zero everywhere.
        ceiling=float(weights @ (u > -np.inf)),
        tolerance=surrogate.tolerance,
    )
    return np.minimum(totals, 1.0)


def _knapsack(u: Array, weights: Array, distance: Array, surrogate: Surrogate) -> Array:
    """Return the mass that can be misclassified at a cost of |u|^q / q per unit, in increasing order of cost."""
    radii = np.maximum(-u - MARGIN, 0.0)
    order = np.argsort(radii)
    costs = surrogate.budgets(radii[order])
    masses = np.concatenate([[0.0], np.cumsum(weights[order])])
    with np.errstate(invalid="ignore"):  # an infinite radius: weight times infinity
        spent = np.concatenate([[0.0], np.cumsum(np.where(weights[order] > 0, costs * weights[order], 0.0))])
    budget = surrogate.budgets(distance)
    full = np.searchsorted(spent[1:], budget, side="right")
    # A final infinite cost: no point is left.
    next_cost = np.concatenate([costs, [np.inf]])[full]
    return np.minimum(masses[full] + (budget - spent[full]) / next_cost + MARGIN, 1.0)


def worst_case(p: ArrayLike, rho: ArrayLike, sigma: float, surrogate: Surrogate) -> FloatOrArray:
    """Return the worst-case mean loss around points of losses p in [0, 1], for any classifier and cost."""
    # Equal losses, common with few noise samples, are solved once.
    atoms, repeats = np.unique(points("p", p), return_counts=True)
    distance = distances(rho, sigma)
    weights = repeats / repeats.sum()
    worst = weighted_worst_case(special.ndtri(atoms), weights, distance.reshape(-1), surrogate)
    return result(worst.reshape(distance.shape))


def worst_case_loss(
    p: ArrayLike, rho: ArrayLike, sigma: float, *, cost: Cost = "w2", bound: float = 1.0
) -> FloatOrArray:
    """Return the worst-case mean smoothed loss over all distributions within eps = sqrt(rho) of the points.

    Guarantee: let P0 be the uniform distribution on points x_i with lhat(x_i) <= bound p_i. Then
    E_P lhat is at most the returned value for every P with W(P, P0) <= eps, where labels may not
    change. `rho` is always the squared radius. With r = rho / sigma^2 and u_i = Phi^{-1}(p_i):

    - "w2": mean squared distance <= rho: bound inf_kappa { kappa r / 2 + mean Psi(p_i, kappa) };
    - "w1": mean distance <= sqrt(rho): bound inf_lam { lam sqrt(r) + mean Psi1(p_i, lam) };
    - "winf": every distance <= sqrt(rho): bound mean Phi(u_i + sqrt(r)).

    Half-spaces attain equality. The value is the dual objective at an evaluated penalty, at most the
    loss's bound; the minimisation over the penalty is within 1e-12.

    Args:
        p: Smoothed losses divided by `bound`, or upper bounds of them, in [0, 1], one per point.
        rho: Squared radii; the bounds hold simultaneously.
        sigma: Standard deviation of the noise.
        cost: "w1", "w2" or "winf".
        bound: M, the largest loss.

    Example:
        >>> f"{worst_case_loss([0.01, 0.2, 0.6], 1.0, 1.0):.6f}"
        '0.542103'
    """
    return result(one_positive("bound", bound) * np.asarray(worst_case(p, rho, sigma, Surrogate(cost))))


def k_vote_worst_case(p: ArrayLike, votes: int, rho: ArrayLike, sigma: float, *, cost: Cost = "w2") -> FloatOrArray:
    """Return the worst-case error of the classifier that takes the majority of k noisy votes.

    Guarantee: with P0 uniform on points at which the base classifier errs under noise with
    probability at most p_i, the classifier that takes `votes` fresh noise samples per prediction errs with
    probability at most the returned value under every P within eps = sqrt(rho) of P0. Its error where
    the base errs with probability q is at most T(q) = P(Bin(votes, q) >= votes / 2), ties counted as
    errors, and inf_kappa { kappa r / 2 + mean_i sup_t T(Phi(u_i + t)) - kappa t^2 / 2 } is bounded on
    a grid of t, plus the error between grid points allowed by the curvature 2 phi(1) votes. The other arguments
    are those of `worst_case_loss`.
    """
    return worst_case(p, rho, sigma, Surrogate(cost, one_count("votes", votes, least=1)))


def majority_worst_case(p: ArrayLike, rho: ArrayLike, sigma: float, *, cost: Cost = "w2") -> FloatOrArray:
    """Return the worst-case error of the exact majority vote: a fractional knapsack over the radii.

    Guarantee: with P0 uniform on points at which the base classifier errs under noise with
    probability at most p_i, the classifier that predicts the most likely class errs with probability
    at most the returned value under every P within eps = sqrt(rho) of P0. Point i is misclassified only
    beyond distance R_i = -sigma Phi^{-1}(p_i) (0 if p_i >= 1/2), so the adversary moves the closest
    points first: inf_gamma { gamma rho + mean (1 - gamma R_i^2)_+ } for "w2". The arguments are those of
    `worst_case_loss`.
    """
    return worst_case(p, rho, sigma, Surrogate(cost, None))


def minimise_dual(
    evaluate: Callable[[Array], tuple[Array, Array]],
    budgets: Array,
    penalties: Array,
    *,
    ceiling: float,
    tolerance: float,
) -> Array:
    """Return min over penalties of penalty * budget + value(penalty), for each budget.

    Guarantee: every returned number is the dual objective at an evaluated penalty, or at zero, so it is a valid
    upper bound whenever each value is. `value` is convex, so its tangents bound it from below; the search adds the
    intersection of two tangents until the smallest objective is within `tolerance` of that bound. Every evaluation
    is used for all budgets.

    Args:
        evaluate: Maps penalties to values and derivatives; wrong derivatives cost tightness only.
        budgets: Transport budgets.
        penalties: Initial penalties, increasing.
        ceiling: The value at penalty zero.
        tolerance: Duality gap at which to stop.
    """
    values, slopes = evaluate(penalties)
    for _ in range(60):
        wanted = set()
        for budget in budgets:
            best = min(ceiling, np.min(penalties * budget + values))
            rising = np.flatnonzero(slopes + budget >= 0)
            if rising.size == 0:
                continue  # the minimiser is at the upper end, up to rounding
            right = int(rising[0])
            x1 = penalties[right]
            if right == 0:
                # Between zero and the first penalty the objective is at least the tangent at zero, and at least the
                # value at that penalty, from which the objective there differs by penalty * budget.
                if best - (values[0] - slopes[0] * x1) > tolerance and x1 * budget > tolerance:
                    wanted.add(float(x1) / 10)
                continue
            left = right - 1
            x0 = penalties[left]
            cross = values[left] - slopes[left] * x0 - values[right] + slopes[right] * x1
            x = cross / (slopes[right] - slopes[left])
            floor = x * budget + values[left] + slopes[left] * (x - x0)
            if best - floor > tolerance and x1 - x0 > 1e-9 * x1:
                # Kept off the ends, so that the bracket shrinks even if rounding misplaces the intersection.
                wanted.add(float(np.clip(x, x0 + 0.02 * (x1 - x0), x1 - 0.02 * (x1 - x0))))
        if not wanted:
            break
        more = np.array(sorted(wanted))
        more_values, more_slopes = evaluate(more)
        order = np.argsort(np.concatenate([penalties, more]))
        penalties = np.concatenate([penalties, more])[order]
        values = np.concatenate([values, more_values])[order]
        slopes = np.concatenate([slopes, more_slopes])[order]
    return np.minimum(np.min(penalties * budgets[:, None] + values, axis=1), ceiling)


def shift_lower_bound(
    squared_distances: ArrayLike, losses: ArrayLike, alpha: float, *, limit: float, bound: float
) -> tuple[float, float]:
    """Return confidence bounds for an adversarial distribution: its transport cost from above, its loss from below.

    Guarantee: let (x_i, x_i') be independent pairs, x_i drawn from P0 and x_i' with the same label, and let
    `losses[i]` have mean lhat(x_i') given the pair, from fresh noise. With probability at least 1 - alpha the
    distribution of x' is within the squared radius of the first number and has a mean loss of at least the
    second: both are betting bounds at alpha / 2.

    Args:
        squared_distances: ||x_i' - x_i||^2.
        losses: Mean loss at x_i' over fresh noise samples, in [0, bound].
        alpha: Probability that either bound fails.
        limit: The largest possible squared distance, fixed beforehand.
        bound: M, the largest loss.
    """
    limit, bound, half = one_positive("limit", limit), one_positive("bound", bound), level("alpha", alpha) / 2
    cost = points("squared_distances / limit", nonnegative("squared_distances", squared_distances) / limit)
    rest = points("1 - losses / bound", 1 - np.asarray(losses, dtype=np.float64) / bound)
    spent = limit * float(betting_upper(shuffle(cost), half)) * (1 + MARGIN)
    return spent, max(bound * (1 - float(betting_upper(shuffle(rest), half))) - MARGIN, 0.0)


def worst_case_lower_bound(spent: ArrayLike, reached: ArrayLike, rho: ArrayLike) -> FloatOrArray:
    """Return a primal lower bound of the worst-case loss within each budget, from shifts of known cost and loss.

    Guarantee: if some distribution within the budget `spent[i]` has a loss of at least `reached[i]`, for
    every i, then the worst-case loss within `rho` is at least the returned value. The worst-case loss is
    nondecreasing and concave in the budget, since the cost of a mixture of two shifts is the mixture of their
    costs: so it is above the least concave nondecreasing majorant of the given points.

    Args:
        spent: Upper bounds of the squared radii of the shifts; one must be 0.
        reached: Lower bounds of the losses reached.
        rho: Squared radii at which the bound is returned.
    """
    cost, loss = nonnegative("spent", spent).reshape(-1), np.asarray(reached, dtype=np.float64).reshape(-1)
    if cost.shape != loss.shape or not np.any(cost == 0):
        raise ValueError(f"spent must hold one budget per loss, one of them 0, got {cost.size} for {loss.size}")
    corners = _corners(cost, loss, [])
    return result(np.interp(nonnegative("rho", rho), cost[corners], loss[corners]) - MARGIN)


def noisy_rho(rho: ArrayLike, dimension: int, sigma: float) -> FloatOrArray:
    """Return the noisy budget rho + d sigma^2 of a clean budget rho: independent noise adds d sigma^2 to the cost.

    If W_c(P, P0) <= rho then W_c(P * N, P0) <= rho + d sigma^2; the converse is false.

    Args:
        rho: Squared radii between clean inputs.
        dimension: d, the input dimension.
        sigma: Standard deviation of the noise.
    """
    return result(nonnegative("rho", rho) + _noise_cost(dimension, sigma))


def clean_rho(rho_noisy: ArrayLike, dimension: int, sigma: float) -> FloatOrArray:
    """Return the clean budget rho_noisy - d sigma^2 of a noisy budget; a negative one is an error.

    gamma rho_noisy + E phi_gamma, with the noise in the cost of phi_gamma, equals gamma rho plus the mean of the
    surrogate with clean cost: both budgets give the same number. Below d sigma^2 the noisy form is not a bound:
    for the constant loss 1 it gives 1 + gamma (rho_noisy - d sigma^2) < 1.

    Args:
        rho_noisy: Squared radii including the cost of the noise.
        dimension: d, the input dimension.
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


def spend_budget(costs: ArrayLike, losses: ArrayLike, rho: ArrayLike) -> Array:
    """Return the shares of each point's mass at its places that maximise the mean loss within a mean cost of rho.

    Guarantee: the shares of a point are nonnegative and sum to 1, and the mean cost is at most rho. So moving the mass
    there is a distribution within the transport budget rho of the points, and its loss is reached: an attack. It is
    the best one that uses these places only: max sum_ij w_ij losses_ij / n over such shares, a linear programme. A
    point that pays lambda per cost sits on the upper concave envelope of its (cost, loss); so all steps along the
    envelopes are taken in the order of their gain per cost until the budget is spent, the last one in part: there
    one point splits its mass over two places.

    Args:
        costs: Cost of each place, one row per point; the first place is the point itself, at cost 0.
        losses: Loss there, of the same shape; estimates will do.
        rho: Mean budgets.

    Returns:
        One table of shares per budget, `(budgets, points, places)`.
    """
    cost, loss = nonnegative("costs", costs), np.asarray(losses, dtype=np.float64)
    if cost.ndim != 2 or cost.shape != loss.shape or cost.size == 0 or np.any(cost[:, 0] > 0):
        raise ValueError(
            f"costs must be one row per point with 0 first, of the shape of losses, got {cost.shape} for {loss.shape}"
        )
    if not np.all(np.isfinite(loss)):
        raise ValueError("losses must be numbers, got others")
    budgets = np.atleast_1d(nonnegative("rho", rho)).reshape(-1)
    steps = [(*step, point) for point in range(len(cost)) for step in _envelope(cost[point], loss[point])]
    steps.sort(key=lambda step: -step[0])
    shares = np.zeros((budgets.size, *cost.shape))
    for number, budget in enumerate(budgets):
        table, left = shares[number], float(budget) * len(cost)
        table[:, 0] = 1.0
        for _, price, start, end, point in steps:
            taken = 1.0 if price <= left else left / price
            table[point, start], table[point, end] = 1 - taken, taken
            left -= taken * price
            if taken < 1:
                break
    return shares


def _corners(cost: Array, loss: Array, corners: list[int]) -> list[int]:
    """The places of the least concave nondecreasing function above all (cost, loss), those given being the first."""
    for place in np.lexsort((-loss, cost)).tolist():
        if corners and loss[place] <= loss[corners[-1]]:
            continue  # dominated: as costly, and no better
        while len(corners) > 1:
            first, last = corners[-2:]
            if (loss[last] - loss[first]) * (cost[place] - cost[first]) > (loss[place] - loss[first]) * (
                cost[last] - cost[first]
            ):
                break
            corners.pop()
        corners.append(place)
    return corners


def _envelope(cost: Array, loss: Array) -> list[tuple[float, float, int, int]]:
    """Steps along the upper concave envelope from the first place on: gain per cost, cost, from where, to where."""
    corners = _corners(cost, loss, [0])
    found = []
    for start, end in itertools.pairwise(corners):
        price = float(cost[end] - cost[start])
        gain = float(loss[end] - loss[start])
        found.append((gain / price if price > 0 else np.inf, price, start, end))
    return found
