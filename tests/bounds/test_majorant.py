import numpy as np
import pytest
from scipy import optimize, special, stats

from rhobust.bounds.majorant import SLACK, MajorantProblem, jumps
from rhobust.bounds.surrogate import Surrogate


def survival_of(draws, law):
    """P(K >= jump) when the vote probability takes the values of `law` equally often."""
    return np.mean([stats.binom.sf(jumps(draws) - 1, draws, p) for p in law], axis=0)


def mean_of(majorant, draws, p):
    """E h(K) for K ~ Bin(draws, p), computed apart from the code under test."""
    k = np.arange(draws + 1)
    rises = majorant.heights + majorant.slope * np.diff(jumps(draws), prepend=0.0) / draws
    h = majorant.base + np.array([rises[jumps(draws) <= count].sum() for count in k])
    return stats.binom.pmf(k, draws, np.asarray(p)[:, None]) @ h


def slack_off_the_grid(problem, majorant, surrogate, price, number=4000):
    rng = np.random.default_rng(1)
    p = np.concatenate([rng.random(number), special.ndtr(rng.uniform(-10, 10, number)), [0.0, 1.0]])
    upper, _ = surrogate.priced(special.ndtri(p), np.float64(price))
    # `upper` exceeds T by up to 1e-12 for one vote; mean_of carries rounding of its own.
    return np.min(mean_of(majorant, problem.draws, p) - upper)


@pytest.mark.parametrize("draws", [1, 5, 20, 60])
@pytest.mark.parametrize(("cost", "price"), [("w2", 0.05), ("w2", 0.3), ("w2", 3.0), ("w1", 0.1), ("w1", 0.3)])
def test_majorises_between_grid_points(draws, cost, price):
    surrogate = Surrogate(cost)
    problem = MajorantProblem(draws, surrogate.bend)
    upper, _ = surrogate.priced(problem.u, np.float64(price))
    majorant, _ = problem.solve(upper, survival_of(draws, [0.01, 0.1, 0.5]) * 0.9 + 0.05)
    assert np.all(majorant.heights >= 0)
    assert slack_off_the_grid(problem, majorant, surrogate, price) >= 1e-13


def test_majorises_between_chosen_jumps_and_for_votes():
    surrogate = Surrogate("w2", 3)
    problem = MajorantProblem(300, surrogate.bend)
    assert jumps(300).size < 130
    assert jumps(300)[0] == 1
    assert jumps(300)[-1] == 300
    upper, _ = surrogate.priced(problem.u, np.float64(0.3))
    majorant, _ = problem.solve(upper, survival_of(300, [0.01, 0.2]) * 0.9 + 0.05)
    # The exact error of three votes, moved by every distance on a grid: a lower bound of T.
    p = special.ndtr(np.random.default_rng(2).uniform(-6, 6, 500))
    tau = np.linspace(0, 4, 2001)
    lost = stats.binom.sf(1, 3, special.ndtr(special.ndtri(p)[:, None] + tau))
    exact = np.max(lost - 0.3 * tau**2 / 2, axis=1)
    slack = mean_of(majorant, 300, p) - exact
    assert np.all(slack >= 0)
    assert np.min(slack) < 5e-4


def test_a_known_mean_makes_the_linear_part_cheaper():
    surrogate = Surrogate("w2")
    problem = MajorantProblem(20, surrogate.bend)
    upper, _ = surrogate.priced(problem.u, np.float64(2.0))
    law = [0.02, 0.1, 0.4]
    band, mean = survival_of(20, law) * 0.9 + 0.05, np.mean(law) + 0.001
    blind, _ = problem.solve(upper, band)
    seeing, _ = problem.solve(upper, band, mean)
    assert blind.slope == pytest.approx(0.0, abs=1e-9)
    assert seeing.slope > 0.5
    assert slack_off_the_grid(problem, seeing, surrogate, 2.0) >= 1e-13
    truth = np.mean(surrogate.priced(special.ndtri(law), np.float64(2.0))[0])
    assert truth < seeing.mean_upper(band, mean) < blind.mean_upper(band) - 0.01


def test_survives_a_careless_solver(monkeypatch):
    surrogate = Surrogate("w2")
    problem = MajorantProblem(20, surrogate.bend)
    upper, _ = surrogate.priced(problem.u, np.float64(0.2))
    survival = survival_of(20, [0.05, 0.3])
    good, _ = problem.solve(upper, survival)
    solver = optimize.linprog

    def careless(*args, **keywords):
        answer = solver(*args, **keywords)
        answer.x = answer.x * 0.97 - 1e-3
        return answer

    monkeypatch.setattr(optimize, "linprog", careless)
    lifted, _ = problem.solve(upper, survival)
    assert slack_off_the_grid(problem, lifted, surrogate, 0.2) >= 1e-13
    assert np.all(lifted.heights >= 0)
    assert lifted.mean_upper(survival) > good.mean_upper(survival)

    monkeypatch.setattr(optimize, "linprog", lambda *_, **__: optimize.OptimizeResult(x=None))
    trivial, _ = problem.solve(upper, survival)
    assert trivial.mean_upper(survival) == pytest.approx(1.0)


@pytest.mark.parametrize("price", [0.05, 0.3, 2.0])
@pytest.mark.parametrize("mean", [0.02, 0.2, 0.7])
def test_one_draw_gives_the_concave_envelope(price, mean):
    surrogate = Surrogate("w2")
    problem = MajorantProblem(1, surrogate.bend)
    upper, _ = surrogate.priced(problem.u, np.float64(price))
    majorant, _ = problem.solve(upper, np.array([mean]))
    # The envelope at `mean` is the best chord over points on either side of it.
    p = special.ndtr(np.linspace(-9, 9, 1501))
    value, _ = surrogate.priced(special.ndtri(p), np.float64(price))
    left, right = np.append(0.0, p[p <= mean]), np.append(p[p > mean], 1.0)
    low, high = np.append(0.0, value[p <= mean]), np.append(value[p > mean], 1.0)
    share = (right - mean) / (right - left[:, None])
    envelope = np.max(share * low[:, None] + (1 - share) * high)
    assert envelope - 1e-9 <= majorant.mean_upper(np.array([mean])) <= envelope + 1.5 * SLACK


def test_costs_of_the_targets_are_the_slope_in_the_price():
    surrogate = Surrogate("w2")
    problem = MajorantProblem(20, surrogate.bend)
    survival = survival_of(20, [0.02, 0.1, 0.4]) * 0.95 + 0.02

    def value(price):
        upper, spent = surrogate.priced(problem.u, np.float64(price))
        majorant, costs = problem.solve(upper, survival)
        return majorant.mean_upper(survival), -(costs @ spent)

    # The value is piecewise smooth and repaired by up to SLACK, hence the wide difference.
    difference = (value(0.33)[0] - value(0.27)[0]) / 0.06
    assert value(0.3)[1] == pytest.approx(difference, rel=0.03)


def test_is_close_to_the_exact_mean_when_draws_are_many():
    surrogate = Surrogate("w2")
    law = [0.02, 0.1, 0.4]
    truth = np.mean(surrogate.priced(special.ndtri(law), np.float64(0.3))[0])
    gaps = []
    for draws in (1, 5, 20, 80):
        problem = MajorantProblem(draws, surrogate.bend)
        upper, _ = surrogate.priced(problem.u, np.float64(0.3))
        survival = survival_of(draws, law)
        gaps.append(problem.solve(upper, survival)[0].mean_upper(survival) - truth)
    assert gaps == sorted(gaps, reverse=True)
    assert 0 <= gaps[-1] < 0.005
