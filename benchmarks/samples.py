"""Noise samples of the sequential tests, for images like those of published records: no network is needed."""

import json
import lzma
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from benchmarks.benchmark import Setting, Table
from rhobust.bounds import BoundaryTest, PairwiseTest, RadiusTest, clopper_pearson, looks
from rhobust.progress import progress_or_default
from rhobust.proofs.plan import CHUNK

RECORDS = Path(__file__).resolve().parents[1] / "results" / "records"
ALPHA, N = 1e-3, 100_000
MOST = 2000
"""Images of a group that are simulated."""
PATIENT = 0.1
"""A smaller futility than the default: fewer radii are given up that all samples would prove."""
NULL = 10_000
"""Walks at the edge of the hypotheses, which count false certificates."""
EDGE = 0.3
"""How far below Phi(r / sigma), in probits, the class is on the second part of the edge."""


def bench_samples(setting: Setting) -> dict[str, Any]:
    """Simulate the ways to stop, on probabilities drawn from what the votes of real images leave possible.

    An image of a record with votes for its class, for the runner-up and for all others gets their probabilities from a
    Dirichlet distribution, each parameter one half more than the votes; where a record does not name the runner-up, it
    has all other votes. Decisions are compared with those of the Clopper-Pearson bound of all N samples of the same
    walk. False certificates are counted at the edge of the hypotheses, where they are most frequent.
    """
    groups = []
    with progress_or_default(setting.progress) as notify:
        for (sigma, radii), votes in sorted(published_votes().items()):
            if len(votes) < 1000:  # too few for a share of decisions
                continue
            notify(f"bench samples: sigma {sigma:g}, {len(votes)} images")
            groups.append(_compare(sigma, radii, np.array(votes)))
    return {"alpha": ALPHA, "n": N, "groups": groups}


def samples_table(result: dict[str, Any]) -> Table:
    """The benchmark's result for people."""
    rows = []
    for group in result["groups"]:
        for name, way in group["ways"].items():
            cells = [f"{way['mean_draws']:,.0f}", f"{way['median_draws']:,.0f}"]
            cells += [f"{100 * way[what]:.2f}%" for what in ("same", "more")]
            radii = " ".join(f"{radius:g}" for radius in group["radii"])
            rows.append([f"{group['sigma']:g}: {radii}", name, *cells, f"{way['false']:.2g}"])
    return Table(
        heading=[f"images of published records, alpha {result['alpha']:g}, at most {result['n']:,} samples"],
        columns=[
            *("sigma: radii", "stopping", "mean samples", "median", "decided as by all", "proved besides"),
            "false at the edge, at most",
        ],
        rows=rows,
        left=2,
    )


def published_votes() -> dict[tuple[float, tuple[float, ...]], list[tuple[int, int, int, bool]]]:
    """Votes of the selected class, of the runner-up and of all others, by sigma and radii of the record.

    The fourth number is whether the selected class is the label.
    """
    found: dict[tuple[float, tuple[float, ...]], list[tuple[int, int, int, bool]]] = {}
    for path in sorted(RECORDS.glob("*.tar.xz")):
        with lzma.open(path) as stream, tarfile.open(fileobj=stream) as archive:
            for member in archive:
                if not Path(member.name).name.startswith("certify-grid-"):
                    continue
                file = archive.extractfile(member)
                assert file is not None
                head, *rows = (json.loads(line) for line in file)
                settings = head["settings"]
                if settings["n"] == N:
                    key = settings["sigma"], tuple(settings["radii"])
                    found.setdefault(key, []).extend(_votes(row) for row in rows if "count" in row)
    return found


def _votes(row: dict[str, Any]) -> tuple[int, int, int, bool]:
    others = row["n"] - row["count"]
    runner_up = row.get("runner_up_votes", others)
    return row["count"], runner_up, others - runner_up, row["selected"] == row["label"]


def _compare(sigma: float, radii: tuple[float, ...], votes: np.ndarray) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    votes = votes[rng.permutation(len(votes))[:MOST]]
    p, right = np.array([rng.dirichlet(one[:3] + 0.5) for one in votes]), votes[:, 3] > 0
    ways = {}
    for name, test in (
        ("e-value", RadiusTest(radii, sigma, ALPHA, N, reused=True)),
        ("boundary", BoundaryTest(radii, sigma, ALPHA, N, CHUNK, reused=True)),
        ("patient", BoundaryTest(radii, sigma, ALPHA, N, CHUNK, futility=PATIENT, reused=True)),
        ("pairwise", PairwiseTest(radii, sigma, ALPHA, N, CHUNK, reused=True)),
        ("patient, pairwise", PairwiseTest(radii, sigma, ALPHA, N, CHUNK, futility=PATIENT, reused=True)),
    ):
        draws, reached, successes = walk(test, p, np.random.default_rng(1))
        lower = np.asarray(clopper_pearson(successes, N, ALPHA, "lower"))
        wanted = (lower[:, None] > special.ndtr(np.array(radii) / sigma)).sum(1)
        lost, more = (np.maximum(gap, 0).sum() / len(p) / len(radii) for gap in (wanted - reached, reached - wanted))
        ways[name] = {
            "mean_draws": float(draws.mean()),
            "median_draws": float(np.median(draws)),
            "same": float(1 - lost - more),
            "more": float(more),
            "certified": {f"{at:g}": float(np.mean(right & (reached > place))) for place, at in enumerate(radii)},
            "false": max(_false(test, radius) for radius in range(len(radii))),
        }
    return {"sigma": sigma, "radii": list(radii), "images": len(p), "ways": ways}


def walk(
    test: RadiusTest | BoundaryTest, p: np.ndarray, rng: np.random.Generator, start: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Samples until each input is decided, the radii that are proved, and the votes for the class among all n samples.

    Args:
        test: The test.
        p: Probabilities of the class, of the runner-up and of all others, (inputs, 3).
        rng: The votes.
        start: Radii that count as proved before.
    """
    votes, before, rows = np.zeros((len(p), 3), dtype=np.int64), 0, len(p)
    draws, reached, active, top = np.zeros(rows, np.int64), np.full(rows, start), np.full(rows, True), None
    for size in sizes_of(test):
        votes += rng.multinomial(size - before, p)
        top = votes[:, 0].copy() if top is None else top
        at, before = np.flatnonzero(active), size
        if at.size:
            given = votes[at, 0], np.full(at.size, size), reached[at]
            if isinstance(test, PairwiseTest):
                reached[at], active[at] = test.decide_pairs(*given, votes[at, 1], top[at])
            else:
                reached[at], active[at] = test.decide(*given)
            draws[at] = size
    return draws, reached, votes[:, 0]


def sizes_of(test: RadiusTest | BoundaryTest) -> np.ndarray:
    """Sample sizes at which a test looks."""
    return test.looks if isinstance(test, BoundaryTest) else looks(test.n, CHUNK)


def _false(test: RadiusTest | BoundaryTest, radius: int) -> float:
    """The largest share of walks in which a radius is proved where it is just out of reach.

    That is where the class has the probability p_k, and all other votes are the runner-up's; and for comparisons with
    each other class also where both are less probable.
    """
    shares = []
    for depth in (0.0, EDGE) if isinstance(test, PairwiseTest) else (0.0,):
        probit = test.radii[radius] / test.sigma
        own, runner_up = special.ndtr([probit - depth, -probit - depth])
        p = np.tile([own, runner_up, max(1 - own - runner_up, 0.0)], (NULL, 1))
        shares.append(float(np.mean(walk(test, p, np.random.default_rng(2), radius)[1] > radius)))
    return max(shares)
