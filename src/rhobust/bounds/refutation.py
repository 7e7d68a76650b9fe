"""When an attack refutes certificates: votes beyond doubt, on more examples than chance explains."""

from functools import cache

from scipy import special

from rhobust.bounds.confidence import failure_quantile

BEYOND_DOUBT = 1e-6
"""A vote is beyond doubt where a label of probability one half would get as few votes so rarely."""
CHANCE = 1e-3
"""Probability that sound certificates and fair votes are called contradictory."""


@cache
def beyond_doubt(label_votes: int, votes: int) -> bool:
    """Return whether so few votes for a label are no accident.

    Guarantee: if the label has at least one half of the probability under noise, the answer is True with probability
    at most `BEYOND_DOUBT`: it is True where P(Bin(votes, 1/2) <= label_votes) lies below that.

    Args:
        label_votes: Votes for the label.
        votes: Votes in all.
    """
    return bool(special.bdtr(label_votes, votes, 0.5) < BEYOND_DOUBT)


def refuted_by_chance(n: int, alpha: float, votings: int) -> int:
    """Return how many of n examples may be broken beyond doubt within their certified radius though all is sound.

    Guarantee: if the examples are independent, each gets a false certificate with probability at most alpha, and each
    is voted on at most `votings` times, then with probability at least 1 - `CHANCE` no more examples than these are
    refuted. One example is refuted only if its certificate is false or one of the votes on it is a fluke, so with
    probability at most alpha + votings `BEYOND_DOUBT`. Those that got no certificate count too: alpha bounds the
    probability of a false certificate, not the share of false ones among those that were given.

    Args:
        n: Attacked examples for which a certificate was sought; none are refuted of none.
        alpha: Probability that one certificate is false.
        votings: Votes on moved copies of one example, at most.
    """
    each = alpha + votings * BEYOND_DOUBT
    return failure_quantile(n, each, CHANCE) if n and each < 1 else n
