"""The test against each other class: its e-value in exact arithmetic, its errors by simulation, what it certifies."""

import numpy as np
import pytest
from mpmath import mp, mpf
from scipy import special, stats

from rhobust.bounds import BoundaryTest, PairwiseTest, certified_radius, log_pairwise_e_value
from rhobust.bounds.pairwise import STAKES, TANGENTS, _log_factors

RADII, SIGMA, ALPHA = (0.0, 0.25, 0.5, 0.75), 0.25, 1e-3


def edge(p, t):
    """The least probability of another class with which a class of probability p may be overtaken."""
    return stats.norm.cdf(stats.norm.ppf(p) - t)


@pytest.mark.parametrize("t", [0.0, 0.1, 1.0, 2.0, 6.0, 12.0])
def test_no_bet_gains_on_the_hypothesis(t):
    """The mean factor of every bet is at most 1 wherever the hypothesis holds, in 40 digits."""
    factors = _log_factors(t)
    assert factors.shape == (3, len(TANGENTS) * len(STAKES))
    with mp.workdps(40):

        def normal(x):
            return mp.erfc(-x / mp.sqrt(2)) / 2

        for z in (-4, -1, mpf(t) / 2 - 1, mpf(t) / 2 - mpf(1) / 3, mpf(t) / 2):
            p, least = normal(mpf(z)), normal(mpf(z) - mpf(t))
            for other in (least, (least + 1 - p) / 2, 1 - p):  # at the edge, within, and without a third class
                if p + other <= 1:
                    for a, b, c in factors.T:
                        mean = p * mp.exp(mpf(a)) + other * mp.exp(mpf(b)) + (1 - p - other) * mp.exp(mpf(c))
                        assert mean <= 1, (t, z, other)


def test_the_tangents_touch_and_the_bets_are_of_use():
    # At the edge the best bet neither gains nor loses, up to what is given away by rounding.
    for t in (0.5, 2.0, 6.0):
        p = stats.norm.cdf(t / 2 - TANGENTS[3])
        a, b, c = np.exp(_log_factors(t))
        mean = p * a + edge(p, t) * b + (1 - p - edge(p, t)) * c
        assert 1 - 1e-9 < mean.max() <= 1


def test_the_e_value_is_the_mean_of_its_bets():
    votes = np.array([700, 200, 100])
    bets = np.exp(votes @ _log_factors(0.8))
    assert log_pairwise_e_value(700, 200, 1000, 0.1, 0.25) == pytest.approx(np.log(bets.mean()), abs=1e-8)
    assert log_pairwise_e_value(700, 200, 1000, 0.1, 0.25) < np.log(bets.mean())


def test_more_votes_for_the_rival_are_less_evidence():
    runner_up = np.arange(0, 401)
    for radius in (0.0, 0.1, 0.3):
        found = log_pairwise_e_value(600, runner_up, 1000, radius, SIGMA)
        assert (np.diff(found) < 0).all()
    assert (np.diff(log_pairwise_e_value(600, 100, 1000, np.array([0.0, 0.1, 0.2]), SIGMA)) < 0).all()


def test_it_falls_short_of_its_best_bet_by_little():
    """On votes as expected, against the largest likelihood ratio of any bet on three outcomes."""
    for p, other, radius in ((0.8, 0.06, 0.25), (0.45, 0.3, 0.0), (0.97, 0.005, 0.5)):
        n = 20_000
        votes = np.array([p * n, other * n, (1 - p - other) * n])
        t = 2 * radius / SIGMA
        z = np.linspace(t / 2 - 2, t / 2, 4001)
        q, least = stats.norm.cdf(z), stats.norm.cdf(z - t)
        null = np.stack([q, least, np.maximum(1 - q - least, 1e-300)])
        best = np.min(votes @ (np.log([[p], [other], [1 - p - other]]) - np.log(null)))
        found = log_pairwise_e_value(*np.rint(votes[:2]), n, radius, SIGMA)
        assert best - 0.15 * best - 8 < found < best + 1e-6


def walk(test, probabilities, walks, rng):
    """Claims of the class that the first look selects: that class, and how many radii are claimed."""
    votes = np.zeros((walks, len(probabilities)), dtype=np.int64)
    reached, before, selected = np.zeros(walks, dtype=np.int64), 0, None
    rows = np.arange(walks)
    for size in test.looks:
        votes += rng.multinomial(size - before, probabilities, size=walks)
        before = size
        if selected is None:
            selected = votes.argmax(axis=1)
            top = votes[rows, selected]
        others = votes.copy()
        others[rows, selected] = -1
        given = votes[rows, selected], np.full(walks, size), reached, others.max(axis=1), top
        reached, _ = test.decide_pairs(*given)
    return selected, reached


def true_radii(probabilities, selected, radii):
    """How many radii are true of the selected class."""
    probits = stats.norm.ppf(probabilities)
    others = np.array([np.delete(probits, one).max() for one in range(len(probits))])
    reach = SIGMA / 2 * (probits - others)
    return (np.array(radii) < reach[selected][:, None]).sum(axis=1)


@pytest.mark.parametrize(
    ("radii", "step", "reused"),
    [((0.0, 0.1, 0.25), 16, True), ((0.0, 0.1, 0.25), 16, False), ((0.0, 0.25), 128, True)],
    ids=str,
)
@pytest.mark.parametrize(
    "probabilities",
    [
        [0.25] * 4,
        [0.1] * 10,
        [0.4, 0.4, 0.1, 0.1],
        [0.7, 0.3 - 2e-9, 1e-9, 1e-9],
        [0.6, edge(0.6, 0.8), 0.85 * (0.4 - edge(0.6, 0.8)), 0.15 * (0.4 - edge(0.6, 0.8))],
        [0.75, edge(0.75, 2.0), *[(0.25 - edge(0.75, 2.0)) / 3] * 3],
        [stats.norm.cdf(0.4), stats.norm.cdf(-0.4)],
    ],
    ids=lambda p: " ".join(f"{one:.2f}" for one in p[:4]),
)
def test_at_most_alpha_of_the_claims_are_false_where_a_radius_is_just_out_of_reach(probabilities, radii, step, reused):
    alpha, walks, rng = 0.1, 6000, np.random.default_rng(5)
    test = PairwiseTest(radii, SIGMA, alpha, 1500, step, share=0.5, reused=reused)
    selected, reached = walk(test, np.array(probabilities) / np.sum(probabilities), walks, rng)
    false = np.mean(reached > true_radii(np.array(probabilities), selected, radii))
    assert false <= alpha + 3 * np.sqrt(alpha / walks)


def test_votes_for_many_classes_certify_what_the_class_alone_cannot():
    n, rng = 60_000, np.random.default_rng(0)
    spread = np.array([0.46, 0.2, *[0.34 / 8] * 8])  # no majority, a plurality
    pairs, alone = (kind(RADII, SIGMA, ALPHA, n, 128, reused=True) for kind in (PairwiseTest, BoundaryTest))
    _, reached = walk(pairs, spread, 20, rng)
    assert (reached == 1).all()
    assert alone.decide(np.array([int(0.46 * n)]), np.array([n]), np.array([0]))[0] == 0
    # 0.25 needs 0.841 of all votes, or 0.82 and at most 0.139 for each other class.
    assert certified_radius(0.83, SIGMA) < 0.25
    _, reached = walk(pairs, np.array([0.83, 0.09, 0.08]), 20, rng)
    assert (reached == 2).all()


def test_two_classes_lose_nothing_but_the_share_of_alpha():
    p = 1 - np.concatenate([np.zeros(100), np.geomspace(1e-4, 0.7, 200)])
    found = []
    for test in (
        PairwiseTest(RADII, SIGMA, ALPHA, 20_000, 128, reused=True),
        BoundaryTest(RADII, SIGMA, ALPHA, 20_000, 128, reused=True),
    ):
        rng, before, first = np.random.default_rng(1), 0, None
        failures, reached, draws = (np.zeros(len(p), dtype=np.int64) for _ in range(3))
        active = np.full(len(p), True)
        for size in test.looks:
            failures += rng.binomial(size - before, 1 - p)
            at, before = np.flatnonzero(active), size
            first = size - failures if first is None else first
            given = size - failures[at], np.full(len(at), size), reached[at]
            pairs = (failures[at], first[at]) if isinstance(test, PairwiseTest) else ()
            decide = test.decide_pairs if pairs else test.decide
            reached[at], active[at] = decide(*given, *pairs)
            draws[at] = size
        found.append((draws, reached))
    (few, ours), (alone, theirs) = found
    assert few.mean() < 1.03 * alone.mean()
    assert np.mean(ours == theirs) > 0.97


def test_levels_where_radii_are_close_add_up_to_alpha():
    close, apart = (PairwiseTest(radii, SIGMA, 0.1, 800, 128, reused=True) for radii in ((0.0, 0.02), (0.0, 0.25)))
    assert close.levels == pytest.approx([0.05 * 0.09, 0.85 * 0.09])
    assert apart.levels == pytest.approx([0.4995 * 0.09, 0.999 * 0.09])
    assert PairwiseTest((0.0,), SIGMA, 0.1, 800, 16, reused=True).levels == pytest.approx([0.03])
    assert PairwiseTest((0.0, 0.3), SIGMA, 0.1, 800, 16).levels == pytest.approx([0.09, 0.09])


def test_a_look_gives_up_only_what_no_test_is_likely_to_prove():
    test = PairwiseTest((0.0, 0.25), SIGMA, ALPHA, 100_000, 128)
    n = int(test.looks[len(test.looks) // 2])
    zero = np.array([0])
    spread, focused = (
        test.decide_pairs(np.array([int(0.83 * n)]), np.array([n]), np.array([1]), np.array([int(part * n)]), zero)
        for part in (0.075, 0.169)
    )
    assert spread[1][0] or spread[0][0] == 2
    assert not focused[1][0]
    assert focused[0][0] == 1


def test_the_theorem_is_sharp():
    """Two classes behind parallel lines on either side of a third: at the radius both are as probable."""
    p, other, radius = 0.7, 0.1, SIGMA / 2 * (special.ndtri(0.7) - special.ndtri(0.1))
    below, above = special.ndtri(p) * SIGMA, -special.ndtri(other) * SIGMA  # class a below one line, b above another
    for x, sign in ((radius * 0.999, 1), (radius * 1.001, -1)):
        a, b = stats.norm.cdf((below - x) / SIGMA), stats.norm.sf((above - x) / SIGMA)
        assert np.sign(a - b) == sign


@pytest.mark.parametrize(
    ("change", "message"),
    [({"share": 0.0}, r"share must be in \(0, 1\), got 0"), ({"share": 1.0}, "share must"), ({"n": 0}, "n must")],
)
def test_bad_settings_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        PairwiseTest(**{"radii": RADII, "sigma": SIGMA, "alpha": ALPHA, "n": 1000, "step": 128, **change})


def test_bad_votes_are_refused():
    with pytest.raises(ValueError, match="successes and runner_up must be <= draws together, got 1 more"):
        log_pairwise_e_value(6, 5, 10, 0.1, 0.25)
    with pytest.raises(ValueError, match="runner_up must be a whole number >= 0, got -1"):
        log_pairwise_e_value(6, -1, 10, 0.1, 0.25)
