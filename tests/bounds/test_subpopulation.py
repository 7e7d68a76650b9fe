"""Subpopulations, outliers and mixtures of groups, against linear programmes that split and reweight mass."""

import itertools

import numpy as np
import pytest
from scipy import optimize, special

from rhobust.bounds import mixture_loss, population_loss, subpopulation, subpopulation_loss
from rhobust.bounds.majorant import CountBounds, MajorantProblem

SIGMA = 0.5
ATOMS = np.array([0.002, 0.02, 0.1, 0.45])


def worst_case(p, weights, gamma, distance, steps=60, reach=6.0):
    """The largest error of half-spaces over reweighting by up to gamma and moves of a root mean square `distance`.

    A linear programme: the mass of every atom at every distance of a grid, in units of the noise.
    """
    moves = np.linspace(0, reach, steps)
    gain = special.ndtr(special.ndtri(p)[:, None] + moves).ravel()
    atoms = np.kron(np.eye(p.size), np.ones(steps))
    found = optimize.linprog(
        -gain,
        A_ub=np.vstack([atoms, np.tile(moves**2, p.size)]),
        b_ub=np.append(gamma * weights, distance**2),
        A_eq=np.ones((1, gain.size)),
        b_eq=[1.0],
    )
    return -found.fun


@pytest.mark.parametrize("cost", ["w2", "winf"])
def test_no_subpopulation_that_moves_errs_more_and_not_much_less(cost):
    rng = np.random.default_rng(0)
    gammas, eps = np.array([1.0, 1.5, 3.0]), np.array([0.0, 0.25, 0.5])
    n = 40_000
    errors = rng.binomial(8, rng.choice(ATOMS, n))
    found = subpopulation_loss(errors, 8, eps**2, SIGMA, 1e-3, gamma=gammas, cost=cost)
    for (row, gamma), (column, size) in itertools.product(enumerate(gammas), enumerate(eps)):
        if cost == "w2":
            truth = worst_case(ATOMS, np.full(4, 0.25), gamma, size / SIGMA)
        else:  # every atom moves all the way, and the worst ones weigh most
            reached = np.sort(special.ndtr(special.ndtri(ATOMS) + size / SIGMA))[::-1]
            share = np.diff(np.minimum(np.arange(5) * gamma / 4, 1.0))
            truth = reached @ share
        assert truth - 1e-9 <= found[row, column] <= truth + 0.03 * gamma


def test_without_reweighting_it_is_the_bound_of_the_population_on_the_same_event():
    errors = np.random.default_rng(1).binomial(10, 0.05, 500)
    rho = np.square([0.0, 0.1, 0.4])
    found = subpopulation_loss(errors, 10, rho, SIGMA, 0.01, gamma=[1.0, 4.0])
    assert found[0] == pytest.approx(population_loss(errors, 10, rho, SIGMA, 0.01), abs=1e-5)
    # Gamma times the plain bound is a bound too, and the surface is never above it.
    assert (found[1] <= 4 * found[0] + 1e-4).all()


def test_outliers_are_errors_and_may_be_the_easiest_inputs():
    errors = np.random.default_rng(2).binomial(10, 0.05, 500)
    rho = np.square([0.0, 0.2])
    some = subpopulation_loss(errors, 10, rho, SIGMA, 0.01, gamma=[1.0], outliers=0.1)
    rest = subpopulation_loss(errors, 10, rho, SIGMA, 0.01, gamma=[1 / 0.9])
    assert some == pytest.approx(0.1 + 0.9 * rest, abs=1e-9)
    assert (subpopulation_loss(errors, 10, rho, SIGMA, 0.01, gamma=[1.0], outliers=1.0) == 1).all()


@pytest.mark.parametrize("votes", [3, None])
def test_several_votes(votes):
    errors = np.random.default_rng(3).binomial(12, np.repeat([0.02, 0.3], 500))
    rho = np.square([0.0, 0.1])
    found = subpopulation_loss(errors, 12, rho, SIGMA, 0.01, gamma=[1.0, 2.0], votes=votes, cost="winf")
    assert (found[1] > found[0]).all()
    assert (found[:, 1] > found[:, 0]).all()
    # Half of the inputs err with probability 0.3, so three votes err at 0.216 among them.
    assert found[1, 0] > (0.216 if votes else 0.0)
    assert found[1, 0] <= 2 * found[0, 0] + 1e-4


def test_the_tail_of_every_transform_is_majorised():
    # E h >= (T - eta)_+ for every p between the points of the grid too.
    problem, rng = MajorantProblem(8, 0.25), np.random.default_rng(4)
    bounds = CountBounds(np.linspace(0.3, 0.02, 8), 0.1, 0.08)
    steps = np.arange(9)
    for eta in (0.0, 0.3, 0.9):
        upper = np.maximum(special.ndtr(problem.u + 0.5) - eta, 0.0)
        found, _ = problem.solve(upper, bounds, 1 - eta)
        h = found.base + found.slope * steps / 8 + found.once * (steps == 1)
        h = h + np.append(0.0, np.cumsum(found.heights))
        u = rng.uniform(-6, 6, 500)
        law = special.comb(8, steps) * special.ndtr(u)[:, None] ** steps * special.ndtr(-u)[:, None] ** (8 - steps)
        assert (law @ h >= np.maximum(special.ndtr(u + 0.5) - eta, 0.0)).all()
        assert found.mean_upper(bounds) <= 1 - eta + 1e-9


def mixture_truth(rates, shares, tv):
    """The largest mean over shares within `tv` of the given ones in total variation: a linear programme."""
    groups = len(rates)
    found = optimize.linprog(
        np.concatenate([-rates, np.zeros(groups)]),
        A_ub=np.vstack(
            [
                np.hstack([np.eye(groups), -np.eye(groups)]),
                np.append(np.zeros(groups), np.ones(groups)),
            ]
        ),
        b_ub=np.append(shares, tv),
        A_eq=[np.append(np.ones(groups), np.zeros(groups))],
        b_eq=[1.0],
    )
    return -found.fun


def test_no_mixture_of_groups_errs_more_and_not_much_less():
    rng = np.random.default_rng(5)
    rates, shares, n = np.array([0.02, 0.1, 0.3]), np.array([0.5, 0.3, 0.2]), 30_000
    group = rng.choice(3, n, p=shares)
    errors = rng.binomial(10, rates[group])
    tv = np.array([0.0, 0.1, 0.4, 1.0])
    found = mixture_loss([errors[group == g] for g in range(3)], 10, 0.0, SIGMA, 0.01, tv=tv)
    assert (found.groups[:, 0] >= rates).all()
    assert (found.groups[:, 0] <= rates + 0.03).all()
    truth = np.array([mixture_truth(rates, shares, one) for one in tv])
    assert (found.mixtures[:, 0] >= truth).all()
    assert (found.mixtures[:, 0] <= truth + 0.035).all()


def test_the_worst_shares_are_those_of_the_linear_programme():
    rng = np.random.default_rng(6)
    for _ in range(20):
        rates, shares, tv = rng.random(5), rng.dirichlet(np.ones(5)), rng.random()
        weights = subpopulation._greedy(shares, tv, np.append(rates, 0.5))
        assert weights.sum() == pytest.approx(1)
        assert weights[:-1] @ rates == pytest.approx(mixture_truth(rates, shares, tv), abs=1e-9)


def test_groups_that_move():
    rng = np.random.default_rng(7)
    errors = [rng.binomial(10, 0.02, 800), rng.binomial(10, 0.2, 400)]
    found = mixture_loss(errors, 10, np.square([0.0, 0.25]), SIGMA, 0.01, tv=[0.0, 1.0])
    for group in range(2):
        alone = population_loss(errors[group], 10, 0.25**2, SIGMA, 0.01)
        assert alone - 1e-6 <= found.groups[group, 1] <= alone + 0.04
    assert found.mixtures[1] == pytest.approx(found.groups.max(axis=0), abs=1e-3)
    assert (found.mixtures[0] < found.mixtures[1]).all()


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match=r"gamma must hold numbers >= 1, got 0\.5"):
        subpopulation_loss([0, 1], 5, 0.0, SIGMA, 0.1, gamma=[0.5])
    with pytest.raises(ValueError, match=r"outliers must be in \[0, 1\], got 2"):
        subpopulation_loss([0, 1], 5, 0.0, SIGMA, 0.1, gamma=[1.0], outliers=2.0)
    with pytest.raises(ValueError, match=r"tv must be in \[0, 1\], got 3"):
        mixture_loss([[0], [1]], 5, 0.0, SIGMA, 0.1, tv=[3.0])
