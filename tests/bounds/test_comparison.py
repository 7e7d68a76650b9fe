"""The radii of Lecuyer et al. and of Li et al. against their formulas in many digits, and beside Cohen et al.'s."""

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhobust.bounds import certified_radius, lecuyer_radius, li_radius


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
        with pytest.raises(ValueError, match="p_lower must lie in"):
            radius(1.2, 1.0)
