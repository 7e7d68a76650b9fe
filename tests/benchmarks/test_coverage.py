"""The coverage of every bound on a few simulated data sets; `python -m benchmarks coverage` takes thousands."""

import numpy as np
import pytest
from scipy import stats

from benchmarks.coverage import coverage_table, simulate
from benchmarks.known_worst_cases import cases, fails, simultaneous
from rhobust.bounds.majorant import count_bounds

CASES = cases()
QUICK = list({case.bound: case for case in CASES if case.setting.endswith("eps 0 sigma")}.values())
"""One case per bound without transport, whose bounds are one linear programme each."""


def check(case, sets):
    # False-alarm rate below 1e-6 for a bound that fails with probability alpha.
    found = simulate(case, sets, every=sets)
    assert found["violations"] <= found["count_bounds_failed"] <= sets
    assert found["violations"] <= stats.binom.isf(1e-6, sets, case.alpha)
    if found["median_slack"] is not None:
        assert -case.truth <= found["median_slack"] < 0.6


@pytest.mark.parametrize("case", QUICK, ids=lambda case: f"{case.bound}: {case.setting}")
def test_a_bound_fails_at_most_as_often_as_it_says(case):
    check(case, 40)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.bound}: {case.setting}")
def test_every_bound_fails_at_most_as_often_as_it_says(case):
    check(case, 400)


def test_three_settings_per_bound_and_a_line_for_each():
    names = [case.bound for case in CASES]
    assert {names.count(name) for name in names} == {3}
    found = [simulate(QUICK[-1], 2, every=2)]
    assert [line[:2] for line in coverage_table({"cases": found}).rows] == [[QUICK[-1].bound, QUICK[-1].setting]]


def test_a_failure_of_a_count_is_seen():
    rows = np.stack([np.zeros(101), np.repeat([0, 1, 2, 3, 4], [7, 25, 37, 25, 7])])
    assert fails(rows, 4, 0.05, np.array([0.5]), np.ones(1)).tolist() == [True, False]


def test_many_samples_have_the_bounds_of_each():
    counts = np.random.default_rng(0).binomial(6, 0.1, (3, 80))
    survival, once, mean = simultaneous(counts, 6, 0.1)
    for row, one in enumerate(counts):
        alone = count_bounds(one.astype(float), 6, 0.1)
        assert survival[row] == pytest.approx(alone.survival, abs=1e-15)
        assert (once[row], mean[row]) == pytest.approx((alone.once, alone.mean), abs=1e-12)
