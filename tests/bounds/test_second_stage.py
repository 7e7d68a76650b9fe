"""Further noise samples at points without an error: the majorant holds for every p, and large shifts cost less."""

import numpy as np
import pytest
from scipy import special, stats

from rhobust.bounds import SecondStage, population_loss, subpopulation_loss, worst_case_loss
from rhobust.bounds.majorant import CountBounds, MajorantProblem, count_bounds, jumps, second_jumps
from rhobust.bounds.surrogate import Surrogate

DRAWS, FURTHER = 10, 200


def second_law(p):
    """P(K = 0, L >= j) for each jump and P(K = 0, L = 1), one row per p, apart from the code under test."""
    p = np.asarray(p)[:, None]
    none = stats.binom.pmf(0, DRAWS, p)
    return none * np.hstack([stats.binom.sf(second_jumps(FURTHER) - 1, FURTHER, p), stats.binom.pmf(1, FURTHER, p)])


def known(law, margin=0.0):
    """The bounds where the law of p is known up to a margin, with a second stage."""
    p = np.asarray(law)
    survival = stats.binom.sf(jumps(DRAWS) - 1, DRAWS, p[:, None]).mean(axis=0)
    once = stats.binom.pmf(1, DRAWS, p).mean()
    return CountBounds(survival + margin, once + margin, p.mean() + margin, second_law(p).mean(axis=0) + margin)


@pytest.mark.parametrize("votes", [1, None])
def test_majorises_between_grid_points(votes):
    surrogate = Surrogate("w2", votes)
    problem = MajorantProblem(DRAWS, surrogate.curvature, FURTHER)
    penalty = np.float64(0.09)
    upper, _ = surrogate.penalised(problem.u, penalty)
    majorant, _ = problem.solve(upper, known([1e-6] * 95 + [0.9] * 5, 0.01))
    assert majorant.second.sum() > 0.05  # otherwise nothing is tested
    rng = np.random.default_rng(1)
    p = np.concatenate([rng.random(1000), special.ndtr(rng.uniform(-10, 10, 3000)), [0.0, 1.0]])
    k = np.arange(DRAWS + 1)
    rises = majorant.heights + majorant.slope / DRAWS
    h = majorant.base + np.concatenate([[0.0], np.cumsum(rises)]) + majorant.once * (k == 1)
    mean = stats.binom.pmf(k, DRAWS, p[:, None]) @ h + second_law(p) @ majorant.second
    assert np.min(mean - surrogate.penalised(special.ndtri(p), penalty)[0]) >= 1e-13


def like_mnist(n, rng):
    """Error probabilities of a good classifier: most margins are beyond three sigma."""
    ranks, margins = [0, 0.012, 0.03, 0.06, 0.15, 0.4, 1], [-1.5, 0, 1, 2, 3, 4.2, 7]
    return special.ndtr(-np.interp(rng.random(n), ranks, margins))


def test_at_equal_passes_it_certifies_more_beyond_sigma():
    rng = np.random.default_rng(0)
    p, rho = like_mnist(10_000, rng), np.square([1.5, 2.0])
    errors, chosen = rng.binomial(DRAWS, p), rng.random(p.size) < 0.05
    second = SecondStage(FURTHER, chosen, rng.binomial(FURTHER, p))
    assert DRAWS * p.size + FURTHER * np.sum(chosen & (errors == 0)) < 20 * p.size
    staged = population_loss(errors, DRAWS, rho, 1.0, 1e-3, second=second)
    plain = population_loss(rng.binomial(20, p), 20, rho, 1.0, 1e-3)
    assert np.all(staged > worst_case_loss(p, rho, 1.0))
    assert np.all(staged < plain - [0.002, 0.012])


def test_the_surface_over_subpopulations_uses_it_too():
    rng = np.random.default_rng(3)
    p = like_mnist(2000, rng)
    errors, second = rng.binomial(5, p), SecondStage(50, np.ones(2000, bool), rng.binomial(50, p))
    options = {"gamma": [2.0]}
    with_it = subpopulation_loss(errors, 5, 4.0, 1.0, 0.01, second=second, **options)
    without = subpopulation_loss(errors, 5, 4.0, 1.0, 0.01, **options)
    assert with_it[0, 0] < without[0, 0] - 0.05


def test_points_with_an_error_and_others_do_not_count():
    errors = np.array([0.0, 0, 0, 1, 2, 0])
    chosen = np.array([1, 1, 0, 1, 1, 1], dtype=bool)
    one = count_bounds(errors, 4, 0.1, SecondStage(8, chosen, [0, 1, 5, 3, 8, 2]))
    other = count_bounds(errors, 4, 0.1, SecondStage(8, chosen, [0, 1, 0, 0, 0, 2]))
    assert np.array_equal(one.second, other.second)
    assert one.mean == count_bounds(errors, 4, 0.05).mean


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (SecondStage(3, [True] * 3, [0, 0, 4]), "errors of the second stage must be in 0..3, got 4"),
        (SecondStage(3, [True] * 2, [0, 0, 0]), "must say of each of 3 points whether it is in"),
        (SecondStage(3, [False] * 3, [0, 0, 0]), "at least one"),
        (SecondStage(0, [True] * 3, [0, 0, 0]), "draws must be"),
        (SecondStage(3, [True] * 3, [0, 0.5, 0]), "errors of the second stage must be"),
    ],
)
def test_what_is_no_second_stage_is_refused(second, message):
    with pytest.raises(ValueError, match=message):
        population_loss([0, 1, 2], 2, 0.1, 1.0, 0.1, second=second)
