"""Noise samples of the sequential tests, for images like those of published records: no network is needed."""

import json
import lzma
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from benchmarks.benchmark import Setting, Table
from rhobust.bounds import BoundaryTest, RadiusTest, clopper_pearson, looks
from rhobust.progress import progress_or_default
from rhobust.proofs.procedures import CHUNK

RECORDS = Path(__file__).resolve().parents[1] / "results" / "records"
ALPHA, N = 1e-3, 100_000
MOST = 2000
"""Images of a group that are simulated."""
PATIENT = 0.1
"""A smaller futility than the default: fewer radii are given up that all samples would prove."""
NULL = 10_000
"""Walks at the hypothesis itself, which count false certificates."""


def bench_samples(setting: Setting) -> dict[str, Any]:
    """Simulate the ways to stop, on probabilities drawn from what the votes of real images leave possible.

    An image of a record with k of m votes for its class gets a probability from Beta(k + 1/2, m - k + 1/2). Decisions
    are compared with those of the Clopper-Pearson bound of all N samples of the same walk. False certificates are
    counted at p_k itself, where they are most frequent.
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
            cells = [f"{way['mean_draws']:,.0f}", f"{way['median_draws']:,.0f}", f"{100 * way['same']:.2f}%"]
            radii = " ".join(f"{radius:g}" for radius in group["radii"])
            rows.append([f"{group['sigma']:g}: {radii}", name, *cells, f"{way['false']:.2g}"])
    return Table(
        heading=[f"images of published records, alpha {result['alpha']:g}, at most {result['n']:,} samples"],
        columns=["sigma: radii", "stopping", "mean samples", "median", "decided as by all", "false at p_k, at most"],
        rows=rows,
        left=2,
    )


def published_votes() -> dict[tuple[float, tuple[float, ...]], list[tuple[int, int]]]:
    """Votes of the selected class, and samples, by sigma and radii of the record."""
    found: dict[tuple[float, tuple[float, ...]], list[tuple[int, int]]] = {}
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
                    found.setdefault(key, []).extend((row["count"], row["n"]) for row in rows if "count" in row)
    return found


def _compare(sigma: float, radii: tuple[float, ...], votes: np.ndarray) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    votes = votes[rng.permutation(len(votes))[:MOST]]
    p = rng.beta(votes[:, 0] + 0.5, votes[:, 1] - votes[:, 0] + 0.5)
    ways = {}
    for name, test in (
        ("e-value", RadiusTest(radii, sigma, ALPHA, N, reused=True)),
        ("boundary", BoundaryTest(radii, sigma, ALPHA, N, CHUNK, reused=True)),
        ("patient", BoundaryTest(radii, sigma, ALPHA, N, CHUNK, futility=PATIENT, reused=True)),
    ):
        draws, reached, failures = walk(test, p, np.random.default_rng(1))
        lower = np.asarray(clopper_pearson(N - failures, N, ALPHA, "lower"))
        wanted = (lower[:, None] > special.ndtr(np.array(radii) / sigma)).sum(1)
        ways[name] = {
            "mean_draws": float(draws.mean()),
            "median_draws": float(np.median(draws)),
            "same": float(1 - np.abs(reached - wanted).sum() / len(p) / len(radii)),
            "false": max(_false(test, radius) for radius in range(len(radii))),
        }
    return {"sigma": sigma, "radii": list(radii), "images": len(p), "ways": ways}


def walk(
    test: RadiusTest | BoundaryTest, p: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Samples until each input is decided, the radii that are proved, and the failures among all n samples."""
    draws, reached, failures = (np.zeros(len(p), dtype=np.int64) for _ in range(3))
    active, before = np.full(len(p), True), 0
    for size in sizes_of(test):
        failures += rng.binomial(size - before, 1 - p)
        at, before = np.flatnonzero(active), size
        if at.size:
            reached[at], active[at] = test.decide(size - failures[at], np.full(at.size, size), reached[at])
            draws[at] = size
    return draws, reached, failures


def sizes_of(test: RadiusTest | BoundaryTest) -> np.ndarray:
    """Sample sizes at which a test looks."""
    return test.looks if isinstance(test, BoundaryTest) else looks(test.n, CHUNK)


def _false(test: RadiusTest | BoundaryTest, radius: int) -> float:
    """The share of walks at p_k in which the radius is proved."""
    p = np.full(NULL, test.thresholds[radius])
    rng = np.random.default_rng(2)
    reached, active, failures, before = np.full(NULL, radius), np.full(NULL, True), np.zeros(NULL, dtype=np.int64), 0
    for size in sizes_of(test):
        at = np.flatnonzero(active)
        if not at.size:
            break
        failures[at] += rng.binomial(size - before, 1 - p[at])
        reached[at], active[at] = test.decide(size - failures[at], np.full(at.size, size), reached[at])
        before = size
    return float(np.mean(reached > radius))
