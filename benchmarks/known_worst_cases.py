"""Simulated data sets of half-spaces whose worst case is known, for every bound about distributions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special, stats

from rhobust.bounds import (
    SecondStage,
    betting_upper,
    certified_threshold,
    clopper_pearson,
    measured_loss,
    mixture_loss,
    population_loss,
    psi,
    recentred_loss,
    shuffle,
    subpopulation_loss,
    worst_case_loss,
)
from rhobust.bounds.majorant import MEAN, ONCE, SECOND, SECOND_ONCE, jumps, second_jumps
from rhobust.bounds.measured_shift import PLAIN, cost_functions
from rhobust.bounds.subpopulation import PER_GROUP, POOLED

KAPPAS = np.geomspace(1e-3, 50, 1500)

Data = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One bound in one setting with a known worst case."""

    bound: str
    setting: str
    alpha: float
    truth: float
    """The true worst-case error; of prediction sets, the place at which a choice becomes false."""
    sample: Callable[[np.random.Generator, int], Data]
    """Draws so many data sets, along the first axis of every array."""
    failed: Callable[[Data], np.ndarray]
    """Whether a confidence bound about the counts of a data set fails, for each."""
    compute: Callable[[Data], float]
    """The bound from one data set; of prediction sets, a number below `truth` if the choice is false."""


def simultaneous(counts: np.ndarray, draws: int, alpha: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The bounds of `count_bounds` for many samples at once, one per row: survival, once and mean."""
    n, steps = counts.shape[1], jumps(draws)
    reached = np.stack([(counts >= step).sum(axis=1) for step in steps], axis=1)
    shares = 1 / np.arange(1, steps.size + 1)
    each = (1 - MEAN - ONCE) * alpha * shares / shares.sum()
    table = np.asarray(clopper_pearson(np.arange(n + 1)[:, None], n, each, "upper"))
    survival = np.minimum.accumulate(np.take_along_axis(table, reached, axis=0), axis=1)
    singles = np.asarray(clopper_pearson(np.arange(n + 1), n, ONCE * alpha, "upper"))
    mean = np.asarray(betting_upper(shuffle(counts.T).T / draws, MEAN * alpha))
    return survival, singles[(counts == 1).sum(axis=1)], mean


def fails(counts: np.ndarray, draws: int, alpha: float, p: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Whether a bound of the counts in a row is below its truth, if errors have probability p with these weights."""
    (survival, singles, mean), steps = simultaneous(counts, draws, alpha), jumps(draws)
    law = weights @ stats.binom.sf(steps - 1, draws, p[:, None])
    once = weights @ stats.binom.pmf(1, draws, p)
    return (survival < law).any(axis=1) | (singles < once) | (mean < weights @ p)


def dual(p: np.ndarray, weights: np.ndarray, distance: float, gamma: float = 1.0) -> float:
    """The least over kappa, eta of kappa r / 2 + eta + gamma E (Psi - eta)_+ for known error probabilities."""
    values = np.asarray(psi(p[:, None], KAPPAS)) if distance else np.repeat(p[:, None], KAPPAS.size, axis=1)
    etas = np.concatenate([np.zeros((1, KAPPAS.size)), values])
    tails = np.einsum("i,ijk->jk", weights, np.maximum(values[:, None] - etas, 0.0))
    return float((KAPPAS * distance**2 / 2 * (distance > 0) + (etas + gamma * tails).min(axis=0)).min())


def populations(n: int, draws: int, alpha: float, p: list[float], distance: float) -> Case:
    """Transport alone."""
    atoms, weights = np.array(p), np.full(len(p), 1 / len(p))
    return Case(
        "one distribution",
        f"n {n}, draws {draws}, errors {p}, eps {distance:g} sigma",
        alpha,
        float(worst_case_loss(atoms, distance**2, 1.0)),
        lambda rng, sets: {"errors": rng.binomial(draws, rng.choice(atoms, (sets, n)))},
        lambda data: fails(data["errors"], draws, alpha, atoms, weights),
        lambda data: float(population_loss(data["errors"], draws, distance**2, 1.0, alpha)),
    )


def two_stages(n: int, draws: int, further: int, share: float, alpha: float, p: list[float], distance: float) -> Case:
    """Transport alone, with further noise samples at some of the points without an error."""
    atoms, weights = np.array(p), np.full(len(p), 1 / len(p))
    steps = second_jumps(further)

    def sample(rng: np.random.Generator, sets: int) -> Data:
        p = rng.choice(atoms, (sets, n))
        chosen = rng.random((sets, n)) < share
        chosen[~chosen.any(axis=1), 0] = True
        return {"errors": rng.binomial(draws, p), "chosen": chosen, "further": rng.binomial(further, p)}

    def failed(data: Data) -> np.ndarray:
        last = np.where(data["chosen"] & (data["errors"] == 0), data["further"], -1)
        reached = np.stack([*((last >= step).sum(axis=1) for step in steps), (last == 1).sum(axis=1)], axis=1)
        shares = 1 / np.arange(1, steps.size + 1)
        each = SECOND * alpha * np.append((1 - SECOND_ONCE) * shares / shares.sum(), SECOND_ONCE)
        bounds = np.asarray(clopper_pearson(reached, data["chosen"].sum(axis=1)[:, None], each, "upper"))
        none = weights * (1 - atoms) ** draws
        law = none @ np.column_stack(
            [stats.binom.sf(steps - 1, further, atoms[:, None]), stats.binom.pmf(1, further, atoms)]
        )
        return (bounds < law).any(axis=1) | fails(data["errors"], draws, (1 - SECOND) * alpha, atoms, weights)

    def compute(data: Data) -> float:
        second = SecondStage(further, data["chosen"], data["further"])
        return float(population_loss(data["errors"], draws, distance**2, 1.0, alpha, second=second))

    setting = f"n {n}, draws {draws} and {further} at {share:g}, errors {p}, eps {distance:g} sigma"
    truth = float(worst_case_loss(atoms, distance**2, 1.0))
    return Case("two stages of noise samples", setting, alpha, truth, sample, failed, compute)


def subpopulations(n: int, draws: int, alpha: float, p: list[float], gamma: float, distance: float) -> Case:
    """Reweighting by up to gamma and transport at once."""
    atoms, weights = np.array(p), np.full(len(p), 1 / len(p))
    return Case(
        "subpopulations",
        f"n {n}, draws {draws}, errors {p}, gamma {gamma:g}, eps {distance:g} sigma",
        alpha,
        dual(atoms, weights, distance, gamma),
        lambda rng, sets: {"errors": rng.binomial(draws, rng.choice(atoms, (sets, n)))},
        lambda data: fails(data["errors"], draws, alpha, atoms, weights),
        lambda data: float(subpopulation_loss(data["errors"], draws, distance**2, 1.0, alpha, gamma=[gamma])[0, 0]),
    )


def outliers(n: int, draws: int, alpha: float, p: list[float], share: float, distance: float) -> Case:
    """A share of the inputs becomes anything, the easiest ones for instance, and the rest moves."""
    atoms, weights = np.array(p), np.full(len(p), 1 / len(p))
    common = {"gamma": [1.0], "outliers": share}
    return Case(
        "outliers",
        f"n {n}, draws {draws}, errors {p}, share {share:g}, eps {distance:g} sigma",
        alpha,
        share + (1 - share) * dual(atoms, weights, distance, 1 / (1 - share)),
        lambda rng, sets: {"errors": rng.binomial(draws, rng.choice(atoms, (sets, n)))},
        lambda data: fails(data["errors"], draws, alpha, atoms, weights),
        lambda data: float(subpopulation_loss(data["errors"], draws, distance**2, 1.0, alpha, **common)[0, 0]),
    )


def mixtures(n: int, draws: int, alpha: float, p: list[float], tv: float, distance: float) -> Case:
    """Groups of equal share whose shares change, and transport."""
    rates, groups = np.array(p), len(p)
    values = np.asarray(psi(rates[:, None], KAPPAS)) if distance else np.repeat(rates[:, None], KAPPAS.size, axis=1)
    order = values.mean(axis=1).argsort()
    shares, left = np.full(groups, 1 / groups), tv
    for group in order[:-1]:
        taken = min(shares[group], left)
        shares[group], left = shares[group] - taken, left - taken
        shares[order[-1]] += taken

    def sample(rng: np.random.Generator, sets: int) -> Data:
        group = rng.integers(groups, size=(sets, n))
        return {"group": group, "errors": rng.binomial(draws, rates[group])}

    def failed(data: Data) -> np.ndarray:
        errors, group = data["errors"], data["group"]
        found = fails(errors, draws, POOLED * alpha, rates, np.full(groups, 1 / groups))
        sizes = (group[:, :, None] == np.arange(groups)).mean(axis=1)
        rest = (1 - POOLED - PER_GROUP) * alpha
        found |= np.abs(sizes - 1 / groups).sum(axis=1) / 2 > np.sqrt((groups * np.log(2) + np.log(1 / rest)) / (2 * n))
        each = PER_GROUP * alpha / groups
        for row, names in enumerate(group):
            for g in range(groups) if not found[row] else ():
                found[row] |= fails(errors[row, names == g][None], draws, each, rates[[g]], np.ones(1))[0]
        return found

    def compute(data: Data) -> float:
        counts = [data["errors"][data["group"] == g] for g in range(groups)]
        return float(mixture_loss(counts, draws, distance**2, 1.0, alpha, tv=[tv]).mixtures[0, 0])

    return Case(
        "mixtures of groups",
        f"n {n}, draws {draws}, errors {p}, tv {tv:g}, eps {distance:g} sigma",
        alpha,
        float((KAPPAS * distance**2 / 2 + shares @ values).min()),
        sample,
        failed,
        compute,
    )


def changes(n: int, pairs: int, draws: int, alpha: float, margins: list[float], nearer: float, distance: float) -> Case:
    """Half-spaces before and after a change that brings every second input nearer to the border; no labels after it."""
    before = np.repeat(margins, 2)
    after = before - np.tile([nearer, 0.0], len(margins))
    weights = np.full(before.size, 1 / before.size)
    wrong, p = special.ndtr(-before), special.ndtr(-after)
    mistaken = stats.binom.sf((draws - 1) // 2, draws, wrong)  # half of the votes or more

    def sample(rng: np.random.Generator, sets: int) -> Data:
        point, pair = rng.integers(before.size, size=(sets, n)), rng.integers(before.size, size=(sets, pairs))
        noise = rng.standard_normal((sets, pairs, draws))
        votes, changed = (noise < margin[pair][:, :, None] for margin in (before, after))
        mislabelled = rng.random((sets, pairs)) < mistaken[pair]
        return {
            "disagreements": (changed == mislabelled[:, :, None]).sum(2),
            "differing": (votes != changed).sum(2),
            "mislabelled": rng.random((sets, n)) < mistaken[point],
            "errors": rng.binomial(draws, wrong[point]),
        }

    def failed(data: Data) -> np.ndarray:
        plain, share = PLAIN * alpha, pairs / (pairs + n)
        pseudo = alpha - plain
        bound = np.asarray(clopper_pearson(data["mislabelled"].sum(axis=1), n, share * pseudo, "upper"))
        against = np.concatenate([p, 1 - p]), np.concatenate([weights * (1 - mistaken), weights * mistaken])
        return (
            (bound < weights @ mistaken)
            | fails(data["disagreements"], draws, (1 - share) * pseudo, *against)
            | fails(data["errors"], draws, plain / 2, wrong, weights)
            | fails(data["differing"], draws, plain / 2, p - wrong, weights)
        )

    def compute(data: Data) -> float:
        rest = {key: data[key] for key in ("mislabelled", "errors", "differing")}
        return float(recentred_loss(data["disagreements"], draws, distance**2, 1.0, alpha, **rest).loss[0])

    setting = f"n {n}, pairs {pairs}, draws {draws}, margins {margins} less {nearer:g}, eps {distance:g} sigma"
    truth = float(worst_case_loss(p, distance**2, 1.0))
    return Case("the changed data", setting, alpha, truth, sample, failed, compute)


def measured(
    n: int, pairs: int, draws: int, alpha: float, margins: list[float], moves: list[float], votes: int | None = 1
) -> Case:
    """Half-spaces before a change that moves inputs of each margin by its own distance, straight to the border."""
    before, moved, reach = np.array(margins), np.array(moves), {"least": 0.125, "most": 4.0}
    p, weights = special.ndtr(-before), np.full(before.size, 1 / before.size)
    after = special.ndtr(moved - before)
    truth = after if votes == 1 else stats.binom.sf((votes + 1) // 2 - 1, votes, after) if votes else after >= 0.5
    free, scale = cost_functions(**reach)
    costs = np.minimum(np.square(np.maximum(moved[:, None] - free, 0) / scale), 1.0)

    def sample(rng: np.random.Generator, sets: int) -> Data:
        kind = rng.integers(before.size, size=(sets, pairs))
        errors = rng.binomial(draws, p[rng.integers(before.size, size=(sets, n))])
        return {"errors": errors, "kind": kind, "distances": moved[kind]}

    def failed(data: Data) -> np.ndarray:
        found = fails(data["errors"], draws, alpha / 2, p, weights)
        kind = shuffle(data["kind"].T).T
        for column in np.unique(costs, axis=1).T:
            found |= np.asarray(betting_upper(column[kind], alpha / 2 / free.size)) < weights @ column
        return found

    def compute(data: Data) -> float:
        return measured_loss(data["errors"], draws, data["distances"], 1.0, alpha, **reach, votes=votes).loss

    who = {1: "one vote", None: "majority"}.get(votes, f"{votes} votes")
    setting = f"n {n}, pairs {pairs}, draws {draws}, margins {margins} perturbed by {moves} sigma, {who}"
    return Case("a change by its distances", setting, alpha, float(weights @ truth), sample, failed, compute)


def sets_of_classes(n: int, draws: int, alpha: float, rates: list[float], target: float, distance: float) -> Case:
    """Nested prediction sets, each missing the label at one rate everywhere; a choice beyond the target is false."""
    places = np.array([0.0, *rates])
    worst = np.array([0.0, *(float(worst_case_loss([rate], distance**2, 1.0)) for rate in rates)])
    false = int(np.flatnonzero(worst > target)[0])
    return Case(
        "prediction sets",
        f"n {n}, draws {draws}, misses {rates}, target {target:g}, eps {distance:g} sigma",
        alpha,
        float(false),
        lambda rng, sets: {"misses": _nested(rng, sets, n, draws, places)},
        lambda data: fails(data["misses"][:, :, false], draws, alpha, places[[false]], np.ones(1)),
        lambda data: float(
            2 * false - 1 - certified_threshold(data["misses"], draws, distance**2, 1.0, alpha, target=target).place
        ),
    )


def _nested(rng: np.random.Generator, sets: int, n: int, draws: int, rates: np.ndarray) -> np.ndarray:
    """Misses of nested sets: one uniform number per noise sample decides all places."""
    uniform = rng.random((sets, n, draws))
    return np.stack([(uniform < rate).sum(axis=2) for rate in rates], axis=2)


def abstention(n: int, draws: int, alpha: float, p: list[float], votes: int, agree: int, distance: float) -> Case:
    """Wrong answers of a classifier that answers only where enough votes agree."""
    atoms, weights = np.array(p), np.full(len(p), 1 / len(p))
    moves = np.linspace(0, 8, 2001)
    lost = stats.binom.sf(agree - 1, votes, special.ndtr(special.ndtri(atoms)[:, None] + moves))
    values = np.stack([(lost - kappa * moves**2 / 2).max(axis=1) for kappa in KAPPAS], axis=1)
    return Case(
        "answers only when sure",
        f"n {n}, draws {draws}, errors {p}, {agree} of {votes}, eps {distance:g} sigma",
        alpha,
        float((KAPPAS * distance**2 / 2 + weights @ values).min()),
        lambda rng, sets: {"errors": rng.binomial(draws, rng.choice(atoms, (sets, n)))},
        lambda data: fails(data["errors"], draws, alpha, atoms, weights),
        lambda data: float(population_loss(data["errors"], draws, distance**2, 1.0, alpha, votes=votes, agree=agree)),
    )


def cases() -> list[Case]:
    """Three settings per bound: few points and a large alpha, so that failures can be seen at all."""
    return [
        changes(150, 100, 5, 0.1, [2.5, 1.0], 0.5, 0.5),
        changes(100, 200, 10, 0.05, [0.6, 0.3], 0.2, 0.0),
        changes(60, 60, 3, 0.2, [1.2], 0.4, 0.3),
        populations(100, 5, 0.1, [0.02, 0.2], 0.5),
        populations(300, 10, 0.05, [0.01, 0.1, 0.4], 1.0),
        populations(50, 2, 0.2, [0.1], 0.0),
        two_stages(200, 5, 40, 0.5, 0.1, [0.01, 0.2], 1.0),
        two_stages(300, 5, 100, 0.3, 0.05, [0.001, 0.02, 0.4], 2.0),
        two_stages(60, 2, 10, 1.0, 0.2, [0.05], 0.5),
        subpopulations(100, 5, 0.1, [0.02, 0.2], 2.0, 0.5),
        subpopulations(300, 10, 0.05, [0.01, 0.1, 0.4], 4.0, 0.3),
        subpopulations(50, 2, 0.2, [0.1], 1.5, 0.0),
        mixtures(200, 5, 0.1, [0.05, 0.2], 0.2, 0.5),
        mixtures(300, 10, 0.05, [0.02, 0.1, 0.3], 1.0, 0.3),
        mixtures(100, 3, 0.2, [0.1, 0.1], 0.0, 0.0),
        measured(100, 60, 5, 0.1, [2.5, 1.0], [0.5, 0.25]),
        measured(200, 200, 10, 0.05, [3.0, 2.0, 1.0], [0.0, 1.0, 3.0], votes=3),
        measured(50, 30, 3, 0.2, [1.5], [1.0]),
        outliers(100, 5, 0.1, [0.02, 0.2], 0.05, 0.5),
        outliers(300, 10, 0.05, [0.01, 0.1, 0.4], 0.2, 0.3),
        outliers(50, 2, 0.2, [0.1], 0.01, 0.0),
        sets_of_classes(100, 5, 0.1, [0.01, 0.03, 0.1], 0.09, 0.0),
        sets_of_classes(300, 10, 0.05, [0.01, 0.05, 0.1], 0.075, 0.2),
        sets_of_classes(50, 2, 0.2, [0.02, 0.15], 0.14, 0.0),
        abstention(100, 5, 0.1, [0.05, 0.3], 3, 3, 0.5),
        abstention(300, 10, 0.05, [0.02, 0.1, 0.4], 5, 4, 0.3),
        abstention(50, 4, 0.2, [0.2], 3, 2, 0.2),
    ]
