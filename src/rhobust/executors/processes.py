"""Processes as workers: spawned on this machine, one per GPU or core; or those that torchrun or srun started."""

import math
import multiprocessing
import os
import secrets
import signal
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import torch

from rhobust.executors.base import Block, Executor, Task, WorkerError
from rhobust.executors.payload import Payload
from rhobust.executors.workers import ATTEMPTS, Connected, Keeping, Worker, hand_out, serve, work
from rhobust.progress import ProgressCallback, no_progress
from rhobust.records import Row
from rhobust.settings import check_at_least, check_declared
from rhobust.training.distributed import ProcessGroup, join_processes


@dataclass(frozen=True)
class Processes(Keeping):
    """Spawned processes on this machine; one that dies is started again.

    As with every spawned process, a script that uses them needs `if __name__ == "__main__":`, and the class of a
    network must be in a module.
    """

    workers: int | None = None
    """Number of workers; default: one per GPU, or per core."""
    gpus: float = 1.0
    """GPUs per worker; 0.25 puts four workers on each."""

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

    def start(self, device: str) -> "Spawned":
        check_there(self.gpus, len(visible_gpus()) if device == "cuda" else 0)
        return Spawned(device, self.size(device), self.gpus)


class Spawned(Connected):
    """The live workers of `Processes`, each with its process and its place among them."""

    def __init__(self, device: str, count: int, gpus: float) -> None:
        super().__init__()
        self.device, self.count, self.gpus = device, count, gpus
        self.share = memory_share(count, gpus) if device == "cuda" else 1.0
        self.folder = tempfile.TemporaryDirectory(prefix="rhobust-workers-", ignore_cleanup_errors=True)
        self.processes: dict[Connection, tuple[Any, int]] = {}
        self.shared: list[Any] = []
        self.task: Task | None = None
        self.failures = 0
        self.finalizer = weakref.finalize(self, _end, self.processes, self.folder)

    def begin(self, task: Task, notify: ProgressCallback = no_progress) -> None:
        """Give a task to all workers; its large part is written once, and mapped into memory by each of them."""
        self.task, self.failures = task, 0
        self.ready.clear()
        if not self.shared or self.shared[-1] is not task.shared:
            self.shared.append(task.shared)
            Payload.pack(task.shared).write(self._file(len(self.shared)))
            self._file(len(self.shared) - 1).unlink(missing_ok=True)
            self.asked = -len(self.shared)
        for connection in self.connections:
            self._prepare(connection)
        for place in range(len(self.connections), self.count):
            self._prepare(self._start(place))

    def _file(self, number: int) -> Path:
        return Path(self.folder.name) / f"{number}"

    def _start(self, place: int) -> Connection:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        threads = max(1, torch.get_num_threads() // self.count)
        given = theirs, threads, self.share
        process = context.Process(target=work, args=given, daemon=True, name=f"rhobust worker {place}")
        with seeing_gpus(gpus_of(place, self.gpus) if self.device == "cuda" else None), _without_ctrl_c():
            process.start()
        theirs.close()
        self.connections.append(ours)
        self.processes[ours] = process, place
        return ours

    def _prepare(self, connection: Connection) -> None:
        assert self.task is not None
        rest = Payload.pack(replace(self.task, shared=None))
        self.send(connection, self.asked, (len(self.shared), str(self._file(len(self.shared))), rest))

    def lost(self, connection: Any) -> None:
        """Start another worker in the place of a dead one."""
        super().lost(connection)
        process, place = self.processes.pop(connection)
        process.kill()  # it may be alive behind a closed pipe
        process.join()
        self.failures = 0 if connection in self.ready else self.failures + 1
        if self.failures == ATTEMPTS:
            raise WorkerError(
                f"workers must start, but {ATTEMPTS} in a row ended with exit code {process.exitcode}: in a script, is"
                ' everything that runs below if __name__ == "__main__":?'
            )
        self._prepare(self._start(place))

    def end(self) -> None:
        """End the processes; the same happens where nobody calls this."""
        self.finalizer()


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Let processes that are started meanwhile never see Ctrl-C, which this process answers for all of them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if hasattr(signal, "pthread_sigmask") else None
    try:
        yield
    finally:
        if before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(processes: dict[Connection, tuple[Any, int]], folder: Any) -> None:
    for connection, (process, _) in processes.items():
        process.kill()  # it writes nothing
        process.join()
        connection.close()
    processes.clear()
    folder.cleanup()


def share_of_gpu(gpus: float) -> float:
    """Workers per GPU; refuses a share that fits no whole number of times."""
    if not gpus > 0 or (gpus > 1 and gpus != int(gpus)):
        raise ValueError(f"gpus must be a whole number, or a share in (0, 1], got {gpus:g}")
    return int(1 / gpus + 1e-9) if gpus <= 1 else 1 / gpus


def check_there(gpus: float, there: int) -> None:
    """Refuse more GPUs per worker than there are; a share of none is harmless."""
    if gpus > max(1, there):
        raise ValueError(f"gpus must be at most the number of GPUs that a worker may use, {there}, got {gpus:g}")


def visible_gpus() -> list[str]:
    """Names of the GPUs that this process may use."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]


def gpus_of(place: int, gpus: float) -> str:
    """The GPUs of a worker, as CUDA_VISIBLE_DEVICES names them: consecutive workers get different ones."""
    known, width = visible_gpus(), max(1, int(gpus))
    first = place * width
    return ",".join(known[(first + offset) % len(known)] for offset in range(width))


def memory_share(workers: int, gpus: float) -> float:
    """Part of a GPU's memory for each of some workers: what was asked for, or less where more of them are on one."""
    each = math.ceil(workers * max(1, int(gpus)) / len(visible_gpus()))
    return min(gpus, 1 / each)


@contextmanager
def seeing_gpus(names: str | None) -> Iterator[None]:
    """Let processes that are started meanwhile see these GPUs only; None changes nothing."""
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = names
    try:
        yield
    finally:
        if before is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = before
        elif names is not None:
            del os.environ["CUDA_VISIBLE_DEVICES"]


@dataclass(frozen=True)
class Ranks(Executor):
    """Several processes of one command; each has made the task itself, so only blocks and rows travel."""

    group: ProcessGroup
    _crew: list[Connected] = field(default_factory=list, init=False, repr=False, compare=False)

    @classmethod
    def join(cls) -> "Ranks | None":
        """The processes of this command; None for a single one."""
        group = join_processes(torch.device("cpu"))  # they only wait for each other
        return cls(group) if group.world > 1 else None

    def size(self, device: str) -> int:
        return self.group.world

    @property
    def active(self) -> int:
        return sum(len(crew.ready) for crew in self._crew)

    def together(self, task: Task, action: Callable[[], Any]) -> None:
        """Let the first process act while the others compute the blocks that it maps; where it fails, all fail."""
        if self.group.first:
            failure: Exception | None = None
            try:
                action()
            except Exception as error:  # raised again below
                failure = error
            self.group.tell(("end", None if failure is None else str(failure)))
            if failure is not None:
                raise failure
            return
        while True:
            what, *said = self.group.tell(None)
            if what == "end":
                if said[0] is not None:
                    raise ValueError(said[0])
                return
            address, key = said
            with Client(tuple(address), authkey=key) as connection:
                serve(connection, Worker(task))

    def map(
        self, task: Task, blocks: Sequence[Block], notify: ProgressCallback = no_progress
    ) -> Iterator[tuple[Block, list[Row]]]:
        key = secrets.token_bytes(32)
        host = os.environ["MASTER_ADDR"] if self.group.apart() else "127.0.0.1"
        with Listener(("" if self.group.apart() else host, 0), authkey=key, backlog=self.group.world) as listener:
            self.group.tell(("map", (host, listener.address[1]), key))
            others = [listener.accept() for _ in range(self.group.world - 1)]
        ours, theirs = Pipe()
        mine = threading.Thread(target=serve, args=(theirs, Worker(task)), daemon=True)
        mine.start()
        crew = Connected([*others, ours])
        self._crew.append(crew)
        try:
            yield from hand_out(crew, blocks)
        finally:
            self._crew.clear()
            for connection in crew.connections:
                connection.close()
            mine.join()
