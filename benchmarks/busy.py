"""A busy machine: the quickstart and a call from Python, alone and next to a program that fills all cores."""

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
CALL = """
import numpy as np, rhobust
from rhobust.models import build_model
model = build_model("cnn", shape=(1, 28, 28), classes=10, mean=[0.1], deviation=[0.3], activation="relu", seed=0)
images = np.random.default_rng(0).integers(256, size=(20, 28, 28, 1), dtype=np.uint8)
rhobust.SmoothedClassifier(model.eval(), 0.25, 10).certify(images, n=5000)
"""
"""Certificates by a script: 20 images, 5,000 noise samples each."""
COMPETITOR = "import torch; a = torch.rand(1500, 1500)\nwhile True: a @ a"
"""Another program: matrix products on all cores, with torch's default number of threads."""
DELAY = 5.0
"""Seconds after which a competitor starts that was not there at the start; both sides import torch in about three."""
WAYS = ("alone", "next to a competitor", "a competitor that starts later")
ROUNDS = 2
"""Everything is timed this often, in turn; the shortest time counts."""


def bench_busy(setting: Setting) -> dict[str, Any]:
    """Time both programs alone, next to a competitor that runs already, and next to one that starts soon after them.

    Fair shares of the cores would take twice as long as alone; more is lost in waiting for each other.
    """
    times: dict[tuple[str, str], list[float]] = {(name, way): [] for name in ("quickstart", "call") for way in WAYS}
    with progress_or_default(setting.progress) as notify:
        for number in range(ROUNDS):
            for (name, way), found in times.items():
                notify(f"bench busy: {name}, {way}, round {number + 1} of {ROUNDS}")
                found.append(_seconds(name, way))
    best = {where: min(found) for where, found in times.items()}
    rows = [
        {"program": name, "name": way, "seconds": best[name, way], "times": best[name, way] / best[name, "alone"]}
        for name, way in times
    ]
    return {**setting.machine(), "quickstart": " ".join(QUICKSTART), "call": CALL.strip(), "ways": rows}


def busy_table(result: dict[str, Any]) -> Table:
    """The result of the busy machine for people."""
    return Table(
        heading=[f"rhobust quickstart {result['quickstart']}, {result['threads']} threads, torch {result['torch']}"],
        columns=["program", "when", "seconds", "times as long"],
        rows=[[row["program"], row["name"], f"{row['seconds']:.1f}", f"{row['times']:.2f}"] for row in result["ways"]],
    )


def _seconds(name: str, way: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "rhobust", "quickstart", *QUICKSTART, "--out", folder, "--quiet"]
        if name == "call":
            command = [sys.executable, "-c", CALL]
        if way == "alone":
            return _timed(command)
        if way == "next to a competitor":
            with _competitor():
                time.sleep(DELAY)
                return _timed(command)
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        time.sleep(DELAY)
        with _competitor():
            if process.wait():
                raise ValueError(f"the {name} must end well, got exit code {process.returncode}")
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
