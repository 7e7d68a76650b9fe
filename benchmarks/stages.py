"""Noise samples of the distributional certificate for large shifts: one stage, two stages, and thousands per point.

Populations with known error probabilities are sampled, so the true worst case is known and no network is needed.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from benchmarks.benchmark import Setting, Table
from rhobust.bounds import SecondStage, population_loss, population_loss_intervals, worst_case_loss
from rhobust.formatting import format_number
from rhobust.progress import progress_or_default

PRETRAINED = Path(__file__).resolve().parents[1] / "results" / "pretrained" / "cifar10-nal-0.25"
POINTS, ALPHA, SETS = 10_000, 1e-3, 3
EPS = (0.5, 1.0, 1.5, 2.0)
"""In units of sigma."""
PLANS = ((20, 0, 0.0), (10, 100, 0.1), (10, 100, 0.2), (50, 0, 0.0), (20, 400, 0.1))
"""Noise samples at every point, further ones, and the share of points that may get them."""
MANY, LEVELS = 10_000, (1e-2, 1e-3, 1e-4)
"""Noise samples per point of the comparator, and levels of its intervals, which share its alpha."""


def populations() -> dict[str, np.ndarray]:
    """Error probabilities: of the pretrained CIFAR-10 network by its published votes, and of a better classifier.

    An image with k of n votes for the predicted class has a probability from Beta(k + 1/2, n - k + 1/2) for it. The
    second is spread evenly between margins like those of a good MNIST network: nearly all beyond two sigma.
    """
    rng = np.random.default_rng(0)
    (path,) = PRETRAINED.glob("certify-*.jsonl.gz")
    with gzip.open(path, "rt") as file:
        _, *rows = (json.loads(line) for line in file)
    votes = np.array([(row["count"], row["n"], row["prediction"] == row["label"]) for row in rows if "count" in row])
    chosen = rng.beta(votes[:, 0] + 0.5, votes[:, 1] - votes[:, 0] + 0.5)
    ranks, margins = [0, 0.012, 0.03, 0.06, 0.15, 0.4, 1], [-1.5, 0, 1, 2, 3, 4.2, 7]
    return {
        "cifar10-nal-0.25": np.where(votes[:, 2] == 1, 1 - chosen, chosen),
        "margins like MNIST's": special.ndtr(-np.interp((np.arange(5000) + 0.5) / 5000, ranks, margins)),
    }


def bench_stages(setting: Setting) -> dict[str, Any]:
    """The bound of each plan and of intervals from 10,000 samples, at the same alpha; the mean of a few data sets."""
    rho, found = np.square(EPS), []
    with progress_or_default(setting.progress) as notify:
        for name, law in populations().items():
            ways = [*PLANS, (MANY, 0, 0.0)]
            bounds, passes = np.zeros((len(ways), len(EPS))), np.zeros(len(ways))
            for number in range(SETS):
                notify(f"bench stages: {name}, data set {number + 1} of {SETS}")
                rng = np.random.default_rng(number)
                p = rng.choice(law, setting.limit or POINTS)
                for place, (draws, further, share) in enumerate(ways):
                    bound, taken = _bound(rng, p, draws, further, share, rho)
                    bounds[place] += bound / SETS
                    passes[place] += taken / SETS
            truth = np.asarray(worst_case_loss(law, rho, 1.0))
            names = ("draws", "further", "share", "passes", "certified")
            columns = (*zip(*ways, strict=True), passes.tolist(), np.maximum(1 - bounds, 0).tolist())
            listed = [dict(zip(names, way, strict=True)) for way in zip(*columns, strict=True)]
            found.append({"population": name, "truth": (1 - truth).tolist(), "ways": listed})
    result = {"points": setting.limit or POINTS, "alpha": ALPHA, "sets": SETS, "eps_in_sigma": list(EPS)}
    result["populations"] = found
    setting.write(result)
    return result


def _bound(
    rng: np.random.Generator, p: np.ndarray, draws: int, further: int, share: float, rho: np.ndarray
) -> tuple[np.ndarray, float]:
    """The bound of one data set, and the noise samples per point that it took."""
    errors = rng.binomial(draws, p)
    if draws == MANY:
        tried = [
            population_loss_intervals(errors, draws, rho, 1.0, ALPHA / len(LEVELS), interval_alpha=one)
            for one in LEVELS
        ]
        return np.min([np.asarray(one) for one in tried], axis=0), draws
    second = None
    if further:
        chosen = rng.random(p.size) < share
        second = SecondStage(further, chosen, rng.binomial(further, p))
    taken = draws + (0.0 if second is None else further * np.mean(np.asarray(second.chosen) & (errors == 0)))
    return np.asarray(population_loss(errors, draws, rho, 1.0, ALPHA, second=second)), float(taken)


def stages_table(result: dict[str, Any]) -> Table:
    """One line per population and plan: samples per point and the certified accuracy at each eps."""
    rows = []
    for one in result["populations"]:
        rows.append([one["population"], "the truth", "", *(format_number(value, 3, "down") for value in one["truth"])])
        for way in one["ways"]:
            plan = f"{way['draws']:,} samples"
            if way["further"]:
                plan += f", {way['further']} more at {100 * way['share']:g}% of the points"
            if way["draws"] == MANY:
                plan += ", an interval per point"
            cells = [format_number(value, 3, "down") for value in way["certified"]]
            rows.append([one["population"], plan, f"{way['passes']:,.1f}", *cells])
    columns = ["population", "noise samples", "per point", *(f"{eps:g} sigma" for eps in result["eps_in_sigma"])]
    notes = [f"{result['points']:,} points, alpha {result['alpha']:g}, mean of {result['sets']} simulated data sets"]
    return Table(columns, rows, notes=notes, left=2)
