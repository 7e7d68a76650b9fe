"""What a benchmark is: a function that measures, and a function that lays its result out for people."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rhobust.progress import ProgressCallback


@dataclass(frozen=True)
class Setting:
    """What every benchmark is told."""

    device: torch.device
    """Where to run."""
    root: Path | None = None
    """Where the data sets lie."""
    run: Path | None = None
    """A trained run, for benchmarks that compare on one."""
    limit: int | None = None
    """Test points at most."""
    draws: int | None = None
    """Noise draws a point of a comparator; each benchmark has its own default."""
    curve: int = 0
    """Steps over which the training benchmark compares NAL's losses, fast against float32; 0 skips it."""
    progress: ProgressCallback | None = None
    """Progress callback; default: shown on stderr."""

    def machine(self) -> dict[str, Any]:
        """What times depend on and no setting says."""
        return {
            "device": torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu",
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
        }


@dataclass(frozen=True)
class Table:
    """A result for people: lines above, a table, lines below. The first `left` columns are words."""

    columns: list[str]
    rows: list[list[str]]
    heading: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left: int = 1


@dataclass(frozen=True)
class Benchmark:
    """A measurement in one run on one machine."""

    run: Callable[[Setting], dict[str, Any]]
    """Measures; what it returns is the JSON document."""
    table: Callable[[dict[str, Any]], Table]
    """Lays that document out for people."""
