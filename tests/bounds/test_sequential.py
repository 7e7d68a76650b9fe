"""Tests that stop early: what they claim, when they give up, and how often they are wrong at the boundary."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rhobust.bounds import (
    RadiusTest,
    certified_radius,
    chance_left,
    clopper_pearson,
    draws_for_tolerance,
    log_e_value,
    looks,
)

RADII = (0.0, 0.25, 0.5, 0.75)


def most_misses(repetitions, alpha):
    """False claims that a test of level alpha exceeds with probability below 1e-6: the false-alarm rate over seeds."""
    return stats.binom.isf(1e-6, repetitions, alpha)


@given(st.integers(1, 10**6), st.integers(1, 1000))
def test_looks_are_multiples_that_grow_slowly_and_end_at_n(n, step):
    found = looks(n, step)
    assert found[-1] == n
    assert (np.diff(found) > 0).all()
    assert (found[:-1] % step == 0).all()
    if len(found) > 2:
        assert (np.diff(found[:-1]) <= np.maximum(0.05 * found[:-2] + step, step)).all()


def test_thresholds_are_those_of_the_radii_and_rounded_up():
    test = RadiusTest(RADII, 0.25, 0.001, 1000)
    exact = stats.norm.cdf(np.array(RADII) / 0.25)
    assert (test.thresholds > exact).all()
    assert test.thresholds == pytest.approx(exact, abs=2e-12)
    # Beyond six deviations too: a threshold that is too small is a radius too large.
    far = np.array([1.5, 1.6, 1.75])
    assert (RadiusTest(tuple(far), 0.25, 0.001, 1000).thresholds > stats.norm.cdf(far / 0.25)).all()
    assert RadiusTest((50.0,), 0.25, 0.001, 1000).thresholds[0] < 1


@pytest.mark.parametrize("radius", [0.0, 0.2, 0.5])
def test_the_allowed_failures_are_the_most_that_can_still_be_claimed(radius):
    test = RadiusTest((radius,), 0.25, 0.01, 400)
    (allowed,) = test.allowed
    for failures in range(0, 300):
        reached, _ = test.decide(np.array([400 - failures]), np.array([400]), np.array([0]))
        assert (reached[0] == 1) == (failures <= allowed)


def test_a_radius_out_of_reach_is_given_up_at_once():
    # With 1000 draws no radius beyond sigma Phi^{-1}((0.8 alpha)^(1/1000)) can be claimed.
    test = RadiusTest((0.0, 1.0), 0.25, 0.001, 1000)
    assert test.allowed[1] == -1
    reached, go_on = test.decide(np.array([128]), np.array([128]), np.array([0]))
    assert (reached[0], go_on[0]) == (1, False)


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 2000), st.data())
def test_a_look_is_what_the_definition_says(draws, data):
    test = RadiusTest(RADII, 0.25, 0.01, 2000)
    successes = data.draw(st.integers(0, draws))
    before = data.draw(st.integers(0, 3))
    reached, go_on = (part[0] for part in test.decide(np.array([successes]), np.array([draws]), np.array([before])))
    expected = before
    bound = clopper_pearson(successes, 2000, 0.008, "lower") if draws == 2000 else 0.0
    while expected < 4:
        p = test.thresholds[expected]
        if log_e_value(successes, draws - successes, p) < math.log(1 / 0.002) and not bound > p:
            break
        expected += 1
    assert reached == expected
    if draws == 2000 or reached == 4:
        assert not go_on
    else:
        failures, allowed = draws - successes, test.allowed[reached]
        left = chance_left(np.array([failures]), np.array([draws]), np.array([allowed]), 2000)[0]
        assert go_on == (left >= 0.005)


def test_the_last_look_spends_what_early_looks_left_of_alpha():
    # Every count at the last draw: a level of alpha instead of 0.8 alpha would claim with one or two votes less.
    test, votes = RadiusTest(RADII, 0.25, 0.01, 4000), np.arange(4001)
    reached, _ = test.decide(votes, np.full(4001, 4000), np.zeros(4001, dtype=int))
    p = test.thresholds[:, None]
    early = log_e_value(votes, 4000 - votes, p) >= math.log(1 / 0.002)
    late = clopper_pearson(votes, 4000, 0.008, "lower") > p
    assert (reached == np.cumprod(early | late, axis=0).sum(axis=0)).all()
    assert set(reached.tolist()) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("p", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("draws", [128, 500, 1500])
def test_the_chance_left_is_what_draws_show(p, draws):
    # Rates of failure from Jeffreys' prior; of those with so many failures at `draws`, how many end with few?
    rng, n = np.random.default_rng(0), 2000
    rate = rng.beta(0.5, 0.5, 1_000_000)
    failures = rng.binomial(draws, rate)
    alike = failures == round((1 - p) * draws)
    later = failures[alike] + rng.binomial(n - draws, rate[alike])
    for share in (0.05, 0.5, 0.9):
        allowed = int(np.quantile(later, share))
        left = chance_left(np.array([failures[alike][0]]), np.array([draws]), np.array([allowed]), n)[0]
        assert left == pytest.approx(np.mean(later <= allowed), abs=0.07)


def test_no_chance_is_left_after_too_many_failures():
    left = chance_left(np.array([11, 10, 10]), np.array([100, 100, 1999]), np.array([10, 10, 10]), 2000)
    assert left[0] == 0
    assert 0 < left[1] < 1e-8
    assert left[2] > 0.5


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 3000), st.data())
def test_more_votes_never_claim_less(draws, data):
    test = RadiusTest(RADII, 0.25, 0.01, 3000)
    votes = np.sort(np.array(data.draw(st.lists(st.integers(0, draws), min_size=2, max_size=6))))
    reached, _ = test.decide(votes, np.full(len(votes), draws), np.zeros(len(votes), dtype=int))
    assert (np.diff(reached) >= 0).all()


def stream_claims(test, p, streams, seed, step=1):
    """The radii claimed for many streams of one probability, and the draws they took."""
    rng = np.random.default_rng(seed)
    votes, reached, used = (np.zeros(streams, dtype=int) for _ in range(3))
    going = np.ones(streams, dtype=bool)
    before = 0
    for look in looks(test.n, step):
        votes += rng.binomial(look - before, p, streams)
        at = np.flatnonzero(going)
        reached[at], going[at] = test.decide(votes[at], np.full(len(at), look), reached[at])
        used[at], before = look, look
    return reached, used


@pytest.mark.parametrize(("false", "seed"), [(0, 0), (1, 1), (2, 2)])
def test_false_claims_at_the_boundary_are_rarer_than_alpha(false, seed):
    # The radius number `false` is just false: p equals its threshold. Of 6000 streams at alpha 0.05 at most 300 are
    # expected to claim it, and more than 383 do with probability below 1e-6 over seeds. With these seeds a test of
    # twice its level claims it 460 to 510 times, and one that spends alpha on both ways to reject 330 to 440 times.
    test = RadiusTest((0.0, 0.25, 0.5), 0.25, 0.05, 600)
    reached, _ = stream_claims(test, stats.norm.cdf((0.0, 1.0, 2.0)[false]), 6000, seed, step=8)
    wrong = int(np.sum(reached > false))
    assert 150 < wrong <= most_misses(6000, 0.05)


def test_the_same_decisions_as_a_fixed_number_of_draws_with_a_twelfth_of_them():
    # Probabilities as of a CIFAR-10 model: three quarters above one half, a quarter near one.
    rng = np.random.default_rng(0)
    depth = np.interp(rng.random(1500), [0, 0.08, 0.248, 0.43, 0.6, 0.75, 0.95, 1], [6, 4.5, 3.09, 2, 1, 0, -2, -4])
    p = stats.norm.cdf(depth)
    test = RadiusTest(RADII, 0.25, 0.001, 100_000)
    reached, used = stream_claims(test, p, len(p), 1, step=128)
    fixed = certified_radius(
        clopper_pearson(np.random.default_rng(2).binomial(100_000, p), 100_000, 0.001, "lower"), 0.25
    )
    claimed = np.sum(fixed[:, None] > np.array(RADII), axis=1)
    # Fresh draws for the fixed test: some of the few differences are chance.
    assert np.mean(reached == claimed) > 0.985
    assert used.mean() < 100_000 / 12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"radii": ()}, "radii must increase, and there must be at least one"),
        ({"radii": (0.5, 0.5)}, "radii must increase"),
        ({"radii": (-0.1, 0.5)}, "radii must be >= 0"),
        ({"alpha": 1.0}, r"alpha must be in \(0, 1\)"),
        ({"sigma": 0.0}, "sigma must be > 0"),
        ({"n": 0}, "n must be a whole number >= 1"),
        ({"early": 1.0}, r"early must be in \(0, 1\)"),
    ],
)
def test_bad_tests_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        RadiusTest(**({"radii": RADII, "sigma": 0.25, "alpha": 0.01, "n": 100} | change))


def test_a_look_beyond_the_last_draw_is_refused():
    with pytest.raises(ValueError, match="draws must be <= 100, got 101"):
        RadiusTest((0.0,), 0.25, 0.01, 100).decide(np.array([5]), np.array([101]), np.array([0]))


def planned(successes, tolerance=0.05, n=100_000, trials=500):
    return draws_for_tolerance(successes, trials, sigma=0.25, tolerance=tolerance, alpha=0.001, n=n)


def test_a_pilot_chooses_as_many_draws_as_the_tolerance_needs():
    votes = np.array([0, 250, 300, 400, 450, 490, 499, 500])
    for tolerance in (0.02, 0.05, 0.1):
        chosen = planned(votes, tolerance)
        assert (chosen <= 100_000).all()
        lower = clopper_pearson(np.floor(votes / 500 * chosen), chosen, 0.001, "lower")
        best = clopper_pearson(np.floor(votes / 500 * 100_000), 100_000, 0.001, "lower")
        assert (certified_radius(lower, 0.25) >= certified_radius(best, 0.25) - tolerance).all()
    assert (planned(votes, 0.02) >= planned(votes, 0.1)).all()
    assert planned(np.array([0]))[0] == 128
    assert planned(np.array([500]), tolerance=1e-9)[0] == 100_000
    assert planned(np.array([30]), trials=50, n=60)[0] <= 60


@pytest.mark.parametrize("p", [0.6, 0.9, 0.99])
def test_two_stages_are_rarely_wrong(p):
    # A radius is false when its bound exceeds p: at most 0.05 of 6000, for every pilot.
    rng = np.random.default_rng(7)
    n = draws_for_tolerance(rng.binomial(200, p, 6000), 200, sigma=0.25, tolerance=0.01, alpha=0.05, n=5000)
    assert len(np.unique(n)) > 3
    wrong = int(np.sum(clopper_pearson(rng.binomial(n, p), n, 0.05, "lower") > p))
    assert 60 < wrong <= most_misses(6000, 0.05)
