"""Proportions and paired differences: values, and coverage of their intervals."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from rhobust.stats import mean, mean_difference, share, share_difference


@pytest.mark.parametrize(("k", "n"), [(0, 10), (3, 10), (10, 10), (870, 1000)])
def test_a_share_has_two_and_a_half_percent_on_either_side(k, n):
    found = share(k, n)
    interval = stats.binomtest(k, n).proportion_ci(0.95, method="exact")
    assert (found.low, found.value, found.high) == pytest.approx((interval.low, k / n, interval.high), abs=1e-9)
    assert found.as_row() == {"accuracy": k / n, "low": found.low, "high": found.high, "n": n}


@pytest.mark.parametrize(("k", "n"), [(1, 0), (0, 0), (-1, 5), (6, 5)])
def test_what_is_no_share_is_refused(k, n):
    with pytest.raises(ValueError, match=r"k must be in 0\.\.n with n >= 1"):
        share(k, n)


def split(n, ours_alone, theirs_alone, both=0):
    """Outcomes of two networks on n images, by how many only one of them has right, and both."""
    kinds = [(True, False)] * ours_alone + [(False, True)] * theirs_alone + [(True, True)] * both
    kinds += [(False, False)] * (n - len(kinds))
    return tuple(zip(*kinds, strict=True))


def test_a_difference_of_shares():
    found = share_difference(*split(100, 12, 4, both=50))
    assert (found.value, found.n) == (pytest.approx(0.08), 100)
    p, q = 13 / 102, 5 / 102
    half = 1.96 * math.sqrt((p + q - (p - q) ** 2) / 102)
    assert (found.low, found.high) == pytest.approx((p - q - half, p - q + half))
    turned = share_difference(*reversed(split(100, 12, 4, both=50)))
    assert (turned.value, turned.low, turned.high) == pytest.approx((-found.value, -found.high, -found.low))


def test_images_on_which_two_networks_agree_leave_room_for_others():
    found = share_difference(*split(20, 0, 0, both=15))
    assert found.value == 0.0
    assert -0.2 < found.low < -0.05
    assert 0.05 < found.high < 0.2


def test_the_ends_of_an_interval_are_differences_of_shares():
    assert share_difference(*split(2, 2, 0)).high <= 1.0
    assert share_difference(*split(2, 0, 2)).low >= -1.0


@pytest.mark.parametrize(("p", "q"), [(0.05, 0.05), (0.2, 0.1), (0.3, 0.02), (0.02, 0.02)])
def test_the_interval_holds_the_truth_nineteen_times_in_twenty(p, q):
    """Its coverage, summed exactly over every sample of 40 images."""
    n, held = 40, 0.0
    for b, c in itertools.product(range(n + 1), repeat=2):
        if b + c <= n:
            rest = n - b - c
            ways = math.factorial(n) // (math.factorial(b) * math.factorial(c) * math.factorial(rest))
            found = share_difference(*split(n, b, c))
            held += ways * p**b * q**c * (1 - p - q) ** rest * (found.low <= p - q <= found.high)
    assert held > 0.94


def test_a_difference_of_means():
    ours, theirs = [0.5, 0.75, 0.0, 0.25], [0.25, 0.75, 0.25, 0.0]
    found = mean_difference(ours, theirs)
    apart = np.subtract(ours, theirs)
    half = 3.182446 * apart.std(ddof=1) / 2  # Student's with 3 degrees of freedom
    assert (found.value, found.low, found.high) == pytest.approx(
        (apart.mean(), *(apart.mean() + half * np.array([-1, 1])))
    )


def test_what_has_no_difference():
    for compare in (share_difference, mean_difference):
        with pytest.raises(ValueError, match="must have the same images, one at least, got 2 and 1"):
            compare([1, 0], [1])
        with pytest.raises(ValueError, match="one at least, got 0 and 0"):
            compare([], [])
    with pytest.raises(ValueError, match="two images at least for an interval, got 1"):
        mean_difference([0.5], [0.25])


def test_a_mean_has_its_standard_error():
    values = [0.5, 0.75, 0.0, 0.25]
    found = mean(values)
    half = 1.96 * np.std(values, ddof=1) / 2
    assert (found.value, found.low, found.high) == pytest.approx((0.375, 0.375 - half, 0.375 + half))
    assert mean([0.3]).low == mean([0.3]).high == 0.3
    with pytest.raises(ValueError, match="one number at least, got none"):
        mean([])
