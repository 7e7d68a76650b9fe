"""How a budget is spent over points: a linear programme, solved by sorting."""

import numpy as np
import pytest
from scipy import optimize, special

from rhobust.bounds import spend_budget, worst_case_loss


def by_linear_programme(costs, losses, rho):
    """The best mean loss, by a solver."""
    points, places = costs.shape
    whole = np.kron(np.eye(points), np.ones(places))
    found = optimize.linprog(
        -losses.ravel() / points,
        A_ub=costs.ravel()[None] / points,
        b_ub=[rho],
        A_eq=whole,
        b_eq=np.ones(points),
        bounds=(0, 1),
        method="highs",
    )
    return -found.fun


@pytest.mark.parametrize("seed", range(8))
def test_no_solver_spends_it_better(seed):
    rng = np.random.default_rng(seed)
    costs = np.concatenate([np.zeros((12, 1)), rng.exponential(1, (12, 5)) * (rng.random((12, 5)) > 0.1)], axis=1)
    losses = rng.random((12, 6)).round(seed % 3 + 1)  # ties
    for rho, shares in zip([0.0, 0.1, 0.4, 3.0], spend_budget(costs, losses, [0.0, 0.1, 0.4, 3.0]), strict=True):
        assert shares.min() >= 0
        assert shares.sum(axis=1) == pytest.approx(np.ones(12))
        assert (shares * costs).sum() / 12 <= rho + 1e-12
        assert (shares * losses).sum() / 12 == pytest.approx(by_linear_programme(costs, losses, rho), abs=1e-9)
        assert np.sum((shares > 0).sum(axis=1) > 1) <= 1  # one point at most splits its mass


def test_of_half_spaces_it_reaches_the_worst_case():
    # A half-space errs with probability Phi(u + t / sigma) at distance t: on a fine grid the dual bound is attained.
    u, moves = np.array([-3.0, -2.0, -1.0, -0.2, 0.5]), np.linspace(0, 5, 2001)
    costs, losses = np.tile(moves**2, (5, 1)), special.ndtr(u[:, None] + moves)
    for rho in (0.01, 0.25, 1.0, 4.0):
        reached = (spend_budget(costs, losses, rho)[0] * losses).sum() / 5
        bound = worst_case_loss(special.ndtr(u), rho, 1.0)
        assert bound - 1e-5 <= reached <= bound + 1e-9


@pytest.mark.parametrize(
    ("costs", "losses", "message"),
    [
        ([[1.0, 2.0]], [[0.0, 1.0]], "costs must be one row per point with 0 first"),
        ([[0.0, 2.0]], [[0.0]], "of the shape of losses"),
        ([[0.0, 2.0]], [[0.0, np.nan]], "losses must be numbers"),
        ([[0.0, -1.0]], [[0.0, 1.0]], "costs must be"),
    ],
)
def test_what_is_no_budget_is_refused(costs, losses, message):
    with pytest.raises(ValueError, match=message):
        spend_budget(costs, losses, 1.0)
