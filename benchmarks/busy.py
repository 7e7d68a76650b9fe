"""A busy machine: the quickstart alone, next to a program that fills all cores, and where that one starts later."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.benchmark import Setting, Table
from rhobust.progress import progress_or_default

QUICKSTART = ("--epochs", "10", "--limit", "50", "--n", "1000")
"""A shorter quickstart: every step of it, in a quarter of the time."""
COMPETITOR = "import torch; a = torch.rand(1500, 1500)\nwhile True: a @ a"
"""Another program: matrix products on all cores, with torch's default number of threads."""
DELAY = 5.0
"""Seconds after which a competitor starts that was not there at the start; both sides import torch in about three."""
ROUNDS = 2
"""Everything is timed this often, in turn; the shortest time counts."""


def bench_busy(setting: Setting) -> dict[str, Any]:
    """Time the quickstart alone, next to a competitor that runs already, and next to one that starts soon after it.

    Fair shares of the cores would take twice as long as alone; more is lost in waiting for each other.
    """
    times: dict[str, list[float]] = {"alone": [], "next to a competitor": [], "a competitor that starts later": []}
    with progress_or_default(setting.progress) as notify:
        for number in range(ROUNDS):
            for name, found in times.items():
                notify(f"bench busy: {name}, round {number + 1} of {ROUNDS}")
                found.append(_seconds(name))
    best = {name: min(found) for name, found in times.items()}
    rows = [{"name": name, "seconds": best[name], "times": best[name] / best["alone"]} for name in times]
    return {**setting.machine(), "quickstart": " ".join(QUICKSTART), "ways": rows}


def busy_table(result: dict[str, Any]) -> Table:
    """The result of the busy machine for people."""
    return Table(
        heading=[f"rhobust quickstart {result['quickstart']}, {result['threads']} threads, torch {result['torch']}"],
        columns=["the quickstart", "seconds", "times as long"],
        rows=[[row["name"], f"{row['seconds']:.1f}", f"{row['times']:.2f}"] for row in result["ways"]],
    )


def _seconds(name: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "rhobust", "quickstart", *QUICKSTART, "--out", folder, "--quiet"]
        if name == "alone":
            return _timed(command)
        if name == "next to a competitor":
            with _competitor():
                time.sleep(DELAY)
                return _timed(command)
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        time.sleep(DELAY)
        with _competitor():
            if process.wait():
                raise ValueError(f"the quickstart must end well, got exit code {process.returncode}")
            return time.perf_counter() - start


def _timed(command: Sequence[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


@contextmanager
def _competitor() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", COMPETITOR])
    try:
        yield
    finally:
        process.kill()
        process.wait()
