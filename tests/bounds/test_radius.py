import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rhobust.bounds import certified_radius, log_e_value, routed_radius


def test_radius_values():
    assert certified_radius(0.99, 0.25) == pytest.approx(0.581586968510, abs=1e-11)
    assert certified_radius([0.0, 0.3, 0.5], 0.25).tolist() == [0.0, 0.0, 0.0]
    assert certified_radius(1.0, 0.25) == math.inf


@settings(deadline=None)
@given(st.floats(0.5, 1 - 1e-12), st.floats(1e-3, 10))
def test_radius_is_rounded_down_and_monotone(p, sigma):
    with mp.workdps(40):
        truth = mp.mpf(sigma) * mp.sqrt(2) * mp.erfinv(2 * mp.mpf(p) - 1)
        radius = certified_radius(p, sigma)
        assert radius <= truth
        assert radius >= truth - 2e-12 * sigma
    assert certified_radius(min(p + 1e-6, 1.0), sigma) >= radius


@pytest.mark.parametrize(
    ("successes", "failures", "p0", "value"),
    [
        (20, 0, 0.5, 12.5724254832),
        (95, 5, 0.8413447460685429, 4.5708841908),
        (990, 10, 0.97724986805182079, 3.2656845870),
        (6000, 0, 0.99865010196837, 6.9380641476),
    ],
)
def test_e_values(successes, failures, p0, value):
    assert log_e_value(successes, failures, p0) == pytest.approx(value, rel=0, abs=1e-10)


def mixture(successes, failures, p0):
    """The e-value by its integral, in 30 digits."""
    with mp.workdps(30):
        p0 = mp.mpf(p0)

        def integrand(q):
            return (q / p0) ** successes * ((1 - q) / (1 - p0)) ** failures / mp.sqrt(1 - q)

        middle = max(p0, mp.mpf(successes) / max(successes + failures, 1))
        points = [p0, (p0 + middle) / 2, middle, (1 + middle) / 2, 1] if p0 < middle < 1 else [p0, (1 + p0) / 2, 1]
        return mp.log(mp.quad(integrand, points) / (2 * mp.sqrt(1 - p0)))


@pytest.mark.parametrize("p0", [0.05, 0.5, 0.9, 0.99])
@pytest.mark.parametrize(("successes", "failures"), [(0, 0), (0, 7), (9, 0), (30, 2), (3, 40)])
def test_e_value_is_the_mixture_and_is_rounded_down(successes, failures, p0):
    truth = mixture(successes, failures, p0)
    found = log_e_value(successes, failures, p0)
    assert found <= truth
    assert found == pytest.approx(float(truth), abs=1e-9)


@pytest.mark.parametrize(
    ("successes", "failures", "p0"),
    [
        (99_870, 130, 0.99865),
        (50_000, 50_000, 0.9),
        (10, 100_000, 0.5),
        (9_990_000, 12_000, 0.9986),
        (0, 1_000_000, 0.5),
        (300_000, 0, 0.9999),
    ],
)
def test_e_value_is_stable_for_large_counts(successes, failures, p0):
    with mp.workdps(60):
        b = mp.mpf(failures) + 0.5
        series = mp.hyp2f1(successes + failures + 1.5, 1, b + 1, 1 - mp.mpf(p0))
        truth = mp.log(mp.mpf(p0) / (2 * b)) + mp.log(series)
    found = log_e_value(successes, failures, p0)
    assert found <= truth
    assert found == pytest.approx(float(truth), rel=1e-11, abs=1e-10)


@settings(deadline=None)
@given(st.integers(0, 3000), st.integers(0, 3000), st.floats(0.01, 0.999))
def test_e_value_is_a_martingale_at_the_boundary_and_falls_below_it(successes, failures, p0):
    here = log_e_value(successes, failures, p0)
    won = math.exp(log_e_value(successes + 1, failures, p0) - here)
    lost = math.exp(log_e_value(successes, failures + 1, p0) - here)
    assert p0 * won + (1 - p0) * lost == pytest.approx(1, abs=1e-8)
    # A smaller p puts more weight on the loss, which must not pay.
    assert lost <= 1 + 1e-8 <= won + 2e-8


@settings(deadline=None)
@given(st.integers(0, 500), st.integers(0, 500), st.floats(0.01, 0.98))
def test_e_value_is_monotone(successes, failures, p0):
    here = log_e_value(successes, failures, p0)
    assert log_e_value(successes + 1, failures, p0) >= here - 1e-9
    assert log_e_value(successes, failures + 1, p0) <= here + 1e-9


@pytest.mark.parametrize("p0", [0.5, 0.9])
def test_stopping_at_will_rarely_rejects_a_true_hypothesis(p0):
    # 2000 streams of 2000 trials with p = p0, looked at after every tenth trial. Ville bounds the
    # rejection rate by 0.05; the threshold is exceeded with probability below 1e-6.
    rng = np.random.default_rng(5)
    wins = np.cumsum(rng.random((2000, 2000)) < p0, axis=1)[:, 9::10]
    trials = np.arange(10, 2001, 10)
    allowed = stats.binom.isf(1e-6, 2000, 0.05)
    rejected = np.count_nonzero((log_e_value(wins, trials - wins, p0) >= math.log(20)).any(axis=1))
    assert 5 < rejected <= allowed


def predicted(point, planes, router):
    """The class that a routed classifier of lines cut by thresholds gives at a point."""
    number = int(point > router)
    return int(point > planes[number])


@settings(deadline=None)
@given(
    st.floats(-3, 3),
    st.tuples(st.floats(-3, 3), st.floats(-3, 3)),
    st.floats(-3, 3),
    st.floats(0, 1),
)
def test_within_its_radius_a_routed_classifier_of_lines_is_constant(point, planes, router, part):
    # A line cut at a threshold, smoothed by any noise, is itself: the distance to the cut is the exact radius.
    answers = [(int(point > plane), abs(point - plane)) for plane in planes]
    prediction, radius = routed_radius((int(point > router), abs(point - router)), answers)
    assert prediction is not None
    for other in (point - part * radius * (1 - 1e-9), point + part * radius * (1 - 1e-9)):
        assert predicted(other, planes, router) == prediction


def test_a_routed_radius_is_the_larger_of_two_reasons():
    near, far = (7, 0.5), (7, 2.0)
    assert routed_radius((1, 1.0), [near, far]) == (7, 1.0)  # the router is sure
    assert routed_radius((0, 1.0), [near, far]) == (7, 0.5)
    assert routed_radius((None, 0.0), [near, far]) == (7, 0.5)  # it is not, but all agree
    assert routed_radius((1, 0.25), [near, far]) == (7, 0.5)  # it is, and all agree further out
    assert routed_radius((1, 1.0), [(3, 0.5), far]) == (7, 1.0)  # another answers otherwise, out of reach
    assert routed_radius((1, 0.0), [(3, 0.5), far]) == (7, 0.0)


@pytest.mark.parametrize(
    ("route", "answers"),
    [
        ((None, 0.0), [(7, 1.0), (3, 1.0)]),  # nobody knows who answers, and they differ
        ((None, 0.0), [(7, 1.0), None]),  # ... or one was not asked
        ((None, 0.0), [(None, 0.0), (None, 0.0)]),
        ((1, 1.0), [(7, 1.0), (None, 0.0)]),  # the one that answers abstains
        ((1, 1.0), [(7, 1.0), None]),
    ],
)
def test_nothing_is_certified_where_neither_reason_holds(route, answers):
    assert routed_radius(route, answers) == (None, 0.0)


def test_with_three_classifiers_all_must_agree():
    assert routed_radius((None, 0.0), [(7, 1.0), (7, 2.0), (3, 9.0)]) == (None, 0.0)
    assert routed_radius((None, 0.0), [(7, 1.0), (7, 2.0), (7, 9.0)]) == (7, 1.0)


@pytest.mark.parametrize(
    ("route", "answers", "message"),
    [
        ((2, 1.0), [(7, 1.0), (7, 1.0)], "route must name one of 2 answers, 0 to 1, got 2"),
        ((-1, 1.0), [(7, 1.0), (7, 1.0)], "route must name one of 2 answers, 0 to 1, got -1"),
        ((0, -1.0), [(7, 1.0)], "the radius of a claim must be >= 0, got -1.0"),
        ((0, 1.0), [(7, math.nan)], "the radius of a claim must be >= 0, got nan"),
    ],
)
def test_claims_that_cannot_be_are_refused(route, answers, message):
    with pytest.raises(ValueError, match=message):
        routed_radius(route, answers)
