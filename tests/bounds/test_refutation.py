import pytest
from mpmath import mp, mpf
from scipy import stats

from rhobust.bounds import beyond_doubt, refuted_by_chance


@pytest.mark.parametrize("votes", [1, 19, 20, 100, 1000])
def test_votes_are_beyond_doubt_where_the_exact_tail_lies_below_one_in_a_million(votes):
    with mp.workdps(40):
        tail, exact = mpf(0), []
        for count in range(votes + 1):
            tail += mp.binomial(votes, count) / mpf(2) ** votes
            exact.append(tail < mpf(10) ** -6)
    assert [beyond_doubt(count, votes) for count in range(votes + 1)] == exact
    assert exact[0] is (votes >= 20)


def test_no_more_examples_than_chance_explains():
    for n, alpha, votings in ((1, 0.001, 5), (200, 0.001, 5), (10_000, 0.0, 50)):
        allowed, each = refuted_by_chance(n, alpha, votings), alpha + 1e-6 * votings
        assert stats.binom.sf(allowed, n, each) <= 1e-3 < stats.binom.sf(allowed - 1, n, each)
    assert refuted_by_chance(1000, 0.001, 10_000) > refuted_by_chance(1000, 0.001, 5)
    # Nineteen of twenty are too few for certificates of which each fails nine times in ten.
    assert refuted_by_chance(20, 0.9, 5) == refuted_by_chance(20, 0.001, 1_000_000) == 20


def test_of_none_none_are_refuted():
    assert refuted_by_chance(0, 0.001, 5) == 0
