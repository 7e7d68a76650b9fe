import numpy as np
import pytest
from scipy import stats

from rhobust.bounds import (
    betting_upper,
    clopper_pearson,
    k_vote_worst_case,
    majority_worst_case,
    population_loss_intervals,
    population_loss_uppers,
    sample_loss,
    survival_upper,
    worst_case_loss,
)

ATOMS = np.array([0.01, 0.2, 0.6])
RHO = np.array([0.0, 0.0025, 0.01, 0.0625, 0.25])


def test_intervals_by_hand():
    # Without a shift T(p) = p, so the bound is the mean of the interval ends under the band, plus a.
    errors = np.random.default_rng(11).binomial(30, np.repeat(ATOMS, 100))
    ends = clopper_pearson(np.arange(31), 30, 0.02, "upper")
    band = survival_upper(errors, np.arange(1, 31), 0.01)
    by_hand = ends[0] + np.diff(ends) @ band + 0.02
    found = population_loss_intervals(errors, 30, 0.0, 0.5, 0.01, interval_alpha=0.02)
    assert by_hand <= found <= by_hand + 5e-12


def test_intervals_of_the_majority_by_hand():
    # Under W-infinity a point is lost when its interval end reaches Phi(-eps / sigma).
    errors = np.random.default_rng(12).binomial(400, np.repeat(ATOMS, 100))
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
    errors = rng.binomial(1000, rng.choice(ATOMS, 5000))
    found = population_loss_intervals(errors, 1000, RHO, 0.5, 1e-3, votes=votes)
    truth = majority_worst_case(ATOMS, RHO, 0.5) if votes is None else k_vote_worst_case(ATOMS, votes, RHO, 0.5)
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
    errors = np.random.default_rng(6).binomial(2000, np.repeat(ATOMS, 50))
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
    p = np.repeat(ATOMS, 10)
    truth = worst_case_loss(p, 0.05, 0.5, cost="winf")
    found = [sample_loss(rng.binomial(40, p), 40, 0.05, 0.5, 0.2, cost="winf") for _ in range(300)]
    assert np.count_nonzero(np.array(found) < truth) <= stats.binom.isf(1e-6, 300, 0.2)
