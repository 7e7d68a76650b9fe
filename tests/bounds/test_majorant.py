"""The linear programme over majorants, and bounds on the law of error counts."""

import numpy as np
import pytest
from scipy import optimize, special, stats

from rhobust.bounds import betting_upper, clopper_pearson, shuffle
from rhobust.bounds.majorant import SLACK, CountBounds, Majorant, MajorantProblem, count_bounds, jumps
from rhobust.bounds.surrogate import Surrogate


def bounds_of(draws, law, margin=0.0):
    """What is true when the vote probability takes the values of `law` equally often, known up to a margin."""
    survival = np.mean([stats.binom.sf(jumps(draws) - 1, draws, p) for p in law], axis=0)
    once = np.mean(stats.binom.pmf(1, draws, law))
    return CountBounds(*(one * (1 - 2 * margin) + margin for one in (survival, once, np.mean(law))))


def mean_of(majorant, draws, p):
    """E h(K) for K ~ Bin(draws, p), computed apart from the code under test."""
    k = np.arange(draws + 1)
    rises = majorant.heights + majorant.slope * np.diff(jumps(draws), prepend=0.0) / draws
    h = majorant.base + np.array([rises[jumps(draws) <= count].sum() for count in k]) + majorant.once * (k == 1)
    return stats.binom.pmf(k, draws, np.asarray(p)[:, None]) @ h


def slack_off_the_grid(problem, majorant, surrogate, penalty, number=4000):
    rng = np.random.default_rng(1)
    p = np.concatenate([rng.random(number), special.ndtr(rng.uniform(-10, 10, number)), [0.0, 1.0]])
    upper, _ = surrogate.penalised(special.ndtri(p), np.float64(penalty))
    # `upper` exceeds T by up to 1e-12 for one vote; mean_of has rounding errors too.
    return np.min(mean_of(majorant, problem.draws, p) - upper)


@pytest.mark.parametrize("draws", [1, 20, 60])
@pytest.mark.parametrize(("cost", "penalty"), [("w2", 0.05), ("w2", 3.0), ("w1", 0.1), ("w1", 0.3)])
def test_majorises_between_grid_points(draws, cost, penalty):
    surrogate = Surrogate(cost)
    problem = MajorantProblem(draws, surrogate.curvature)
    upper, _ = surrogate.penalised(problem.u, np.float64(penalty))
    majorant, _ = problem.solve(upper, bounds_of(draws, [0.01, 0.1, 0.5], 0.05))
    assert np.all(majorant.heights >= 0)
    assert slack_off_the_grid(problem, majorant, surrogate, penalty) >= 1e-13


@pytest.mark.parametrize("shift", [1.4, 1.6, 1.8])
def test_a_tangent_between_two_grid_points_is_lifted_by_the_bend_of_the_loss(shift):
    # With one draw h touches T at the mean error, and T is concave there: it rises above the chord of a cell.
    surrogate = Surrogate("winf")
    problem = MajorantProblem(1, surrogate.curvature)
    u = np.linspace(-2, 1, 30_001)
    for mean in np.linspace(0.2, 0.35, 8):
        known = CountBounds(np.array([mean]), mean, mean)
        majorant, _ = problem.solve(surrogate.shifted(problem.u, shift), known)
        assert np.all(mean_of(majorant, 1, special.ndtr(u)) >= special.ndtr(u + shift))


def test_the_span_is_no_less_than_the_range_of_h():
    for spike in (0.0, 0.4, 3.0):
        majorant = Majorant(0.1, np.array([0.2, 0.0, 0.3]), once=spike, slope=0.6)
        h = mean_of(majorant, 3, [0.0, 1.0])
        peak = 0.1 + 0.2 + 0.6 / 3 + spike
        assert majorant.span >= max(*h, peak) - min(*h, peak)


def test_majorises_between_chosen_jumps_and_for_votes():
    surrogate = Surrogate("w2", 3)
    problem = MajorantProblem(300, surrogate.curvature)
    assert jumps(300).size < 130
    assert jumps(300)[0] == 1
    assert jumps(300)[-1] == 300
    upper, _ = surrogate.penalised(problem.u, np.float64(0.3))
    majorant, _ = problem.solve(upper, bounds_of(300, [0.01, 0.2], 0.05))
    # The exact error of three votes, shifted by every distance on a grid: a lower bound of T.
    p = special.ndtr(np.random.default_rng(2).uniform(-6, 6, 500))
    tau = np.linspace(0, 4, 2001)
    lost = stats.binom.sf(1, 3, special.ndtr(special.ndtri(p)[:, None] + tau))
    exact = np.max(lost - 0.3 * tau**2 / 2, axis=1)
    slack = mean_of(majorant, 300, p) - exact
    assert np.all(slack >= 0)
    assert np.min(slack) < 5e-4


def test_a_known_mean_makes_the_linear_part_cheaper():
    surrogate = Surrogate("w2")
    problem = MajorantProblem(20, surrogate.curvature)
    upper, _ = surrogate.penalised(problem.u, np.float64(2.0))
    law = [0.02, 0.1, 0.4]
    without = CountBounds(bounds_of(20, law, 0.05).survival)
    known = without._replace(mean=np.mean(law) + 0.001)
    blind, _ = problem.solve(upper, without)
    seeing, _ = problem.solve(upper, known)
    assert blind.slope == pytest.approx(0.0, abs=1e-9)
    assert seeing.slope > 0.5
    assert slack_off_the_grid(problem, seeing, surrogate, 2.0) >= 1e-13
    truth = np.mean(surrogate.penalised(special.ndtri(law), np.float64(2.0))[0])
    assert truth < seeing.mean_upper(known) < blind.mean_upper(without) - 0.01


@pytest.mark.parametrize("votes", [1, None])
def test_a_rare_single_error_makes_large_shifts_cheaper(votes):
    # Where few points err exactly once, h may rise there far above one: this distinguishes p = 0.01 from 0.
    surrogate = Surrogate("w2", votes)
    problem = MajorantProblem(20, surrogate.curvature)
    upper, _ = surrogate.penalised(problem.u, np.float64(0.09))
    law = [1e-6] * 95 + [0.9] * 5
    without = CountBounds(bounds_of(20, law, 0.002).survival)
    known = without._replace(once=0.002)
    blind, _ = problem.solve(upper, without)
    seeing, _ = problem.solve(upper, known)
    assert blind.once == pytest.approx(0.0, abs=1e-9)
    assert seeing.once > 0.1
    assert slack_off_the_grid(problem, seeing, surrogate, 0.09) >= 1e-13
    assert seeing.mean_upper(known) < blind.mean_upper(without) - 0.005


def test_survives_a_careless_solver(monkeypatch):
    surrogate = Surrogate("w2")
    problem = MajorantProblem(20, surrogate.curvature)
    upper, _ = surrogate.penalised(problem.u, np.float64(0.2))
    known = bounds_of(20, [0.05, 0.3])
    good, _ = problem.solve(upper, known)
    solver = optimize.linprog

    def careless(*args, **keywords):
        answer = solver(*args, **keywords)
        answer.x = answer.x * 0.97 - 1e-3
        return answer

    monkeypatch.setattr(optimize, "linprog", careless)
    lifted, _ = problem.solve(upper, known)
    assert slack_off_the_grid(problem, lifted, surrogate, 0.2) >= 1e-13
    assert np.all(lifted.heights >= 0)
    assert lifted.mean_upper(known) > good.mean_upper(known)

    monkeypatch.setattr(optimize, "linprog", lambda *_, **__: optimize.OptimizeResult(x=None))
    trivial, _ = problem.solve(upper, known)
    assert trivial.mean_upper(known) == pytest.approx(1.0)


@pytest.mark.parametrize("penalty", [0.05, 0.3, 2.0])
@pytest.mark.parametrize("mean", [0.02, 0.2, 0.7])
def test_one_draw_gives_the_concave_envelope(penalty, mean):
    surrogate = Surrogate("w2")
    problem = MajorantProblem(1, surrogate.curvature)
    upper, _ = surrogate.penalised(problem.u, np.float64(penalty))
    known = CountBounds(np.array([mean]))
    majorant, _ = problem.solve(upper, known)
    # The envelope at `mean` is the best chord over points on either side of it.
    p = special.ndtr(np.linspace(-9, 9, 1501))
    value, _ = surrogate.penalised(special.ndtri(p), np.float64(penalty))
    left, right = np.append(0.0, p[p <= mean]), np.append(p[p > mean], 1.0)
    low, high = np.append(0.0, value[p <= mean]), np.append(value[p > mean], 1.0)
    share = (right - mean) / (right - left[:, None])
    envelope = np.max(share * low[:, None] + (1 - share) * high)
    assert envelope - 1e-9 <= majorant.mean_upper(known) <= envelope + SLACK * (1 + majorant.span)


def test_costs_of_the_targets_are_the_slope_in_the_penalty():
    surrogate = Surrogate("w2")
    problem = MajorantProblem(20, surrogate.curvature)
    known = bounds_of(20, [0.02, 0.1, 0.4], 0.02)

    def value(penalty):
        upper, spent = surrogate.penalised(problem.u, np.float64(penalty))
        majorant, costs = problem.solve(upper, known)
        return majorant.mean_upper(known), -(costs @ spent)

    # The value is piecewise smooth and repaired by up to SLACK, hence the wide difference.
    difference = (value(0.33)[0] - value(0.27)[0]) / 0.06
    assert value(0.3)[1] == pytest.approx(difference, rel=0.03)


def test_is_close_to_the_exact_mean_when_draws_are_many():
    surrogate = Surrogate("w2")
    law = [0.02, 0.1, 0.4]
    truth = np.mean(surrogate.penalised(special.ndtri(law), np.float64(0.3))[0])
    gaps = []
    for draws in (1, 5, 20, 80):
        problem = MajorantProblem(draws, surrogate.curvature)
        upper, _ = surrogate.penalised(problem.u, np.float64(0.3))
        known = bounds_of(draws, law)
        gaps.append(problem.solve(upper, known)[0].mean_upper(known) - truth)
    assert gaps == sorted(gaps, reverse=True)
    assert 0 <= gaps[-1] < 0.005


def test_bounds_by_hand():
    # Steps at 1, 2, 3, 4 share 5/8 of alpha as 12 : 6 : 4 : 3; P(K = 1) has 1/8 and the mean 1/4.
    errors = np.repeat([0.0, 1.0, 2.0, 4.0], [900, 40, 50, 10])
    found = count_bounds(errors, 4, 0.008)
    shares = np.array([12, 6, 4, 3]) / 25
    steps = clopper_pearson([100, 60, 10, 10], 1000, 0.005 * shares, "upper")
    assert found.survival[:3] == pytest.approx(steps[:3], abs=1e-12)
    # The fourth step's own bound is at a smaller level, so the third's serves it too.
    assert steps[3] > steps[2] == found.survival[3]
    assert found.once == clopper_pearson(40, 1000, 0.001, "upper")
    assert found.mean == betting_upper(shuffle(errors) / 4, 0.002)


def test_many_draws_have_few_jumps():
    assert jumps(20).tolist() == list(range(1, 21))
    assert jumps(1000).size < 130
    assert jumps(1000)[[0, -1]].tolist() == [1, 1000]
    assert np.all(np.diff(jumps(1000)) >= 1)


@pytest.mark.parametrize("draws", [1, 6])
def test_all_bounds_hold_together(draws):
    # False-alarm rate 1e-6. Half the points have p = 0.02, the others 0.4.
    rng = np.random.default_rng(3)
    law = np.array([0.02, 0.4])
    survival = np.mean(stats.binom.sf(np.arange(draws)[:, None], draws, law), axis=1)
    once, alpha, misses = np.mean(stats.binom.pmf(1, draws, law)), 0.2, 0
    for _ in range(150):
        found = count_bounds(rng.binomial(draws, rng.choice(law, 150)).astype(float), draws, alpha)
        missed = found.survival < survival
        misses += bool(missed.any() or found.once < once or found.mean < law.mean())
    assert 0 < misses <= stats.binom.isf(1e-6, 150, alpha)
