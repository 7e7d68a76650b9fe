"""The group-sequential test: its probability of a false claim computed in another way, and what it saves."""

import numpy as np
import pytest
from scipy import stats

from rhobust.bounds import BoundaryTest, RadiusTest, looks

RADII, SIGMA, ALPHA = (0.0, 0.25, 0.5, 0.75), 0.25, 1e-3


def crossing(test: BoundaryTest, radius: int, p: float) -> float:
    """P(any look rejects the hypothesis of a radius), by following the whole distribution of failures."""
    weights, before, crossed = np.zeros(test.n + 1), 0, 0.0
    weights[0] = 1.0
    for size, bound in zip(test.looks, test.boundaries[radius], strict=True):
        step = stats.binom.pmf(np.arange(size - before + 1), size - before, 1 - p)
        weights = np.convolve(weights, step)[: test.n + 1]
        crossed += weights[: bound + 1].sum()
        weights[: bound + 1] = 0.0
        before = size
    return crossed


@pytest.mark.parametrize("radius", range(4))
def test_alpha_is_kept_exactly_and_nearly_all_of_it_is_used(radius):
    test = BoundaryTest(RADII, SIGMA, 0.01, 6000, 128)
    p = test.thresholds[radius]
    assert 0.8 * 0.01 < crossing(test, radius, p) <= 0.01
    assert crossing(test, radius, p - 1e-3) < crossing(test, radius, p)


def test_at_most_alpha_of_the_certificates_are_false_for_any_p():
    test, rng = BoundaryTest(RADII, SIGMA, 0.02, 4000, 128), np.random.default_rng(0)
    for p in (*test.thresholds, 0.95):
        false_from = int(np.sum(test.thresholds < p))
        reached, failures, before = np.zeros(20_000, dtype=np.int64), 0, 0
        for size in test.looks:
            failures = failures + rng.binomial(size - before, 1 - p, size=20_000)
            reached, _ = test.decide(size - failures, np.full(20_000, size), reached)
            before = size
        rate = np.mean(reached > false_from)
        assert rate <= 0.02 + 4 * np.sqrt(0.02 / 20_000), p


def false_claims(test: BoundaryTest, p: float) -> float:
    """P(a class passes a radius that is false of it) for two classes of probability p >= 1/2 and 1 - p, exactly.

    The class that is tested was chosen by its votes, as unfavourably as can be: either of the two may pass.
    """
    own = int(np.sum(test.thresholds < p))  # the first radius that is false of the larger class
    smallest, at_own = test.boundaries[0], test.boundaries[own] if own < len(test.radii) else np.full(test.n, -1)
    weights, before, passed = np.zeros(test.n + 1), 0, 0.0
    weights[0] = 1.0
    for look, size in enumerate(test.looks):
        step = stats.binom.pmf(np.arange(size - before + 1), size - before, 1 - p)
        weights = np.convolve(weights, step)[: test.n + 1]
        failures = np.arange(test.n + 1)
        false = (failures <= at_own[look]) | ((size - failures <= smallest[look]) & (failures <= size))
        passed += weights[false].sum()
        weights[false] = 0.0
        before = size
    return passed


@pytest.mark.parametrize(
    ("radii", "step", "share"),
    [
        ((0.0,), 16, 1 / 3),
        ((0.0,), 128, 0.4995),
        ((0.0, 0.02), 16, 0.95),
        ((0.0, 0.1, 0.4), 16, 0.95),
        ((0.0, 0.25, 0.4), 128, 0.999),
        ((0.01, 0.03), 16, 0.95),
        ((0.2, 0.3), 16, 0.999),
    ],
    ids=str,
)
def test_votes_may_select_the_class_that_they_prove(radii, step, share):
    """At most alpha for any probability, also where two radii, or the two classes, can hardly be told apart."""
    alpha = 0.1
    reused, fresh = (BoundaryTest(radii, SIGMA, alpha, 800, step, reused=reused) for reused in (True, False))
    assert reused.levels[-1] == pytest.approx(share * alpha)
    points = {0.5, 0.502, 0.51, 0.53, 0.57, 0.65, 0.8, 0.95, *reused.thresholds, *reused.thresholds - 0.004}
    assert max(false_claims(reused, p) for p in points if p >= 0.5) <= alpha
    if radii[0] < 0.02:  # the correction is needed
        assert max(false_claims(fresh, p) for p in points if p >= 0.5) > 1.2 * alpha


def test_for_the_usual_radii_nearly_all_of_alpha_is_left():
    for radii, sigma in (((0.0, 0.25, 0.5, 0.75), 0.25), ((0.0, 0.25), 0.1), ((0.0, 0.5, 1.0), 0.5)):
        levels = BoundaryTest(radii, sigma, ALPHA, 10_000, 128, reused=True).levels
        assert levels[0] == pytest.approx(0.4995 * ALPHA)
        assert levels[1:] == pytest.approx(0.999 * ALPHA)


@pytest.mark.parametrize("probabilities", [[1 / 3] * 3, [0.5, 0.25, 0.25], [0.1] * 10, [0.52, 0.48]], ids=str)
@pytest.mark.parametrize("kind", [BoundaryTest, RadiusTest])
def test_the_leading_class_of_many_is_seldom_certified_falsely(probabilities, kind):
    alpha, rng, walks = 0.1, np.random.default_rng(3), 4000
    step = {"step": 16} if kind is BoundaryTest else {}
    test = kind((0.0, 0.02), SIGMA, alpha, 400, reused=True, **step)
    sizes = test.looks if kind is BoundaryTest else looks(400, 16)
    votes, before = np.zeros((walks, len(probabilities)), dtype=np.int64), 0
    reached = np.zeros_like(votes)
    for size in sizes:
        votes += rng.multinomial(size - before, probabilities, size=walks)
        before = size
        for one in range(len(probabilities)):
            reached[:, one], _ = test.decide(votes[:, one], np.full(walks, size), reached[:, one])
    true = np.sum(test.thresholds < np.array(probabilities)[:, None], axis=1)
    assert np.mean((reached > true).any(axis=1)) <= alpha + 3 * np.sqrt(alpha / walks)


def test_it_needs_fewer_samples_than_the_e_value_and_decides_alike():
    p = 1 - np.concatenate([np.zeros(100), np.geomspace(1e-4, 0.7, 200)])
    found = {}
    for test in (BoundaryTest(RADII, SIGMA, ALPHA, 20_000, 128), RadiusTest(RADII, SIGMA, ALPHA, 20_000)):
        rng, before, sizes = np.random.default_rng(1), 0, looks(20_000, 128)
        sizes = test.looks if isinstance(test, BoundaryTest) else sizes
        failures, reached, draws = np.zeros(len(p), dtype=np.int64), np.zeros(len(p), dtype=np.int64), np.zeros(len(p))
        active = np.full(len(p), True)
        for size in sizes:
            failures += rng.binomial(size - before, 1 - p)
            at, before = np.flatnonzero(active), size
            reached[at], active[at] = test.decide(size - failures[at], np.full(len(at), size), reached[at])
            draws[at] = size
        found[type(test)] = draws, reached
    (few, ours), (many, theirs) = found.values()
    assert few.mean() < 0.8 * many.mean()
    assert np.mean(ours == theirs) > 0.93
    # Without a failure the largest radius is proved as soon as 0.7 alpha allows.
    assert few[0] == np.ceil(np.log(0.7 * ALPHA) / np.log(stats.norm.cdf(3)) / 128) * 128


def test_looks_and_boundaries():
    test = BoundaryTest(RADII, SIGMA, ALPHA, 20_000, 128)
    assert set(looks(20_000, 128)) <= set(test.looks.tolist())
    assert test.boundaries.shape == (4, len(test.looks))
    assert (np.diff(test.boundaries, axis=1) >= 0).all()
    assert (np.diff(test.boundaries, axis=0) <= 0).all()
    with pytest.raises(ValueError, match="draws must be those of a look, got 100"):
        test.decide(np.array([100]), np.array([100]), np.array([0]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"radii": (0.5, 0.1)}, "radii must increase"),
        ({"alpha": 0.0}, "alpha must"),
        ({"n": 0}, "n must"),
        ({"first": 0.0}, r"first must be in \(0, 1\)"),
        ({"first": 0.9, "last": 0.2}, "first and last must add up to at most 1, got 0.9 and 0.2"),
    ],
)
def test_bad_settings_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        BoundaryTest(**{"radii": RADII, "sigma": SIGMA, "alpha": ALPHA, "n": 1000, "step": 128, **change})


@pytest.mark.parametrize("n", [1, 100, 128, 129])
def test_few_samples_and_far_radii(n):
    test = BoundaryTest((0.0, 10.0), 1.0, 0.5, n, 128)
    reached, more = test.decide(test.looks[:1], test.looks[:1], np.array([0]))
    assert reached[0] == (1 if n > 1 else reached[0])
    assert more[0] in (True, False)
