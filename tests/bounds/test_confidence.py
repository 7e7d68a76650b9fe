"""Confidence bounds: oracles, coverage, and the contradiction test."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from scipy import special, stats

from rhobust.bounds import (
    betting_upper,
    clopper_pearson,
    contradictions_by_chance,
    dkw_margin,
    failure_quantile,
    missed_by_sample,
    rejects_label,
    smallest_found,
    survival_upper,
)


def most_misses(repetitions, alpha):
    """Misses that a bound of level alpha exceeds with probability below 1e-6: the false-alarm rate."""
    return stats.binom.isf(1e-6, repetitions, alpha)


@pytest.mark.parametrize(
    ("k", "n", "side", "value"),
    [
        (0, 1000, "upper", 0.006883951579),
        (5, 100, "upper", 0.155367305810),
        (50, 1000, "upper", 0.074953219939),
        (99990, 100000, "lower", 0.999758677344),
    ],
)
def test_clopper_pearson_values(k, n, side, value):
    assert clopper_pearson(k, n, 0.001, side) == pytest.approx(value, rel=0, abs=2e-12)


def test_clopper_pearson_at_the_ends():
    assert clopper_pearson(10, 10, 0.1, "upper") == 1.0
    assert clopper_pearson(0, 10, 0.1, "lower") == 0.0
    # P(Bin(10, u) = 0) = (1 - u)^10 = 0.1
    assert clopper_pearson(0, 10, 0.1, "upper") == pytest.approx(1 - 0.1**0.1, abs=2e-12)
    assert clopper_pearson(10, 10, 0.1, "lower") == pytest.approx(0.1**0.1, abs=2e-12)


def test_clopper_pearson_knows_nothing_where_its_inverse_fails():
    k, n, alpha = np.array([1, 5, 2, 12]), np.array([5, 8, 5, 100]), np.array([1e-155, 1e-195, 4e-108, 1e-200])
    upper, lower = (clopper_pearson(k, n, alpha, side) for side in ("upper", "lower"))
    assert ((upper >= k / n) & (upper <= 1)).all()
    assert ((lower >= 0) & (lower <= k / n)).all()


@settings(deadline=None)
@given(st.integers(1, 2000), st.data(), st.floats(1e-9, 0.5))
def test_clopper_pearson_solves_its_equation_from_outside(n, data, alpha):
    k = data.draw(st.integers(0, n - 1))
    upper = clopper_pearson(k, n, alpha, "upper")
    lower = clopper_pearson(k + 1, n, alpha, "lower")
    assert lower <= (k + 1) / n
    assert upper >= k / n
    assert stats.binom.cdf(k, n, upper) <= alpha
    assert stats.binom.sf(k, n, lower) <= alpha
    assert stats.binom.cdf(k, n, upper - 3e-12) >= alpha
    assert stats.binom.sf(k, n, min(lower + 3e-12, 1)) >= alpha


@pytest.mark.parametrize(("k", "n"), [(0, 5), (5, 5), (3, 40), (977, 1000), (99_990, 100_000)])
def test_clopper_pearson_is_scipys_exact_interval(k, n):
    for side, alternative in (("lower", "greater"), ("upper", "less")):
        interval = stats.binomtest(k, n, alternative=alternative).proportion_ci(0.999, method="exact")
        assert clopper_pearson(k, n, 0.001, side) == pytest.approx(
            getattr(interval, {"lower": "low", "upper": "high"}[side]), abs=1e-9
        )


@settings(deadline=None)
@given(st.integers(2, 500), st.data(), st.floats(1e-6, 0.4))
def test_clopper_pearson_is_monotone(n, data, alpha):
    k = data.draw(st.integers(0, n - 1))
    for side in ("lower", "upper"):
        here = clopper_pearson(k, n, alpha, side)
        assert clopper_pearson(k + 1, n, alpha, side) > here
        assert clopper_pearson(k, n + 1, alpha, side) <= here
    assert clopper_pearson(k, n, alpha, "upper") > clopper_pearson(k, n, alpha * 1.5, "upper")
    assert clopper_pearson(k + 1, n, alpha, "lower") < clopper_pearson(k + 1, n, alpha * 1.5, "lower")


@pytest.mark.parametrize("n", [7, 60])
def test_clopper_pearson_covers_exactly(n):
    # The miss probability is a finite sum, so nothing is simulated.
    k = np.arange(n + 1)
    upper = clopper_pearson(k, n, 0.05, "upper")
    lower = clopper_pearson(k, n, 0.05, "lower")
    missed = 0.0
    for p in np.linspace(0.001, 0.999, 301):
        law = stats.binom.pmf(k, n, p)
        assert law[upper < p].sum() <= 0.05
        assert law[lower > p].sum() <= 0.05
        missed = max(missed, law[upper < p].sum())
    assert missed > 0.045


def test_betting_value():
    x = ((7 * np.arange(1, 1001)) % 10) / 20
    assert betting_upper(x, 0.001) == pytest.approx(0.2417472285, rel=0, abs=1e-10)


def test_betting_reads_in_sampling_order_and_by_rows():
    x = ((7 * np.arange(1, 1001)) % 10) / 20
    assert betting_upper(np.sort(x), 0.001) != pytest.approx(betting_upper(x, 0.001), abs=1e-4)
    rows = np.stack([x, x[::-1]])
    assert betting_upper(rows, 0.001) == pytest.approx([betting_upper(x, 0.001), betting_upper(x[::-1], 0.001)])


def test_betting_beats_hoeffding_where_the_variance_is_small():
    x = np.random.default_rng(0).beta(1, 19, 1000)
    upper = betting_upper(x, 0.001)
    assert x.mean() < upper < x.mean() + 0.3 * math.sqrt(math.log(1000) / 2000)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=60), st.floats(1e-6, 0.3))
def test_betting_is_monotone_in_alpha_and_lies_above_the_mean_of_constants(x, alpha):
    upper = betting_upper(x, alpha)
    assert upper <= betting_upper(x, alpha / 2) <= 1.0
    assert betting_upper([x[0]] * 40, alpha) >= x[0]


@pytest.mark.parametrize(("a", "b"), [(0.05, 0.95), (1.0, 19.0), (0.5, 0.5)])
def test_betting_covers(a, b):
    # False-alarm rate of this test: 1e-6 for each law.
    x = np.random.default_rng(1).beta(a, b, (2000, 100))
    misses = np.count_nonzero(betting_upper(x, 0.05) < a / (a + b))
    assert misses <= most_misses(2000, 0.05)


def test_dkw_value_and_coverage():
    assert dkw_margin(10_000, 0.001) == pytest.approx(0.0185846109, abs=1e-10)
    assert dkw_margin(10_000, 0.001) > math.sqrt(math.log(1000) / 20_000)
    # False-alarm rate 1e-6. Massart's constant is sharp, so the miss rate must also be near alpha.
    n, alpha = 400, 0.1
    x = np.sort(np.random.default_rng(2).random((4000, n)), axis=1)
    # sup_t P(X >= t) - fraction(X >= t) is reached just above an order statistic.
    excess = (np.arange(1, n + 1) / n - x).max(axis=1)
    misses = np.count_nonzero(excess > dkw_margin(n, alpha))
    assert 0.06 * 4000 < misses <= most_misses(4000, alpha)


def test_survival_upper_is_the_better_of_two_bounds():
    values = np.repeat([0, 1, 5, 20], [5000, 4900, 90, 10])
    bound = survival_upper(values, np.arange(1, 21), 0.001)
    assert np.all(np.diff(bound) <= 0)
    assert bound[0] == pytest.approx(0.5 + dkw_margin(10_000, 0.0005), abs=1e-11)
    assert bound[1] == pytest.approx(clopper_pearson(100, 10_000, 0.001 / 40, "upper"), abs=1e-11)
    assert bound[19] == pytest.approx(clopper_pearson(10, 10_000, 0.001 / 40, "upper"), abs=1e-11)
    assert bound[19] < 0.2 * dkw_margin(10_000, 0.001)


def test_survival_upper_covers():
    # False-alarm rate 1e-6.
    rng = np.random.default_rng(3)
    m, n, alpha = 8, 150, 0.2
    truth = stats.binom.sf(np.arange(m), m, 0.15)
    misses = 0
    for _ in range(2000):
        bound = survival_upper(rng.binomial(m, 0.15, n), np.arange(1, m + 1), alpha)
        misses += bool(np.any(bound < truth))
    assert 0 < misses <= most_misses(2000, alpha)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5000), st.floats(1e-5, 0.9), st.floats(1e-9, 0.9))
def test_failure_quantile_is_the_smallest_that_suffices(n, alpha, delta):
    k = failure_quantile(n, alpha, delta)
    assert stats.binom.sf(k, n, alpha) <= delta
    assert k == 0 or stats.binom.sf(k - 1, n, alpha) > delta


def test_failure_quantile_a_hair_below_a_tail():
    # scipy's quantile forgives a last digit: P(Bin(4, alpha) > 0) exceeds this delta.
    alpha = 0.03727067720858566
    assert failure_quantile(4, alpha, np.nextafter(stats.binom.sf(0, 4, alpha), 0)) == 1


def test_failure_quantile_value():
    # P(Bin(10000, 0.001) > 20) = 0.00158 and P(... > 21) = 0.00069.
    assert failure_quantile(10_000, 0.001, 0.001) == 21


@pytest.mark.parametrize(
    ("k", "n", "alpha", "side", "right"),
    [
        (143682, 144681, 1e-3, "lower", 0.992396),
        (999, 9056, 2.5e-4, "upper", 0.122191),
    ],
)
def test_a_wrong_inverse_of_the_library_is_not_believed(k, n, alpha, side, right):
    """For these counts scipy's inverse lies on the wrong side of k / n."""
    bound = clopper_pearson(k, n, alpha, side)
    assert bound == pytest.approx(right, abs=1e-6)
    others = [clopper_pearson(k + step, n, alpha, side) for step in (-1, 1)]
    assert others[0] < bound < others[1]


def test_the_tail_behind_every_bound_is_at_most_alpha():
    rng = np.random.default_rng(0)
    n = rng.integers(1000, 300_000, 40_000)
    # A parameter of 1000 is where the library's inverse fails.
    k = np.where(rng.random(40_000) < 0.5, 999, n - 999)
    k = np.where(rng.random(40_000) < 0.2, rng.integers(0, n + 1), k)
    alpha = 10 ** rng.uniform(-6, -1, 40_000)
    upper, lower = clopper_pearson(k, n, alpha, "upper"), clopper_pearson(k, n, alpha, "lower")
    below, above = (
        special.betaincc(k + 1, np.maximum(n - k, 0.5), upper),
        special.betainc(np.maximum(k, 0.5), n - k + 1, lower),
    )
    assert np.all((below <= alpha) | (upper == 1))
    assert np.all((above <= alpha) | (lower == 0))
    assert np.all(lower <= k / n)
    assert np.all(k / n <= upper)


def test_nothing_is_known_at_a_tiny_alpha():
    assert clopper_pearson(5, 10, 1e-250, "upper") == 1.0
    assert clopper_pearson(5, 10, 1e-250, "lower") == 0.0


@pytest.mark.parametrize("votes", [1, 19, 20, 100, 1000])
def test_votes_are_beyond_doubt_where_the_exact_tail_lies_below_one_in_a_million(votes):
    with mp.workdps(40):
        tail, exact = mpf(0), []
        for count in range(votes + 1):
            tail += mp.binomial(votes, count) / mpf(2) ** votes
            exact.append(tail < mpf(10) ** -6)
    assert [rejects_label(count, votes - count, 2) for count in range(votes + 1)] == exact
    assert exact[0] is (votes >= 20)
    # Of eleven classes ten may have been the other one.
    assert rejects_label(0, votes, 11) is (votes >= 24)


def test_no_more_examples_than_chance_explains():
    for n, alpha, tests in ((1, 0.001, 5), (200, 0.001, 5), (10_000, 0.0, 50)):
        allowed, each = contradictions_by_chance(n, alpha, tests), alpha + 1e-6 * tests
        assert stats.binom.sf(allowed, n, each) <= 1e-3 < stats.binom.sf(allowed - 1, n, each)
    assert contradictions_by_chance(1000, 0.001, 10_000) > contradictions_by_chance(1000, 0.001, 5)
    # Nineteen of twenty are too few for certificates of which each fails nine times in ten.
    assert contradictions_by_chance(20, 0.9, 5) == contradictions_by_chance(20, 0.001, 1_000_000) == 20


def test_of_none_none_are_refuted():
    assert contradictions_by_chance(0, 0.001, 5) == 0


@pytest.mark.parametrize("n", range(1, 9))
def test_what_a_sample_misses_by_listing_all_samples(n):
    for forged, drawn in itertools.product(range(n + 1), repeat=2):
        samples = list(itertools.combinations(range(n), drawn))
        missed = sum(all(row >= forged for row in sample) for sample in samples)
        assert missed_by_sample(n, forged, drawn) == pytest.approx(missed / len(samples), abs=1e-15)
    for drawn, delta in itertools.product(range(n + 1), (0.01, 0.1, 0.5)):
        found = [forged for forged in range(n + 1) if missed_by_sample(n, forged, drawn) <= delta]
        assert smallest_found(n, drawn, delta) == (found[0] if drawn else None)


def test_the_audit_of_ten_thousand_rows():
    forged = smallest_found(10_000, 500, 0.01)
    assert missed_by_sample(10_000, forged, 500) <= 0.01 < missed_by_sample(10_000, forged - 1, 500)
    assert missed_by_sample(10_000, forged, 500) == pytest.approx(stats.hypergeom.pmf(0, 10_000, forged, 500))
    assert forged == 90


@pytest.mark.parametrize(("forged", "drawn"), [(11, 1), (1, 11)])
def test_no_more_rows_than_there_are(forged, drawn):
    with pytest.raises(ValueError, match="forged and drawn must be <= n"):
        missed_by_sample(10, forged, drawn)
