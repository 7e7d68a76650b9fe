"""Worst-case loss over subpopulations and transport at once, and over mixtures of named groups."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize

from rhobust.bounds.majorant import CountBounds, MajorantProblem, SecondStage, count_bounds
from rhobust.bounds.population import TOLERANCE, population_loss
from rhobust.bounds.surrogate import Cost, Surrogate
from rhobust.bounds.transport import distances, minimise_dual
from rhobust.bounds.validation import MARGIN, Array, error_counts, level, one_count, positive, unit_interval

ROUNDS = 30
"""Largest number of times that every (gamma, eps) may ask for one more evaluation."""
POOLED, PER_GROUP = 1 / 2, 3 / 8
"""Fractions of alpha for the counts of all points and for those of the groups; the rest is for the groups' shares."""
ETAS = (0.0, 0.02, 0.1, 0.3, 0.6)
"""Levels at which the search begins."""


def subpopulation_loss(
    errors: ArrayLike,
    draws: int,
    rho: ArrayLike,
    sigma: float,
    alpha: float,
    *,
    gamma: ArrayLike,
    outliers: float = 0.0,
    cost: Cost = "w2",
    votes: int | None = 1,
    second: SecondStage | None = None,
) -> Array:
    """Return the worst-case error over all subpopulations after transport, from a few noise samples per point.

    Guarantee: let the test points be independent samples of P0 and the noise independent between points. With
    probability at least 1 - alpha, for all `gamma` and `rho` at once: let Q have a density of at most gamma with
    respect to P0 (a subgroup with a share of at least 1 / gamma, any label shift or reweighting by factors up to
    gamma), let a share of at most `outliers` of Q be replaced by anything, and let the rest move by a W2 (or W1,
    W-infinity) distance of at most eps = sqrt(rho). The classifier errs with probability at most the returned value.

    By weak duality the error is at most inf over kappa, eta of kappa r / 2 + eta + gamma E_P0 (Psi(p, kappa) - eta)_+,
    the CVaR of Psi. The last mean is bounded by majorants as in `population_loss`; their event is the same for
    all kappa, eta and gamma. Outliers: q + (1 - q) times the bound at gamma / (1 - q).

    `gamma` holds factors of at least 1, and `outliers` is q. The other arguments are those of `population_loss`; alpha
    is the probability of failure of the whole surface.

    Returns:
        One row per gamma, one column per rho.
    """
    found, draws = error_counts(errors, draws)
    surrogate, apart = Surrogate(cost, votes), distances(rho, sigma).reshape(-1)
    factors = np.atleast_1d(positive("gamma", gamma))
    if factors.ndim != 1 or factors.min() < 1:
        raise ValueError(f"gamma must hold numbers >= 1, got {factors.min():g}")
    share = float(unit_interval("outliers", outliers))
    if share == 1:
        return np.ones((factors.size, apart.size))
    # Rounded outward: a larger factor.
    factors = factors / (1 - share) * (1 + MARGIN * (share > 0))
    bounds = count_bounds(found, draws, level("alpha", alpha), second)
    problem = MajorantProblem(draws, surrogate.curvature, 0 if second is None else second.draws)
    table = np.ones((factors.size, apart.size))
    still = (apart == 0) | (cost == "winf")
    for place in np.flatnonzero(still):
        table[:, place] = _fixed(problem, bounds, surrogate, float(apart[place]), factors)
        if votes == 1 and apart[place] == 0:
            table[:, place] = np.minimum(table[:, place], factors * bounds.mean + MARGIN)
    if np.any(~still):
        table[:, ~still] = _moving(problem, bounds, surrogate, apart[~still], factors)
    if np.any(factors == 1):
        plain = population_loss(found, draws, np.ravel(rho), sigma, alpha, cost=cost, votes=votes, second=second)
        table[factors == 1] = np.minimum(table[factors == 1], plain)
    return np.minimum(share + (1 - share) * table + MARGIN * (share > 0), 1.0)


def _tail(
    problem: MajorantProblem, bounds: CountBounds, upper: Array, spent: Array | float, eta: float
) -> tuple[float, Array]:
    """Upper bound of E (T - eta)_+, and its derivatives by the penalty and by eta."""
    top = 1 - eta
    majorant, weights = problem.solve(np.maximum(upper - eta, 0.0), bounds, top)
    active = weights * (upper > eta)
    # The last row of the programme, all p up to 1, has no entry in the weights: its mass counts for eta alone.
    return min(majorant.mean_upper(bounds), top), np.array([-(active @ (spent + 0 * active)), -active.sum()])


def _fixed(
    problem: MajorantProblem, bounds: CountBounds, surrogate: Surrogate, distance: float, factors: Array
) -> Array:
    """The bound for each factor where every point moves by one distance."""
    upper = surrogate.shifted(problem.u, distance)

    def evaluate(point: Array) -> tuple[float, Array]:
        value, slopes = _tail(problem, bounds, upper, 0.0, float(point[0]))
        return value, slopes[1:]

    starts = np.array(ETAS)[:, None]
    return _cutting_planes(evaluate, starts, np.ones((factors.size, 1)), factors, np.array([0.0]), np.array([1.0]))


def _moving(problem: MajorantProblem, bounds: CountBounds, surrogate: Surrogate, apart: Array, factors: Array) -> Array:
    """The bound for each factor and each transport distance."""
    penalties = surrogate.penalties(apart)
    known: dict[float, tuple[Array, Array]] = {}

    def evaluate(point: Array) -> tuple[float, Array]:
        penalty, eta = point.tolist()
        if penalty not in known:
            known[penalty] = surrogate.penalised(problem.u, np.asarray(penalty))
        return _tail(problem, bounds, *known[penalty], eta)

    budgets = surrogate.budgets(apart)
    starts = np.array([(penalty, eta) for penalty in penalties[::2] for eta in ETAS[1:4:2]])
    starts = np.concatenate([starts, np.stack([penalties, np.zeros(penalties.size)], axis=1)])
    costs = np.array([(budget, 1.0) for _ in factors for budget in budgets])
    low, high = np.array([penalties[0] / 10, 0.0]), np.array([penalties[-1], 1.0])
    found = _cutting_planes(evaluate, starts, costs, np.repeat(factors, budgets.size), low, high)
    return np.minimum(found.reshape(factors.size, budgets.size), 1.0)


def _cutting_planes(
    evaluate: Callable[[Array], tuple[float, Array]],
    starts: Array,
    costs: Array,
    factors: Array,
    low: Array,
    high: Array,
) -> Array:
    """Return min over x of costs[i] . x + factors[i] value(x) for each i, over the box from `low` to `high`.

    Guarantee: every returned number is the objective at an evaluated x, so it is a valid upper bound whenever each
    value is. `value` is convex and nonnegative, so its tangent planes bound it from below; each i asks for the
    minimiser of the planes so far until its objective is within the tolerance of theirs. Every evaluation serves
    all i; wrong derivatives cost tightness only.
    """
    places, values, slopes = [], [], []

    def add(x: Array) -> None:
        value, slope = evaluate(x)
        places.append(x), values.append(value), slopes.append(slope)

    for start in starts:
        add(start)
    limits = [*zip(low, high, strict=True), (0.0, None)]
    open_ones = set(range(len(costs)))
    for _ in range(ROUNDS):
        at, value, slope = np.array(places), np.array(values), np.array(slopes)
        totals = at @ costs.T + factors * value[:, None]
        wanted: list[Array] = []
        for one in sorted(open_ones):
            planes = np.column_stack([slope, -np.ones(len(at))])
            model = optimize.linprog(
                np.append(costs[one], factors[one]),
                A_ub=planes,
                b_ub=(slope * at).sum(axis=1) - value,
                bounds=limits,
                method="highs",
            )
            if model.x is None or totals[:, one].min() - model.fun <= TOLERANCE * factors[one]:
                open_ones.discard(one)
                continue
            # The solver keeps its limits up to a tolerance only, and beyond eta = 1 a value would be negative.
            x = np.clip(model.x[:-1], low, high)
            if np.abs(at - x).max(axis=1).min() <= 1e-9:
                open_ones.discard(one)  # rounding keeps the planes from closing the gap
            elif not any(np.abs(other - x).max() <= 1e-9 for other in wanted):
                wanted.append(x)
        if not wanted:
            break
        for x in wanted:
            add(x)
    return (np.array(places) @ costs.T + factors * np.array(values)[:, None]).min(axis=0)


class MixtureLoss(NamedTuple):
    """Simultaneous upper bounds of the error under every distribution near a group's, or a mixture's."""

    groups: Array
    """One row per group, one column per rho."""
    mixtures: Array
    """One row per `tv`, one column per rho."""


def mixture_loss(
    errors: Sequence[ArrayLike],
    draws: int,
    rho: ArrayLike,
    sigma: float,
    alpha: float,
    *,
    tv: ArrayLike,
    cost: Cost = "w2",
    votes: int | None = 1,
    num_groups: int | None = None,
) -> MixtureLoss:
    """Return the worst-case error of every group, e.g. class, and where the shares of groups change.

    Guarantee: let the points be independent samples of P0, each in one group, and the noise independent between points.
    With probability at least 1 - alpha, for all groups, `tv` and `rho` at once: the classifier errs with probability
    at most the returned value under every distribution within eps = sqrt(rho) of the group's; and of a mixture of the
    groups whose shares differ from those in P0 by at most `tv` in total variation.

    Let V_g(kappa) bound the mean of Psi(p, kappa) in group g, and V(kappa) its mean. For shares w that differ from
    those in P0 by m, sum_g w_g E_g Psi is at most V + m max_g V_g; and at most max over w of sum_g w_g V_g, a linear
    programme over all shares within m + t of the observed ones, where t bounds how far these are from P0's:
    t = sqrt(log(2^G / a) / (2 n)) for the G groups that P0 may have, with or without a point. It takes m + t from the
    groups of smallest V_g and gives it to the largest.

    `errors` holds the counts of each group, and `tv` total variations in [0, 1], 1 for any mixture. `num_groups` is the
    number of groups that P0 may have, fixed beforehand, e.g. that of the classes; by default those of `errors`, which
    must then be all that there are. The other arguments are those of `population_loss`.
    """
    alpha, steps = level("alpha", alpha), np.atleast_1d(unit_interval("tv", tv))
    counted = [error_counts(one, draws)[0] for one in errors]
    sizes = np.array([one.size for one in counted])
    bounds = [count_bounds(one, draws, PER_GROUP * alpha / len(counted)) for one in counted]
    bounds.append(count_bounds(np.concatenate(counted), draws, POOLED * alpha))
    rest = (1 - PER_GROUP - POOLED) * alpha
    possible = one_count("num_groups", sizes.size if num_groups is None else num_groups, least=sizes.size)
    unsure = math.sqrt((possible * math.log(2) + math.log(1 / rest)) / (2 * sizes.sum())) + MARGIN
    surrogate, apart = Surrogate(cost, votes), distances(rho, sigma).reshape(-1)
    problems = [MajorantProblem(draws, surrogate.curvature) for _ in bounds]

    def means(upper: Array) -> Array:
        solved = [problem.solve(upper, one)[0] for problem, one in zip(problems, bounds, strict=True)]
        return np.minimum([one.mean_upper(at) for one, at in zip(solved, bounds, strict=True)], 1.0)

    # A bound is a mean of the groups' values and the pooled one with weights that depend on the values.
    weights: list[Callable[[Array], Array]] = [partial(_single, group) for group in range(sizes.size)]
    weights += [partial(_added, step) for step in steps]
    weights += [partial(_greedy, sizes / sizes.sum(), min(step + unsure, 1.0)) for step in steps]
    table = np.ones((len(weights), apart.size))
    still = (apart == 0) | (cost == "winf")
    for place in np.flatnonzero(still):
        moved = [one.moved(surrogate, at, float(apart[place])) for one, at in zip(problems, bounds, strict=True)]
        values = np.minimum(moved, 1.0)
        table[:, place] = [values @ weight(values) for weight in weights]
    far = apart[~still]
    for penalty in _promising(problems[-1], bounds[-1], surrogate, far) if far.size else ():
        values = means(surrogate.penalised(problems[0].u, np.asarray(penalty))[0])
        found = np.array([values @ weight(values) for weight in weights])
        table[:, ~still] = np.minimum(table[:, ~still], penalty * surrogate.budgets(far) + found[:, None])
    table = np.minimum(table + MARGIN, 1.0)
    groups, added, greedy = np.split(table, [sizes.size, sizes.size + steps.size])
    return MixtureLoss(groups, np.minimum(added, greedy))


def _promising(problem: MajorantProblem, bounds: CountBounds, surrogate: Surrogate, apart: Array) -> Array:
    """Penalties that are best for all points together at one of the distances, and half and twice as large ones.

    Any penalty gives a valid bound: each is tried for all groups, which have optima of their own nearby.
    """
    known: dict[float, float] = {}

    def evaluate(penalties: Array) -> tuple[Array, Array]:
        values, slopes = problem.penalised(surrogate, bounds, penalties)
        known.update(zip(penalties.tolist(), values.tolist(), strict=True))
        return values, slopes

    budgets = surrogate.budgets(apart)
    minimise_dual(evaluate, budgets, surrogate.penalties(apart), ceiling=1.0, tolerance=10 * TOLERANCE)
    penalties, values = np.array(list(known)), np.array(list(known.values()))
    best = penalties[(penalties * budgets[:, None] + values).argmin(axis=1)]
    return np.unique(np.outer(best, [0.5, 1.0, 2.0]))


def _single(group: int, values: Array) -> Array:
    """Weights of one group alone; the last value is the pooled one."""
    return np.eye(values.size)[group]


def _added(tv: float, values: Array) -> Array:
    """Weights of the pooled value plus a further share of the worst group."""
    weights = np.eye(values.size)[-1]
    weights[int(values[:-1].argmax())] += tv
    return weights


def _greedy(shares: Array, tv: float, values: Array) -> Array:
    """The shares within `tv` of the given ones, in total variation, with the largest mean value."""
    order, left, worst = np.argsort(values[:-1]), tv, shares.copy()
    for group in order[:-1]:
        taken = min(worst[group], left)
        worst[group], left = worst[group] - taken, left - taken
        worst[order[-1]] += taken
    return np.append(worst, 0.0)
