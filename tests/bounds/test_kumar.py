import numpy as np
import pytest
from scipy import stats

from rhobust.bounds import clopper_pearson, kumar_loss, worst_case_loss


def wrong(number, n):
    return np.arange(n) < number


def test_by_hand():
    # Total variation of N(0, 1/4) and N(0.3, 1/4): 2 Phi(0.3) - 1 = 0.2358228.
    clean = clopper_pearson(30, 1000, 0.01, "upper")
    assert kumar_loss(wrong(30, 1000), 1, 0.09, 0.5, 0.01) == pytest.approx(clean + 0.23582284, abs=1e-8)
    assert kumar_loss(wrong(30, 1000), 1, 0.0, 0.5, 0.01) == pytest.approx(clean, abs=1e-11)
    assert kumar_loss(wrong(30, 1000), 1, 100.0, 0.5, 0.01) == 1.0


def test_what_a_shift_costs():
    # A mean error of 0.2681 becomes .3478, .4266, .6510, .9508 at eps .05, .1, .25, .5 and sigma 0.25.
    found = kumar_loss(wrong(10, 1000), 1, np.square([0.0, 0.05, 0.1, 0.25, 0.5]), 0.25, 0.01)
    assert 0.2681 + found[1:] - found[0] == pytest.approx([0.3478, 0.4266, 0.6510, 0.9508], abs=1e-4)


def test_more_draws_sharpen_the_clean_part_only():
    rng = np.random.default_rng(0)
    p = rng.beta(0.3, 3, 5000)
    one, many = (kumar_loss(rng.binomial(m, p), m, [0.0, 0.01], 0.25, 1e-3) for m in (1, 20))
    assert np.all(many < one)
    assert many[1] - many[0] == pytest.approx(one[1] - one[0], abs=1e-11)
    assert many[1] > worst_case_loss(p, 0.01, 0.25, cost="w1")


def test_covers():
    # 300 repetitions at alpha = 0.1 without a shift, where the bound is sharp; false-alarm rate below 1e-6.
    rng = np.random.default_rng(1)
    atoms = np.array([0.01, 0.2, 0.6])
    for draws in (1, 6):
        found = [kumar_loss(rng.binomial(draws, rng.choice(atoms, 150)), draws, 0.0, 0.5, 0.1) for _ in range(300)]
        assert np.count_nonzero(np.array(found) < atoms.mean()) <= stats.binom.isf(1e-6, 300, 0.1)


def test_a_file_sorted_by_class_does_not_mislead_the_bets():
    # Five hundred points that are always right stand before as many that never are.
    assert kumar_loss(np.repeat([0, 4], 500), 4, 0.0, 1.0, 1e-3) > 0.5
