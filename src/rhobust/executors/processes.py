"""Workers on this machine: one spawned process per GPU, or as many as there are cores."""

import multiprocessing
import os
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from rhobust.executors.base import Block, Executor, Task, WorkerError
from rhobust.executors.connected import Connected
from rhobust.executors.gpus import gpus_of, seeing_gpus, share_of_gpu, visible_gpus
from rhobust.executors.hand_out import ATTEMPTS, hand_out
from rhobust.executors.parcel import Parcel
from rhobust.executors.worker import work
from rhobust.progress import ProgressCallback, no_progress
from rhobust.records import Row
from rhobust.settings import check_at_least, check_declared


@dataclass(frozen=True)
class Processes(Executor):
    """Spawned processes on this machine; one that dies is started again.

    As with every spawned process, a script that uses them needs `if __name__ == "__main__":`, and the class of a
    network must be in a module.
    """

    workers: int | None = None
    """Number of workers; default: one per GPU, or per core."""
    gpus: float = 1.0
    """GPUs per worker; 0.25 puts four workers on each."""
    _crew: "list[_Crew]" = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_declared(self)
        check_at_least(1, self, "workers")
        share_of_gpu(self.gpus)

    def size(self, device: str) -> int:
        if self.workers is not None:
            return self.workers
        if device == "cuda":
            return max(1, int(len(visible_gpus()) * share_of_gpu(self.gpus)))
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def map(
        self, task: Task, blocks: Sequence[Block], notify: ProgressCallback = no_progress
    ) -> Iterator[tuple[Block, list[Row]]]:
        if not self._crew or self._crew[0].device != task.device:
            self.close()
            self._crew.append(_Crew(task.device, self.size(task.device), self.gpus))
            weakref.finalize(self._crew[0], _end, self._crew[0].processes, self._crew[0].folder)
        crew = self._crew[0]
        crew.begin(task)
        try:
            yield from hand_out(crew, blocks)
        except BaseException:
            self.close()  # workers may be in the middle of a block
            raise

    @property
    def active(self) -> int:
        return sum(len(crew.ready) for crew in self._crew)

    def close(self) -> None:
        for crew in self._crew:
            _end(crew.processes, crew.folder)
        self._crew.clear()


class _Crew(Connected):
    """The live workers of `Processes`, each with its process and its place among them."""

    def __init__(self, device: str, count: int, gpus: float) -> None:
        super().__init__()
        self.device, self.count, self.gpus = device, count, gpus
        self.folder = tempfile.TemporaryDirectory(prefix="rhobust-workers-", ignore_cleanup_errors=True)
        self.processes: dict[Connection, tuple[Any, int]] = {}
        self.shared: list[Any] = []
        self.task: Task | None = None
        self.failures = 0

    def begin(self, task: Task) -> None:
        """Give a task to all workers; its large part is written once, and mapped into memory by each of them."""
        self.task, self.failures = task, 0
        self.ready.clear()
        if not self.shared or self.shared[-1] is not task.shared:
            self.shared.append(task.shared)
            Parcel.pack(task.shared).write(self._file(len(self.shared)))
            self._file(len(self.shared) - 1).unlink(missing_ok=True)
        for connection in self.connections:
            self._prepare(connection)
        for place in range(len(self.connections), self.count):
            self._prepare(self._start(place))

    def _file(self, number: int) -> Path:
        return Path(self.folder.name) / f"{number}"

    def _start(self, place: int) -> Connection:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        threads = max(1, torch.get_num_threads() // self.count) if self.device == "cpu" else torch.get_num_threads()
        process = context.Process(target=work, args=(theirs, threads), daemon=True, name=f"rhobust worker {place}")
        with seeing_gpus(gpus_of(place, self.gpus) if self.device == "cuda" else None):
            process.start()
        theirs.close()
        self.connections.append(ours)
        self.processes[ours] = process, place
        return ours

    def _prepare(self, connection: Connection) -> None:
        assert self.task is not None
        rest = Parcel.pack(replace(self.task, shared=None))
        self.send(connection, -1, (len(self.shared), str(self._file(len(self.shared))), rest))

    def lost(self, connection: Any) -> None:
        """Start another worker in the place of a dead one."""
        super().lost(connection)
        process, place = self.processes.pop(connection)
        process.join()
        self.failures = 0 if connection in self.ready else self.failures + 1
        if self.failures == ATTEMPTS:
            raise WorkerError(f"workers must start, but {ATTEMPTS} in a row ended with exit code {process.exitcode}")
        self._prepare(self._start(place))


def _end(processes: dict[Connection, tuple[Any, int]], folder: Any) -> None:
    for connection, (process, _) in processes.items():
        process.kill()  # it writes nothing
        process.join()
        connection.close()
    processes.clear()
    folder.cleanup()
