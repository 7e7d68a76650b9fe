"""The worst loss over all distributions within a Wasserstein distance of given points."""

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from rhobust.bounds.arguments import MARGIN, Array, FloatOrArray, nonnegative, one_count, one_positive, points, result
from rhobust.bounds.price import lowest_total
from rhobust.bounds.surrogate import Cost, Surrogate

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
