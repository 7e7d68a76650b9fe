"""What a benchmark is: a function that measures, and a function that formats its result; and what several share."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from rhobust.files import write_json
from rhobust.models import build_model
from rhobust.progress import ProgressCallback


@dataclass(frozen=True)
class Setting:
    """What every benchmark gets."""

    device: torch.device
    """Where to run."""
    root: Path | None = None
    """Folder of the data sets."""
    run: Path | None = None
    """A trained run, for benchmarks that compare on one."""
    limit: int | None = None
    """Test points at most."""
    draws: int | None = None
    """Noise samples per point of a comparator; each benchmark has its own default."""
    curve: int = 0
    """Steps over which the training benchmark compares NAL's losses, fast against float32; 0 skips it."""
    peers: dict[str, Path] = field(default_factory=dict)
    """Files of other people's repositories, by the name of the repository."""
    parts: tuple[str, ...] = ()
    """Parts of the speed benchmark; none: all."""
    weights: Path | None = None
    """Weights of a trained resnet18 for CIFAR-10, for the speed benchmark."""
    sigma: float = 0.25
    """The noise that it was trained with."""
    images: Path | None = None
    """CIFAR-10 test images for it, an .npz file with x_test, uint8 (n, 3, 32, 32), and y_test."""
    out: Path | None = None
    """Where benchmarks that take long write their JSON document."""
    debug: bool = False
    """Let the speed benchmark stop at the first error."""
    progress: ProgressCallback | None = None
    """Progress callback; default: shown on stderr."""

    def machine(self) -> dict[str, Any]:
        """Machine and software that the times depend on."""
        return {
            "device": torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu",
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
        }

    def write(self, document: dict[str, Any]) -> None:
        """Write what was measured so far, where that was asked for."""
        if self.out is not None:
            write_json(self.out, document)


@dataclass(frozen=True)
class Table:
    """A formatted result: lines above, a table, lines below. The first `left` columns are words."""

    columns: list[str]
    rows: list[list[str]]
    heading: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left: int = 1

    def markdown(self, title: str) -> str:
        """The table as a Markdown document, with its notes below."""
        rule = ["---"] * self.left + ["---:"] * (len(self.columns) - self.left)
        lines = [f"| {' | '.join(line)} |" for line in (self.columns, rule, *self.rows)]
        return "\n".join([f"# {title}", "", *self.heading, *lines, "", *(f"{note}." for note in self.notes)]) + "\n"


@dataclass(frozen=True)
class Benchmark:
    """A measurement in one run on one machine."""

    run: Callable[[Setting], dict[str, Any]]
    """Measures; what it returns is the JSON document."""
    table: Callable[[dict[str, Any]], Table]
    """Formats that document."""


@contextmanager
def generators_kept(device: torch.device) -> Iterator[None]:
    """Restore the global random generators, which other packages use."""
    state = np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        np.random.set_state(state)  # noqa: NPY002


def timed(work: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Wall time and CPU time, which other programs on the same cores change less; a GPU ends its work first."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start, worked = time.perf_counter(), time.process_time()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start, time.process_time() - worked


def untrained(name: str, shape: tuple[int, int, int], classes: int = 10) -> nn.Module:
    """A network with random weights, which is as fast as a trained one."""
    channels = shape[0]
    mean, deviation = [0.5] * channels, [0.25] * channels
    return build_model(name, shape=shape, classes=classes, mean=mean, deviation=deviation, activation="relu", seed=0)
