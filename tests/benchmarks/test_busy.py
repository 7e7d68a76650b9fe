"""The benchmark of a busy machine: every case is timed, and the competitor does not outlive it."""

import subprocess
import sys

import torch

from benchmarks import Setting, busy
from benchmarks.busy import bench_busy, busy_table
from rhobust.progress import no_progress


def test_the_three_cases_and_their_table(monkeypatch):
    started = []
    original = subprocess.Popen

    def popen(command, **options):
        started.append(original([sys.executable, "-c", "pass"], **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr(busy, "DELAY", 0.0)
    monkeypatch.setattr(busy, "ROUNDS", 1)
    result = bench_busy(Setting(torch.device("cpu"), progress=no_progress))
    assert len(started) == 5, "three quickstarts and two competitors"
    assert all(process.poll() is not None for process in started)
    alone, *others = result["ways"]
    assert alone["times"] == 1
    assert [row["times"] for row in others] == [row["seconds"] / alone["seconds"] for row in others]
    assert [line[0] for line in busy_table(result).rows] == [row["name"] for row in result["ways"]]
