import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhobust.bounds import attained_loss, betting_upper, moved_loss, shuffled, worst_case_loss


def test_the_concave_hull():
    spent, reached = [0.0, 1.0, 2.0, 4.0], [0.1, 0.2, 0.5, 0.45]
    # (1, 0.2) lies below the chord from (0, 0.1) to (2, 0.5), and (4, 0.45) below what 2 reaches.
    assert attained_loss(spent, reached, [0.0, 1.0, 2.0, 3.0, 9.0]) == pytest.approx([0.1, 0.3, 0.5, 0.5, 0.5])
    assert attained_loss([0.0, 0.0], [0.1, 0.3], 0.0) == pytest.approx(0.3)
    # A lower bound is rounded down.
    assert attained_loss([0.0], [0.3], 0.0) < 0.3


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 1)), min_size=1, max_size=6), st.floats(0, 4))
def test_never_above_a_concave_curve_through_larger_values(points, rho):
    # Whatever lies below the worst case, which is concave in the budget, gives a curve below it.
    p = [0.01, 0.2, 0.6]
    spent = np.array([0.0, *(x for x, _ in points)])
    truth = worst_case_loss(p, spent, 1.0)
    reached = truth * np.array([1.0, *(share for _, share in points)])
    assert attained_loss(spent, reached, rho) <= worst_case_loss(p, rho, 1.0) + 1e-10
    assert np.all(attained_loss(spent, reached, spent) >= reached - 2e-12)


def test_a_move_proves_what_two_bets_at_half_of_alpha_do():
    rng = np.random.default_rng(5)
    moved, losses = np.sort(rng.random(300)) * 4, np.sort(rng.random(300)) * 2
    spent, reached = moved_loss(moved, losses, 0.02, limit=5.0, bound=2.0)
    # Sorted by class, say: an order that the values decide is broken before the bets.
    assert spent == pytest.approx(5 * betting_upper(shuffled(moved / 5), 0.01), rel=1e-11)
    assert reached == pytest.approx(2 - 2 * betting_upper(shuffled(1 - losses / 2), 0.01), rel=1e-11)
    assert moved.mean() < spent < moved.mean() + 0.6
    assert losses.mean() - 0.3 < reached < losses.mean()


def test_refuses_without_the_clean_loss():
    with pytest.raises(ValueError, match="one of them 0"):
        attained_loss([0.1, 0.2], [0.3, 0.4], 1.0)
    with pytest.raises(ValueError, match="spent must be >= 0"):
        attained_loss([0.0, -0.2], [0.3, 0.4], 1.0)
