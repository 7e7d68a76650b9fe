"""Worst-case loss around the population: exact laws, published numbers, coverage."""

import math

import numpy as np
import pytest
from scipy import special, stats

from bounds.populations import certified_like
from rhobust.bounds import (
    betting_upper,
    clopper_pearson,
    dkw_margin,
    k_vote_worst_case,
    kumar_loss,
    majority_worst_case,
    population,
    population_loss,
    population_loss_intervals,
    population_loss_uppers,
    randomized_counts,
    sample_loss,
    survival_upper,
    worst_case_loss,
)
from rhobust.bounds.majorant import CountBounds, MajorantProblem, count_bounds
from rhobust.bounds.surrogate import Surrogate

ATOMS = np.array([0.01, 0.2, 0.6])
EPS = np.array([0.0, 0.05, 0.1, 0.25, 0.5])


@pytest.fixture
def exact_survival(monkeypatch):
    """Replace the confidence bounds by the true law of the counts when p is uniform on ATOMS."""

    def survival(values, thresholds, alpha):
        return np.mean([stats.binom.sf(np.asarray(thresholds) - 1, 20, p) for p in ATOMS], axis=0)

    def bounds(errors, draws, alpha, second):
        once = np.mean(stats.binom.pmf(1, 20, ATOMS))
        return CountBounds(survival(errors, np.arange(1, 21), alpha), once, ATOMS.mean())

    monkeypatch.setattr(population, "count_bounds", bounds)
    monkeypatch.setattr(population, "survival_upper", survival)


@pytest.mark.parametrize("cost", ["w1", "w2", "winf"])
def test_is_above_the_truth_when_the_counts_are_known_exactly(exact_survival, cost):
    # Nothing random is left, so every shortfall would be an error of the majorants or of the search.
    rho = np.array([0.0, 0.01, 0.1, 0.5, 1.0])
    truth = worst_case_loss(ATOMS, rho, 1.0, cost=cost)
    found = population_loss([0], 20, rho, 1.0, 0.1, cost=cost)
    assert np.all(found >= truth - 3e-12)
    assert np.all(found <= truth + np.array([1e-11, 1e-3, 1e-3, 1e-3, 1e-2]))
    intervals = population_loss_intervals([0], 20, rho, 1.0, 0.1, cost=cost)
    assert np.all(intervals >= found)


def test_votes_are_above_the_truth_when_the_counts_are_known_exactly(exact_survival):
    rho = np.array([0.0, 0.3])
    truth = k_vote_worst_case(ATOMS, 3, rho, 1.0)
    found = population_loss([0], 20, rho, 1.0, 0.1, votes=3)
    assert np.all(found >= truth - 1e-4)  # the truth here is itself raised by its grid
    assert np.all(found <= truth + 0.05)


@pytest.mark.parametrize(("cost", "slack"), [("w1", 0.08), ("w2", 0.08), ("winf", 0.3)])
def test_the_majority_is_above_the_truth_when_the_counts_are_known_exactly(exact_survival, cost, slack):
    rho = np.array([0.0, 0.01, 0.1, 0.3])
    truth = majority_worst_case(ATOMS, rho, 1.0, cost=cost)
    found = population_loss([0], 20, rho, 1.0, 0.1, cost=cost, votes=None)
    assert np.all(found >= truth - 1e-11)
    # Twenty samples cannot distinguish p = 0.49 from p = 0.51, so the step of the loss stays out of reach.
    assert np.all(found <= truth + slack)
    assert np.all(np.diff(found) > 0)


@pytest.mark.parametrize(("cost", "votes"), [("w2", 1), ("w1", 1), ("winf", 1), ("w2", None), ("winf", None)])
def test_every_majorant_used_holds_off_the_grid(monkeypatch, cost, votes):
    used = []
    solve = MajorantProblem.solve

    def watched(problem, upper, bounds):
        answer = solve(problem, upper, bounds)
        used.append((upper, answer[0]))
        return answer

    monkeypatch.setattr(MajorantProblem, "solve", watched)
    errors = np.random.default_rng(12).binomial(10, np.repeat(ATOMS, 200))
    population_loss(errors, 10, np.array([0.0, 0.02, 0.2]), 0.5, 0.01, cost=cost, votes=votes)
    problem = MajorantProblem(10, Surrogate(cost, votes).curvature)
    u = np.random.default_rng(13).uniform(-8, 8, 3000)
    assert len(used) >= 3
    for upper, majorant in used:
        assert min(majorant.once, majorant.slope, *majorant.heights) >= 0
        h = majorant.base + majorant.slope * np.arange(11) / 10 + np.append(0.0, np.cumsum(majorant.heights))
        h[1] += majorant.once
        mean = stats.binom.pmf(np.arange(11), 10, special.ndtr(u)[:, None]) @ h
        if votes is None:
            # T may jump right behind a grid point to its value at the next one.
            assert np.all(mean >= upper[np.searchsorted(problem.u, u, side="left")] + 1e-13)
        else:
            between = np.interp(u, problem.u, upper) - 1e-6  # T bends by less than 1e-6 on a cell
            assert np.all(mean >= between)
        assert h[0] >= upper[0]
        assert h @ stats.binom.pmf(np.arange(11), 10, 1.0) >= 1.0


def test_without_a_shift_it_bounds_the_mean():
    errors = np.random.default_rng(0).binomial(20, np.repeat(ATOMS, 400))
    bound = population_loss(errors, 20, 0.0, 0.5, 0.01)
    assert bound <= count_bounds(errors, 20, 0.01).mean
    assert np.mean(errors) / 20 < bound < np.mean(errors) / 20 + 0.03
    # Points that were sorted afterwards give what they gave before, up to the order of the bets.
    assert population_loss(np.sort(errors), 20, 0.0, 0.5, 0.01) == pytest.approx(bound, abs=2e-3)


TRUTH = {"w2": np.array([0.3073, 0.3473, 0.4713, 0.6755]), "winf": np.array([0.2946, 0.3222, 0.4106, 0.5681])}
slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("draws", "cost", "planned"),
    [
        (1, "w2", [0.3618, 0.4389, 0.6723, 0.9259]),
        (20, "w2", [0.3278, 0.3679, 0.4973, 0.7448]),
        (20, "winf", [0.3151, 0.3430, 0.4386, 0.6603]),
        pytest.param(5, "w2", [0.3312, 0.3743, 0.5125, 0.8240], marks=slow),
        pytest.param(10, "w2", [0.3287, 0.3692, 0.4994, 0.7805], marks=slow),
        pytest.param(50, "w2", [0.3284, 0.3686, 0.4938, 0.7168], marks=slow),
    ],
)
def test_values_for_ten_thousand_points(draws, cost, planned):
    # The planned values use the DKW band alone. Ours also knows the mean and P(K = 1), so it is smaller, and
    # still above the truth.
    errors = np.random.default_rng(1).binomial(draws, certified_like(10_000))
    found = population_loss(errors, draws, EPS[1:] ** 2, 0.25, 1e-3, cost=cost)
    assert np.all(found >= TRUTH[cost] + 0.005)
    assert np.all(found <= np.array(planned) - 0.001)
    assert np.all(found >= np.array(planned) - [0.01, 0.01, 0.015, 0.04])


@pytest.mark.parametrize(
    ("draws", "planned"),
    [
        (1000, [0.3522, 0.3935, 0.5240, 0.7813]),
        pytest.param(10_000, [0.3353, 0.3758, 0.5010, 0.7156], marks=slow),
        pytest.param(100_000, [0.3306, 0.3709, 0.4949, 0.7012], marks=slow),
    ],
)
def test_interval_values_for_ten_thousand_points(draws, planned):
    # The planned values are means over samples of points whose own worst case is about 0.0012 above the population's.
    errors = np.random.default_rng(1).binomial(draws, certified_like(10_000))
    found = population_loss_intervals(errors, draws, EPS[1:] ** 2, 0.25, 1e-3)
    assert found == pytest.approx(np.array(planned) - 0.0012, abs=0.0015)
    assert np.all(found >= TRUTH["w2"] + dkw_margin(10_000, 1e-3))


def test_other_values_for_ten_thousand_points():
    p, rho = certified_like(10_000), EPS[1:] ** 2
    rng = np.random.default_rng(1)
    # One draw knows the mean to 0.003 only.
    found = kumar_loss(rng.random(10_000) < p, 1, rho, 0.25, 1e-3)
    assert found == pytest.approx([0.3646, 0.4435, 0.6679, 0.9677], abs=0.006)
    margin = dkw_margin(10_000, 1e-3)
    assert margin == pytest.approx(0.0186, abs=5e-5)
    floor = worst_case_loss(p[::5], rho, 0.25) + margin
    assert floor == pytest.approx(np.array([0.3275, 0.3677, 0.4912, 0.6951]) - 0.0012, abs=6e-4)
    # The union bound over points, from a tenth of them: each has the level that ten thousand would give it.
    union = sample_loss(rng.binomial(100_000, p[5::10]), 100_000, rho, 0.25, 1e-4) + margin
    assert union == pytest.approx(np.array([0.3320, 0.3724, 0.4967, 0.7051]) - 0.0020, abs=0.001)


def test_the_envelope_of_a_known_mean(monkeypatch):
    # One draw and a mean known exactly: the reported only-mean envelope.
    monkeypatch.setattr(population, "count_bounds", lambda *_: CountBounds(np.array([0.2681]), 0.2681, 0.2681))
    found = population_loss([0], 1, EPS[1:] ** 2, 0.25, 0.1)
    assert found == pytest.approx([0.3378, 0.4136, 0.6486, 0.9164], abs=1.5e-4)


def test_order_and_monotonicity():
    errors = np.random.default_rng(2).binomial(5, np.repeat([0.02, 0.3], 300))
    rho = np.array([0.0, 0.1])
    curves = [population_loss(errors, 5, rho, 0.25, 0.01, cost=cost) for cost in ("winf", "w2", "w1")]
    for curve in curves:
        assert np.all(np.diff(curve) > 0)
    # The penalty is optimised to 1e-5.
    assert np.all(curves[0] <= curves[1] + 2e-5)
    assert np.all(curves[1] <= curves[2] + 2e-5)
    assert np.all(population_loss(errors, 5, rho, 0.25, 0.0001) > curves[1])
    assert np.all(population_loss(np.minimum(errors + 1, 5), 5, rho, 0.25, 0.01) > curves[1])


def test_more_draws_help_at_large_shifts():
    rng = np.random.default_rng(3)
    p = rng.beta(0.3, 3, 4000)
    found = [population_loss(rng.binomial(m, p), m, 0.25, 0.25, 0.01) for m in (2, 18)]
    assert found[0] > found[1]


def test_many_draws_use_few_jumps():
    rng = np.random.default_rng(4)
    p = rng.beta(0.3, 3, 2000)
    few = population_loss(rng.binomial(64, p), 64, 0.04, 0.25, 0.01, cost="winf")
    many = population_loss(rng.binomial(400, p), 400, 0.04, 0.25, 0.01, cost="winf")
    assert many == pytest.approx(few, abs=0.015)
    assert many > worst_case_loss(p, 0.04, 0.25, cost="winf")


def test_one_draw_is_never_worse_than_kumar():
    # At twice alpha the bound on P(K = 1) is at most Kumar's Clopper-Pearson bound.
    errors = (np.random.default_rng(5).random(3000) < 0.1).astype(int)
    rho = np.array([0.01, 0.04, 0.16])
    ours = population_loss(errors, 1, rho, 0.5, 0.02, cost="w1")
    assert np.all(ours <= kumar_loss(errors, 1, rho, 0.5, 0.01) + 1e-4)


TRUTHS = {
    1: worst_case_loss,
    3: lambda p, rho, sigma, cost: k_vote_worst_case(p, 3, rho, sigma, cost=cost),
    None: majority_worst_case,
}


def check_coverage(cost, votes, repetitions, seed):
    # Points are drawn from the population and noise at each point; false-alarm rate below 1e-6.
    rng = np.random.default_rng(seed)
    truth = TRUTHS[votes](ATOMS, 0.02, 0.5, cost=cost)
    misses = 0
    for _ in range(repetitions):
        errors = rng.binomial(4, rng.choice(ATOMS, 200))
        found = population_loss(errors, 4, 0.02, 0.5, 0.1, cost=cost, votes=votes)
        misses += found < truth
        assert found < truth + 0.5
    assert misses <= stats.binom.isf(1e-6, repetitions, 0.1)
    assert misses <= 0.1 * repetitions


@pytest.mark.parametrize("votes", [1, 3, None])
def test_population_loss_covers(votes):
    check_coverage("winf", votes, 40, seed=8)


@pytest.mark.slow
@pytest.mark.parametrize("cost", ["winf", "w2", "w1"])
@pytest.mark.parametrize("votes", [1, None])
def test_population_loss_covers_often(cost, votes):
    check_coverage(cost, votes, 300, seed=9)


def test_a_loss_counts_with_its_share_of_the_bound():
    losses = np.array([[0.0, 0.0, 0.0, 0.0], [3.0, 3.0, 3.0, 3.0], [0.6, 1.2, 1.5, 2.7]])
    uniform = np.array([[0.0, 0.1, 0.5, 0.9], [0.0, 0.5, 0.9, 0.999], [0.19, 0.39, 0.51, 0.89]])
    assert randomized_counts(losses, 3.0, uniform).tolist() == [0, 4, 3]
    # A tie counts: the division may have rounded the share down.
    assert randomized_counts([[1.5]], 3.0, [[0.5]]).tolist() == [1]


def test_counts_are_binomial():
    # A chi-squared test of 20,000 counts of 5 draws; false-alarm rate 1e-6.
    rng = np.random.default_rng(0)
    losses = rng.beta(1, 3, (20_000, 5)) * 2.0
    counts = randomized_counts(losses, 2.0, rng.random((20_000, 5)))
    expected = 20_000 * stats.binom.pmf(np.arange(6), 5, 0.25)
    statistic = np.sum((np.bincount(counts, minlength=6) - expected) ** 2 / expected)
    assert stats.chi2.sf(statistic, 5) > 1e-6


def test_the_population_bound_holds_for_a_soft_loss():
    # Uniform losses of mean p M; the worst case over half-spaces is that of p.
    rng = np.random.default_rng(1)
    p = rng.choice([0.02, 0.1, 0.3], 2000)
    bound = math.log(10)
    losses = rng.random((2000, 10)) * 2 * p[:, None] * bound
    counts = randomized_counts(losses, bound, rng.random((2000, 10)))
    truth = worst_case_loss([0.02, 0.1, 0.3], 0.01, 0.25)
    assert truth < population_loss(counts, 10, 0.01, 0.25, 1e-3) < truth + 0.1


@pytest.mark.parametrize(
    ("losses", "uniform", "message"),
    [
        ([[0.5, 3.2]], [[0.1, 0.1]], r"losses must be in \[0, 3\], their bound, got 3.2"),
        ([[0.5, -0.1]], [[0.1, 0.1]], "their bound, got -0.1"),
        ([[0.5, math.nan]], [[0.1, 0.1]], "their bound, got nan"),
        ([0.5, 0.1], [0.1, 0.1], "one row per point and one column per noise sample"),
        ([[0.5, 0.1]], [[0.1]], "uniform must have the shape"),
        ([[0.5]], [[1.5]], r"uniform must be in \[0, 1\]"),
    ],
)
def test_refuses(losses, uniform, message):
    with pytest.raises(ValueError, match=message):
        randomized_counts(losses, 3.0, uniform)


INTERVALS_ATOMS = np.array([0.01, 0.2, 0.6])
RHO = np.array([0.0, 0.0025, 0.01, 0.0625, 0.25])


def test_intervals_by_hand():
    # Without a shift T(p) = p, so the bound is the mean of the interval ends under the band, plus a.
    errors = np.random.default_rng(11).binomial(30, np.repeat(INTERVALS_ATOMS, 100))
    ends = clopper_pearson(np.arange(31), 30, 0.02, "upper")
    band = survival_upper(errors, np.arange(1, 31), 0.01)
    by_hand = ends[0] + np.diff(ends) @ band + 0.02
    found = population_loss_intervals(errors, 30, 0.0, 0.5, 0.01, interval_alpha=0.02)
    assert by_hand <= found <= by_hand + 5e-12


def test_intervals_of_the_majority_by_hand():
    # Under W-infinity a point is lost when its interval end reaches Phi(-eps / sigma).
    errors = np.random.default_rng(12).binomial(400, np.repeat(INTERVALS_ATOMS, 100))
    ends = clopper_pearson(np.arange(401), 400, 0.01, "upper")
    first = np.argmax(ends >= stats.norm.cdf(-0.5))
    lost = survival_upper(errors, np.arange(1, 401), 0.01)[first - 1]
    found = population_loss_intervals(errors, 400, 0.0625, 0.5, 0.01, cost="winf", votes=None, interval_alpha=0.01)
    assert found == pytest.approx(lost + 0.01, abs=1e-11)
    # p = 0.01 survives a shift of sigma / 2, p = 0.2 and 0.6 too or not at all: 0.2 < 0.31.
    assert 1 / 3 < found < 1 / 3 + 0.15


def test_a_tiny_alpha_does_not_lose_the_points():
    errors = np.random.default_rng(0).binomial(50, 0.5, 100)
    assert population_loss_intervals(errors, 50, 0.0, 1.0, 1e-200) > 0.9


@pytest.mark.parametrize("votes", [1, 3, None])
def test_intervals_of_many_draws_approach_the_truth(votes):
    rng = np.random.default_rng(13)
    errors = rng.binomial(1000, rng.choice(INTERVALS_ATOMS, 5000))
    found = population_loss_intervals(errors, 1000, RHO, 0.5, 1e-3, votes=votes)
    truth = (
        majority_worst_case(INTERVALS_ATOMS, RHO, 0.5)
        if votes is None
        else k_vote_worst_case(INTERVALS_ATOMS, votes, RHO, 0.5)
    )
    assert np.all(found >= truth)
    assert np.all(found <= truth + 0.14)


def test_uppers_by_hand_and_above_the_truth():
    # A soft loss: uniform on [0, 2 p] at a point of mean p.
    rng = np.random.default_rng(14)
    p = rng.choice([0.02, 0.1, 0.3], 3000)
    losses = rng.random((3000, 100)) * 2 * p[:, None]
    uppers = betting_upper(losses, 1e-3)
    found = population_loss_uppers(uppers, RHO, 0.5, 0.01, interval_alpha=1e-3)
    truth = worst_case_loss([0.02, 0.1, 0.3], RHO, 0.5)
    assert np.all(found >= truth)
    assert np.all(found <= truth + 0.16)
    # Raising the bounds to the grid costs a fiftieth part of the mean at most, the band the rest.
    assert found[0] <= 1.02 * uppers.mean() + 1e-3 + survival_margin(3000, 0.01)
    certain = population_loss_uppers(np.zeros(50), 0.0, 0.5, 0.1, interval_alpha=1e-6)
    assert certain <= survival_margin(50, 0.1)


@pytest.mark.parametrize("upper", [0.01, 0.2, 0.5, 0.55, 0.97])
def test_an_upper_bound_is_never_lowered_to_the_grid(upper):
    found = population_loss_uppers(np.full(5000, upper), 0.0, 0.5, 0.1, interval_alpha=1e-3)
    assert upper + 1e-3 <= found <= upper + 0.03


def survival_margin(n, alpha):
    return np.sqrt(np.log(2 / alpha) / (2 * n)) + 1e-5


def test_sample_statements():
    errors = np.random.default_rng(6).binomial(2000, np.repeat(INTERVALS_ATOMS, 50))
    union = clopper_pearson(errors, 2000, 0.01 / 150, "upper")
    for votes, truth in (
        (1, worst_case_loss(union, RHO, 0.25)),
        (3, k_vote_worst_case(union, 3, RHO, 0.25)),
        (None, majority_worst_case(union, RHO, 0.25)),
    ):
        assert sample_loss(errors, 2000, RHO, 0.25, 0.01, votes=votes) == pytest.approx(truth, abs=1e-11)
    each = clopper_pearson(errors, 2000, 0.001, "upper")
    # P(Bin(150, 0.001) > 1) = 0.0102 and P(... > 2) = 0.0005.
    counted = sample_loss(errors, 2000, RHO, 0.25, 0.01, interval_alpha=0.001)
    assert counted == pytest.approx(np.minimum(worst_case_loss(each, RHO, 0.25) + 2 / 150, 1), abs=1e-11)


def test_sample_loss_covers():
    # 300 repetitions at alpha = 0.2; false-alarm rate below 1e-6.
    rng = np.random.default_rng(7)
    p = np.repeat(INTERVALS_ATOMS, 10)
    truth = worst_case_loss(p, 0.05, 0.5, cost="winf")
    found = [sample_loss(rng.binomial(40, p), 40, 0.05, 0.5, 0.2, cost="winf") for _ in range(300)]
    assert np.count_nonzero(np.array(found) < truth) <= stats.binom.isf(1e-6, 300, 0.2)
