"""The benchmark of a busy machine: every case is timed, and the competitor does not outlive it."""

import subprocess
import sys

import torch

import rhobust
from benchmarks import Setting, busy
from benchmarks.busy import bench_busy, busy_table
from rhobust.progress import no_progress


def test_the_cases_and_their_table(monkeypatch):
    started = []
    original = subprocess.Popen

    def popen(command, **options):
        started.append(original([sys.executable, "-c", "pass"], **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr(busy, "DELAY", 0.0)
    monkeypatch.setattr(busy, "ROUNDS", 1)
    result = bench_busy(Setting(torch.device("cpu"), progress=no_progress))
    assert len(started) == 10, "three quickstarts, three calls from Python, and two competitors of each"
    assert all(process.poll() is not None for process in started)
    rows = result["ways"]
    assert [row["program"] for row in rows] == ["quickstart"] * 3 + ["call"] * 3
    for alone, *others in (rows[:3], rows[3:]):
        assert alone["times"] == 1
        assert [row["times"] for row in others] == [row["seconds"] / alone["seconds"] for row in others]
    assert [line[:2] for line in busy_table(result).rows] == [[row["program"], row["name"]] for row in rows]


def test_the_call_certifies(monkeypatch):
    monkeypatch.setattr(rhobust.SmoothedClassifier, "certify", lambda self, x, n: calls.append((len(x), n)))
    calls = []
    exec(busy.CALL, {})
    assert calls == [(20, 5000)]
