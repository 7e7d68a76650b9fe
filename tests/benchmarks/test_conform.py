"""Peers' prediction sets hold what they claim on scores whose worst case is known, and published tables are current."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import special

from benchmarks import BENCHMARKS, Setting
from benchmarks.conform import bincp_threshold, rscp_threshold, split_threshold
from benchmarks.stages import PLANS, bench_stages, stages_table
from rhobust.progress import no_progress

RESULTS = Path(__file__).resolve().parents[2] / "results" / "shift"


def noisy(rng, margins, draws=100):
    """Scores of two classes under noise: Phi of a half-space's signed distance, so a move by eps shifts the margin."""
    first = special.ndtr(-(margins[:, None] + rng.standard_normal((margins.size, draws))) * 3)
    return np.stack([first, 1 - first], axis=2)


@pytest.mark.parametrize("eps", [0.0, 0.5])
def test_peers_cover_every_moved_input(eps):
    rng = np.random.default_rng(0)
    labels = np.zeros(800, int)
    calibration = noisy(rng, rng.normal(1.5, 1.0, 800))
    moved = noisy(rng, rng.normal(1.5, 1.0, 4000) - eps)[:, :, 0]
    deviation = 4 * np.sqrt(0.1 * 0.9 * (1 / 800 + 1 / 4000))
    assert np.mean(moved.mean(axis=1) <= rscp_threshold(calibration, labels, 0.9, eps)) >= 0.9 - deviation
    tau, passing = bincp_threshold(calibration, labels, 0.9, eps)
    assert np.mean((moved <= tau).sum(axis=1) >= passing) >= 0.9 - deviation
    limit = split_threshold(calibration[:, 0], labels, 0.9)
    covered = np.mean(moved[:, 0] <= limit)
    assert abs(covered - 0.9) <= deviation if eps == 0 else covered < 0.9 - deviation / 2


def test_the_quantile_of_too_few_points_is_everything():
    assert split_threshold(np.full((5, 2), 0.3), np.zeros(5, int), 0.9) == np.inf


def test_stages_are_compared_at_their_passes(monkeypatch):
    monkeypatch.setattr("benchmarks.stages.EPS", (0.5,))
    monkeypatch.setattr("benchmarks.stages.SETS", 1)
    monkeypatch.setattr("benchmarks.stages.PLANS", PLANS[:2])
    found = bench_stages(Setting(torch.device("cpu"), limit=300, progress=no_progress))
    ways = found["populations"][1]["ways"]
    assert [way["draws"] for way in ways] == [20, 10, 10_000]
    assert ways[0]["passes"] == 20
    assert 10 < ways[1]["passes"] < 20.5
    for one in found["populations"]:
        assert all(way["certified"][0] < one["truth"][0] + 0.05 for way in one["ways"])
    assert len(stages_table(found).rows) == 8


@pytest.mark.parametrize("name", ["coverage", "stages", "conform"])
def test_the_published_tables_are_those_of_their_documents(name):
    document = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    shown = BENCHMARKS[name].table(document).markdown(name)
    assert (RESULTS / f"table-{name}.md").read_text(encoding="utf-8") == shown


def test_no_published_bound_fails_more_often_than_it_says():
    cases = json.loads((RESULTS / "coverage.json").read_text(encoding="utf-8"))["cases"]
    assert all(case["sets"] >= 2000 and case["violations"] <= case["alpha"] * case["sets"] for case in cases)


def test_few_samples_in_two_stages_are_nowhere_behind_ten_thousand():
    for one in json.loads((RESULTS / "stages.json").read_text(encoding="utf-8"))["populations"]:
        staged = next(way for way in one["ways"] if (way["draws"], way["share"]) == (10, 0.2))
        many = next(way for way in one["ways"] if way["draws"] == 10_000)
        assert staged["passes"] < 30
        assert all(ours >= theirs for ours, theirs in zip(staged["certified"], many["certified"], strict=True))
