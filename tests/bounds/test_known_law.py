"""Bounds where the law of the counts is known: no confidence bound can fail, so none may be below the worst case."""

import itertools

import numpy as np
import pytest
from scipy import optimize, special, stats

from rhobust.bounds import (
    SecondStage,
    certified_threshold,
    conformal,
    mixture_loss,
    population,
    population_loss,
    subpopulation,
    subpopulation_loss,
)
from rhobust.bounds.majorant import CountBounds, count_bounds, jumps, second_jumps

EPS = (0.0, 1e-9, 0.01, 0.3, 1.0, 2.0, 5.0, 1e6)
GAMMA = (1.0, 1 + 1e-7, 1.5, 10.0, 1e3, 1e9, 1e15)


def law_of_counts(draws, p, weights, further=0):
    """The exact probabilities that `count_bounds` bounds, for errors of probability p with these weights."""
    steps = jumps(draws)
    second = np.empty(0)
    if further:
        tail = stats.binom.sf(second_jumps(further) - 1, further, p[:, None])
        second = (weights * (1 - p) ** draws) @ np.column_stack([tail, stats.binom.pmf(1, further, p)])
    survival = weights @ stats.binom.sf(steps - 1, draws, p[:, None])
    return CountBounds(survival, float(weights @ stats.binom.pmf(1, draws, p)), float(weights @ p), second)


def loss(u, votes, agree=None):
    """How often at least so many of the votes are wrong."""
    if votes is None:
        return np.where(u >= 0, 1.0, 0.0)
    needed = agree or (votes + 1) // 2
    return special.betainc(needed, votes - needed + 1, special.ndtr(u))


def worst_case(p, weights, eps, cost, votes, agree=None, gamma=1.0):
    """What half-spaces lose where mass is reweighted by up to gamma and moved: a linear programme over distances."""
    u, most = special.ndtri(p), min(eps, 60.0)
    moves = np.unique([0.0, most, *np.geomspace(1e-3, 60, 150), *np.abs(u[np.isfinite(u)])])
    if cost == "winf":
        moves = np.array([most])
    lost = np.where(np.isfinite(u)[:, None], loss(np.nan_to_num(u)[:, None] + moves, votes, agree), (p > 0.5)[:, None])
    spent = moves**2 if cost == "w2" else moves
    atoms = np.kron(np.eye(p.size), np.ones(moves.size))
    rows, limits = atoms, gamma * weights
    if cost != "winf":
        rows, limits = np.vstack([atoms, np.tile(spent, p.size)]), np.append(limits, eps**2 if cost == "w2" else eps)
    found = optimize.linprog(
        -lost.ravel(), A_ub=rows, b_ub=limits, A_eq=np.ones((1, lost.size)), b_eq=[1.0], method="highs"
    )
    return min(-found.fun, 1.0)


def extreme(rng):
    """A few error probabilities, some of them 0, 1 or next to these, with equal or very unequal weights."""
    size = rng.integers(1, 5)
    kinds = (0.0, 1.0, 10 ** rng.uniform(-14, -2), 1 - 10 ** rng.uniform(-12, -2), rng.random(), 0.5)
    p = np.array([kinds[rng.integers(len(kinds))] for _ in range(size)])
    weights = rng.dirichlet(np.ones(size)) if rng.random() < 0.7 else np.full(size, 1e-6)
    weights[0] = 1 - weights[1:].sum()
    return p, weights


def known(monkeypatch, laws):
    """Let every bound know the law of counts of samples of each size."""

    def exact(errors, draws, alpha, second=None):
        return law_of_counts(draws, *laws[errors.size], 0 if second is None else second.draws)

    for module in (population, subpopulation, conformal):
        monkeypatch.setattr(module, "count_bounds", exact)


@pytest.mark.parametrize("cases", [range(2), pytest.param(range(2, 120), marks=pytest.mark.slow)], ids=["few", "many"])
def test_no_classifier_cost_or_second_stage_errs_more_than_its_bound(monkeypatch, cases):
    for seed in cases:
        rng = np.random.default_rng(seed)
        p, weights = extreme(rng)
        known(monkeypatch, {1: (p, weights)})
        draws, further = int(rng.choice([1, 2, 5, 20, 50])), int(rng.choice([0, 0, 1, 40]))
        votes = [1, 1, 3, 5, None][rng.integers(5)]
        agree = int(rng.integers(1, votes + 1)) if votes and rng.random() < 0.5 else None
        cost, eps = str(rng.choice(["w1", "w2", "winf"])), float(rng.choice(EPS))
        gamma, outliers = float(rng.choice(GAMMA)), float(rng.choice([0.0, 0.01, 0.999]))
        second = SecondStage(further, [True], [0]) if further else None
        found = population_loss([0], draws, eps**2, 1.0, 0.1, cost=cost, votes=votes, agree=agree, second=second)
        assert worst_case(p, weights, eps, cost, votes, agree) - 1e-7 <= found <= 1, seed
        found = subpopulation_loss(
            [0], draws, eps**2, 1.0, 0.1, gamma=[gamma], outliers=outliers, cost=cost, votes=votes, second=second
        )[0, 0]
        rest = worst_case(p, weights, eps, cost, votes, gamma=gamma / (1 - outliers))
        assert outliers + (1 - outliers) * rest - 1e-7 <= found <= 1, seed


def test_a_factor_beyond_all_measure_does_not_turn_the_solvers_tolerance_into_a_bound(monkeypatch):
    # The programme over eta ends at 1 up to a tolerance; beyond 1 a tail would be negative, times gamma.
    p = np.array([0.0, 0.16374165, 0.64572137, 0.99996434])
    weights = np.array([0.26520629, 0.11877953, 0.30882782, 0.30718636])
    known(monkeypatch, {1: (p, weights)})
    second = SecondStage(1, [True], [0])
    found = subpopulation_loss([0], 20, 1e-4, 1.0, 0.1, gamma=[1e12], outliers=0.999, votes=None, second=second)
    assert (found == 1).all()


@pytest.mark.parametrize("seed", range(4))
def test_no_group_and_no_mixture_errs_more_than_its_bound(monkeypatch, seed):
    rng, sizes = np.random.default_rng(seed), (3, 5, 11)
    laws = [extreme(rng) for _ in sizes]
    shares = np.array(sizes) / sum(sizes)
    together = (
        np.concatenate([p for p, _ in laws]),
        np.concatenate([share * weights for share, (_, weights) in zip(shares, laws, strict=True)]),
    )
    known(monkeypatch, {**dict(zip(sizes, laws, strict=True)), sum(sizes): together})
    eps, tv, votes = float(rng.choice(EPS)), float(rng.choice([0.0, 0.1, 0.5, 1.0])), [1, 3, None][seed % 3]
    found = mixture_loss([np.zeros(size) for size in sizes], 10, eps**2, 1.0, 0.1, tv=[tv], votes=votes)
    for (p, weights), bound in zip(laws, found.groups[:, 0], strict=True):
        assert worst_case(p, weights, eps, "w2", votes) - 1e-7 <= bound <= 1
    for order in itertools.permutations(range(3)):
        moved, left = shares.copy(), tv
        for group in order[:-1]:
            taken = min(moved[group], left)
            moved[group], moved[order[-1]], left = moved[group] - taken, moved[order[-1]] + taken, left - taken
        weights = np.concatenate([share * weights for share, (_, weights) in zip(moved, laws, strict=True)])
        assert worst_case(together[0], weights, eps, "w2", votes) - 1e-7 <= found.mixtures[0, 0] <= 1


@pytest.mark.parametrize("eps", [0.0, 0.2, 1.0])
def test_no_threshold_is_chosen_whose_sets_miss_more_than_the_target(monkeypatch, eps):
    # Sets of one place miss the label at one rate everywhere; the last column of counts tells which place is asked.
    rates = np.array([0.0, 1e-9, 0.003, 0.02, 0.05, 0.05 + 1e-9, 0.2, 1.0])
    asked = iter(rates[1:])
    monkeypatch.setattr(conformal, "count_bounds", lambda *_: law_of_counts(10, np.array([next(asked)]), np.ones(1)))
    target = worst_case(rates[[4]], np.ones(1), eps, "w2", 1)
    misses = np.arange(len(rates))[None]
    place = certified_threshold(misses, 10, eps**2, 1.0, 0.1, target=target).place
    assert place in ((3, 4) if eps == 0 else (2, 3))


@pytest.mark.parametrize(("n", "draws", "alpha"), [(1, 1, 0.9), (2, 2, 0.3), (3, 2, 0.05), (6, 1, 0.3)])
def test_the_bounds_of_counts_fail_together_no_more_often_than_alpha_exactly(n, draws, alpha):
    outcomes = list(itertools.product(range(draws + 1), repeat=n))
    found = [count_bounds(np.array(one, float), draws, alpha) for one in outcomes]
    for share, p in itertools.product([0.01, 0.1, 0.5, 0.9, 1.0], [1e-9, 0.05, 0.5, 0.99, 1.0]):
        atoms, weights = np.array([0.0, p]), np.array([1 - share, share])
        each = weights @ stats.binom.pmf(np.arange(draws + 1), draws, atoms[:, None])
        truth = law_of_counts(draws, atoms, weights)
        failed = sum(
            np.prod(each[list(one)])
            for one, bounds in zip(outcomes, found, strict=True)
            if any((np.asarray(got) < np.asarray(true) - 1e-14).any() for got, true in zip(bounds, truth, strict=True))
        )
        assert failed <= alpha


@pytest.mark.parametrize(("n", "draws", "further"), [(1, 1, 1), (2, 1, 2), (2, 2, 3)])
def test_the_bounds_of_both_stages_fail_together_no_more_often_than_alpha_exactly(n, draws, further):
    alpha, counts = 0.4, list(itertools.product(range(draws + 1), range(further + 1)))
    outcomes = list(itertools.product(counts, repeat=n))
    found = [
        count_bounds(np.array(first, float), draws, alpha, SecondStage(further, np.ones(n, bool), np.array(second)))
        for first, second in (zip(*one, strict=True) for one in outcomes)
    ]
    for share, p in itertools.product([0.1, 0.5, 1.0], [0.01, 0.3, 0.6]):
        atoms, weights = np.array([0.0, p]), np.array([1 - share, share])
        each = {
            (k, more): weights @ (stats.binom.pmf(k, draws, atoms) * stats.binom.pmf(more, further, atoms))
            for k, more in counts
        }
        truth = law_of_counts(draws, atoms, weights, further)
        failed = sum(
            np.prod([each[pair] for pair in one])
            for one, bounds in zip(outcomes, found, strict=True)
            if any((np.asarray(got) < np.asarray(true) - 1e-14).any() for got, true in zip(bounds, truth, strict=True))
        )
        assert failed <= alpha
