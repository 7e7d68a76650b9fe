"""Baseline bounds against their formulas in many digits, and against ours."""

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rhobust.bounds import certified_radius, clopper_pearson, kumar_loss, lecuyer_radius, li_radius, worst_case_loss


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


def lecuyer(p):
    """The supremum over epsilon, by a fine search."""
    p = mp.mpf(p)
    largest = min(mp.mpf(1), mp.log(p / (1 - p)) / 2)

    def radius(epsilon):
        lead = p - mp.exp(2 * epsilon) * (1 - p)
        return epsilon / mp.sqrt(2 * mp.log(mp.mpf("1.25") * (1 + mp.exp(epsilon)) / lead)) if lead > 0 else mp.mpf(0)

    return max(radius(largest * step / 4000) for step in range(1, 4001))


def li(p):
    """The supremum over the order, by a fine search."""
    p = mp.mpf(p)

    def radius(order):
        mean = ((p ** (1 - order) + (1 - p) ** (1 - order)) / 2) ** (1 / (1 - order))
        return mp.sqrt(-2 / order * mp.log(2 * mean))

    return max(radius(1 + mp.mpf(10) ** (mp.mpf(step) / 200)) for step in range(-400, 600))


@pytest.mark.parametrize("p", [0.55, 0.7, 0.9, 0.99, 0.9999])
@pytest.mark.parametrize(("ours", "theirs"), [(lecuyer_radius, lecuyer), (li_radius, li)])
def test_radii_are_those_of_the_formulas_and_rounded_down(ours, theirs, p):
    with mp.workdps(30):
        truth = float(theirs(p))
    assert ours(p, 0.5) == pytest.approx(0.5 * truth, rel=2e-3)
    assert ours(p, 0.5) <= 0.5 * truth * (1 + 1e-6)


@settings(deadline=None)
@given(st.floats(0.0, 1 - 1e-12), st.floats(0.01, 10))
def test_cohens_radius_is_the_largest(p, sigma):
    cohen, second, third = (float(radius(p, sigma)) for radius in (certified_radius, li_radius, lecuyer_radius))
    assert 0 <= third <= cohen
    assert 0 <= second <= cohen
    if p <= 0.5:
        assert second == third == 0.0
    elif p > 0.51:
        assert third < second


def test_radii_grow_with_the_probability_and_scale_with_the_noise():
    p = np.linspace(0.4, 0.9999, 200)
    for radius in (lecuyer_radius, li_radius):
        assert (np.diff(radius(p, 1.0)) >= 0).all()
        assert radius(p, 2.0) == pytest.approx(2 * radius(p, 1.0), abs=1e-9)
        assert isinstance(radius(0.9, 1.0), float)
    assert li_radius(1.0, 1.0) == math.inf
    assert lecuyer_radius(1.0, 1.0) < 1
    for radius in (lecuyer_radius, li_radius):
        with pytest.raises(ValueError, match="p_lower must be in"):
            radius(1.2, 1.0)
