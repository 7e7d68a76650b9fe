"""Thresholds by fixed-sequence testing, against half-spaces whose worst miss rate is known."""

import numpy as np
import pytest

from rhobust.bounds import certified_threshold, population_loss, worst_case_loss

SIGMA = 0.5
RATES = np.array([0.0, 0.005, 0.02, 0.06, 0.2, 0.5])
"""Miss rates of six nested sets, the same at every point."""


def sampled(rng, n, draws, rates=RATES):
    """Nested misses: one uniform number per noise sample decides all places."""
    return (rng.random((n, draws, 1)) < rates).sum(axis=1)


@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_the_last_place_within_the_target_is_found(eps):
    truth = np.array([0.0, *(worst_case_loss([rate], eps**2, SIGMA) for rate in RATES[1:])])
    misses = sampled(np.random.default_rng(0), 4000, 10)
    for target in (0.04, 0.12):
        found = certified_threshold(misses, 10, eps**2, SIGMA, 0.01, target=target)
        assert truth[found.place] <= target
        assert found.place >= np.flatnonzero(truth + 0.02 <= target)[-1]
        assert found.miss <= target
        bound = population_loss(misses[:, found.place + 1], 10, eps**2, SIGMA, 0.01)
        assert bound > target  # the next place fails its own test


def test_the_first_place_needs_no_proof():
    found = certified_threshold(sampled(np.random.default_rng(1), 20, 5), 5, 0.25, SIGMA, 0.01, target=0.01)
    assert found == (0, 0.0)


def test_a_failure_ends_the_sequence():
    rng = np.random.default_rng(2)
    misses = np.stack([np.zeros(500), rng.binomial(5, 0.3, 500)], axis=1)
    misses = np.concatenate([misses, misses[:, 1:]], axis=1)
    assert certified_threshold(misses, 5, 0.0, SIGMA, 0.01, target=0.1).place == 0


def test_several_noisy_inputs_make_better_sets():
    misses = sampled(np.random.default_rng(3), 4000, 10)
    one, three = (certified_threshold(misses, 10, 0.0, SIGMA, 0.01, target=0.12, votes=votes).place for votes in (1, 3))
    # At a rate of 0.2 two of three sets miss with probability 0.104.
    assert (one, three) == (3, 4)


def test_a_false_threshold_is_chosen_rarely():
    # 40 repetitions at 20%, false-alarm rate below 1e-6: at the fourth place the true rate is just above the target.
    rng, wrong = np.random.default_rng(4), 0
    for _ in range(40):
        found = certified_threshold(sampled(rng, 100, 4), 4, 0.0, SIGMA, 0.2, target=0.059)
        wrong += found.place >= 3
    assert wrong <= 22


@pytest.mark.parametrize(
    ("misses", "message"),
    [
        ([[0, 6]], "misses must hold counts up to draws = 5"),
        ([0, 1], "one row per point"),
        ([[1, 2]], "misses must be 0 at the first place and never fall"),
        ([[0, 2, 1]], "misses must be 0 at the first place and never fall"),
    ],
)
def test_bad_counts_are_refused(misses, message):
    with pytest.raises(ValueError, match=message):
        certified_threshold(misses, 5, 0.0, SIGMA, 0.1, target=0.1)
