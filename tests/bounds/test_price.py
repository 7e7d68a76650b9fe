import numpy as np
import pytest

from rhobust.bounds.transport import lowest_total

START = np.geomspace(0.01, 100, 9)


def reciprocal(prices):
    return 1 / prices, -1 / prices**2


def kinked(prices):
    left = prices < 0.123456789
    return np.where(left, 2 - 12 * prices, 2 - 12 * 0.123456789), np.where(left, -12.0, 0.0)


def test_finds_a_smooth_minimum_and_a_kink():
    budgets = np.array([0.04, 1.0, 9.0])
    found = lowest_total(reciprocal, budgets, START, ceiling=np.inf, tolerance=1e-12)
    assert found == pytest.approx(2 * np.sqrt(budgets), abs=1e-11)
    corner = 2 - 12 * 0.123456789
    found = lowest_total(kinked, np.array([1.0, 3.0]), START, ceiling=np.inf, tolerance=1e-10)
    assert found == pytest.approx([corner + 0.123456789, corner + 3 * 0.123456789], abs=1e-8)


def test_looks_below_the_first_price_and_at_price_zero():
    found = lowest_total(reciprocal, np.array([1e6]), START, ceiling=np.inf, tolerance=1e-6)
    assert found == pytest.approx([2000.0], rel=1e-9)
    assert lowest_total(reciprocal, np.array([1.0]), START, ceiling=0.5, tolerance=1e-6).tolist() == [0.5]


def test_misleading_slopes_cost_tightness_not_validity():
    rng = np.random.default_rng(0)

    def misled(prices):
        return 1 / prices, -rng.random(prices.size)

    found = lowest_total(misled, np.array([0.1, 0.5]), START, ceiling=np.inf, tolerance=1e-9)
    assert np.all(found >= 2 * np.sqrt([0.1, 0.5]))
