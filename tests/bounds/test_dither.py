import math

import numpy as np
import pytest
from scipy import stats

from rhobust.bounds import population_loss, randomized_counts, worst_case_loss


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
        ([[0.5, 3.2]], [[0.1, 0.1]], r"losses must lie in \[0, 3\], their bound, got 3.2"),
        ([[0.5, -0.1]], [[0.1, 0.1]], "their bound, got -0.1"),
        ([[0.5, math.nan]], [[0.1, 0.1]], "their bound, got nan"),
        ([0.5, 0.1], [0.1, 0.1], "one row a point and one column a draw"),
        ([[0.5, 0.1]], [[0.1]], "uniform must have the shape"),
        ([[0.5]], [[1.5]], r"uniform must lie in \[0, 1\]"),
    ],
)
def test_refuses(losses, uniform, message):
    with pytest.raises(ValueError, match=message):
        randomized_counts(losses, 3.0, uniform)
