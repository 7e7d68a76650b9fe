"""The worst loss near one point for few votes, against the exact error of such a vote."""

import numpy as np
import pytest
from scipy import special, stats

from rhobust.bounds.surrogate import Surrogate


def lost(votes, u):
    """The error of so many votes where one errs with probability Phi(u): a tie is an error."""
    return stats.binom.sf((votes + 1) // 2 - 1, votes, special.ndtr(u))


@pytest.mark.parametrize("votes", [1, 2, 3, 5, 11, 101])
def test_no_loss_bends_down_more_than_its_bend(votes):
    u, width = np.linspace(-5, 5, 10_001, retstep=True)
    second = np.diff(lost(votes, u), 2) / width**2
    assert -Surrogate("w2", votes).bend <= second.min() + 1e-6
    assert second.min() < -0.2


@pytest.mark.parametrize("votes", [2, 3, 11])
@pytest.mark.parametrize(("cost", "price"), [("w2", 0.05), ("w2", 1.0), ("w2", 1e3), ("w1", 0.1), ("w1", 0.5)])
def test_few_votes_lose_no_more_than_the_priced_value(votes, cost, price):
    surrogate = Surrogate(cost, votes)
    u = np.concatenate([np.random.default_rng(0).uniform(-4, 3, 60), [-12.0, 9.0]])
    value, _ = surrogate.priced(u, np.float64(price))
    # A fine grid of distances, up to where the price exceeds every gain, reaches almost the supremum.
    far = (surrogate.power / price) ** (1 / surrogate.power)
    t = np.concatenate([np.linspace(0, min(far, 12.0), 20_001), np.linspace(0, min(far, 12.0) / 100, 2001)])
    reached = np.max(lost(votes, u[:, None] + t) - price * t**surrogate.power / surrogate.power, axis=1)
    assert np.all(value >= reached)
    # Far below the grid a point counts as if it stood at its end.
    assert np.all(value[u > -8] <= reached[u > -8] + 3e-4)


@pytest.mark.parametrize("votes", [1, 2, 3, 11])
def test_a_move_without_a_price_is_exact(votes):
    u = np.linspace(-6, 6, 101)
    moved = Surrogate("winf", votes).moved(u, 0.7)
    assert np.all(moved >= lost(votes, u + 0.7))
    assert moved == pytest.approx(lost(votes, u + 0.7), abs=2e-12)


def test_a_majority_that_is_just_reached_is_turned():
    # At distance |u| the vote is a tie, which counts as an error; rounding must not make it a right answer.
    u = np.array([-3.0, -0.7, -0.1, -1e-3])
    for cost in ("w1", "w2", "winf"):
        surrogate = Surrogate(cost, None)
        assert all(surrogate.moved(u[i : i + 1], -u[i])[0] == 1.0 for i in range(len(u)))
        exact = surrogate.power / np.abs(u) ** surrogate.power  # the price at which a turned vote gains nothing
        value, _ = surrogate.priced(u, exact / 2)
        assert np.all(value >= 0.5)
        assert value == pytest.approx(np.full(4, 0.5), abs=1e-8)
