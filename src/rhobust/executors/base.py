"""What an executor is: blocks in, blocks with their rows out. And the one that computes in this process."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rhobust.progress import ProgressCallback, no_progress
from rhobust.records import Row

Block = list[int]
"""Examples that one worker computes at once."""
PIECE = 100
"""Examples that `Local` hands back at once at most, where rows come one by one."""
PAUSE = 30.0
"""Seconds after which it hands back what is there, when rows come slowly."""


class WorkerError(ValueError):
    """Workers that cannot be started, or that die of the same block again and again."""


def working_folder() -> str | None:
    """The folder that this process works in; None where it was removed."""
    try:
        return str(Path.cwd())
    except OSError:
        return None


@dataclass(frozen=True)
class Task:
    """A function of blocks with everything that it needs, so that it can travel to another process or machine."""

    function: Callable[[Any, Any, Sequence[int], ProgressCallback], Iterable[Row]]
    """From `shared`, `settings`, a block and a progress callback to the block's rows, which name their examples as
    `index`; of the module level, so that workers find it by its name."""
    shared: Any
    """The large part: sent to each worker once and kept there for later tasks."""
    settings: Any = None
    """The small part."""
    device: str = "cpu"
    """Kind of device that a worker must have: cpu or cuda."""
    folder: str | None = field(default_factory=working_folder)
    """Where relative paths lead from, here and, on machines that have it, in a worker; None where it was removed."""

    def __call__(self, block: Sequence[int], notify: ProgressCallback = no_progress) -> Iterable[Row]:
        return self.function(self.shared, self.settings, block, notify)


class Executor(ABC):
    """Computes blocks somewhere; only the process that calls `map` writes anything."""

    spread = True
    """Whether blocks are computed by other processes: they are then cut smaller and written together."""

    @abstractmethod
    def map(
        self, task: Task, blocks: Sequence[Block], notify: ProgressCallback = no_progress
    ) -> Iterator[tuple[Block, list[Row]]]:
        """The blocks with their rows, in the order in which they are done.

        Guarantee: each block comes once. What a worker raises is raised here. A worker that dies costs what it was
        computing, which another one computes again.
        """

    @abstractmethod
    def size(self, device: str) -> int:
        """How many workers there are, or will be, for a kind of device."""

    @property
    def active(self) -> int:
        """Workers that are ready now."""
        return 1

    def close(self) -> None:  # noqa: B027  # most need nothing
        """End the workers, which are otherwise kept for the next task."""

    def __enter__(self) -> "Executor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Local(Executor):
    """Computes in this process, one block after the other."""

    spread = False

    def map(
        self, task: Task, blocks: Sequence[Block], notify: ProgressCallback = no_progress
    ) -> Iterator[tuple[Block, list[Row]]]:
        for block in blocks:
            yield from _pieces(task(block, notify))

    def size(self, device: str) -> int:
        return 1


def _pieces(rows: Iterable[Row]) -> Iterator[tuple[Block, list[Row]]]:
    """Cut rows where an example ends: after `PIECE` examples, or sooner when they come slowly or stop."""
    piece: list[Row] = []
    seen, last = 0, time.monotonic()
    try:
        for row in rows:
            if piece and row["index"] != piece[-1]["index"]:
                seen += 1
                if seen == PIECE or time.monotonic() - last > PAUSE:
                    yield list(dict.fromkeys(one["index"] for one in piece)), piece
                    piece, seen, last = [], 0, time.monotonic()
            piece.append(row)
    except KeyboardInterrupt:
        # The last example may lack rows.
        whole = [row for row in piece if row["index"] != piece[-1]["index"]]
        if whole:
            yield list(dict.fromkeys(one["index"] for one in whole)), whole
        raise
    if piece:
        yield list(dict.fromkeys(one["index"] for one in piece)), piece
