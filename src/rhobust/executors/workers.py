"""Workers, whatever process they are: how blocks are handed out to them, and what each does with its task.

Who is free gets the next block, and what a dead worker had goes to others. The driver and its workers are two ends of a
connection: a pipe of this machine, or a socket.
"""

import copy
import multiprocessing
import os
import signal
import threading
from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from rhobust.cores import watched_cores
from rhobust.executors.base import Block, Executor, Task, WorkerError
from rhobust.executors.payload import Payload
from rhobust.memory import kept_memory
from rhobust.progress import ProgressCallback, no_progress
from rhobust.records import Row

ATTEMPTS = 4
"""Workers that may die of one block before it is given up."""


@dataclass(frozen=True)
class Event:
    """Something that happened to a worker."""

    what: Literal["ready", "done", "lost"]
    """It takes blocks from now on; it has computed one; it is dead, and so is what it was computing."""
    worker: Hashable
    number: int = -1
    """Which block is done."""
    rows: list[Row] | Exception = field(default_factory=list)
    """Its rows, or what its computation raised."""


class Workers(Protocol):
    """The workers of an executor, and how to reach them."""

    def send(self, worker: Hashable, number: int, block: Block) -> None:
        """Give a block to a worker; a worker that is dead says so by an event."""
        ...

    def events(self) -> Sequence[Event]:
        """What happened since the last call; waits until something did, at least for a while."""
        ...


class Crew(Workers, Protocol):
    """The live workers of an executor."""

    device: str
    """The kind of device that they have."""
    ready: set[Any]
    """Those that take blocks."""

    def begin(self, task: Task, notify: ProgressCallback) -> None:
        """Give a task to all of them, and start those that are missing."""
        ...

    def end(self) -> None:
        """End all of them."""
        ...


@dataclass(frozen=True)
class Keeping(Executor):
    """An executor with workers of its own, which are kept for the next task."""

    _crew: list[Crew] = field(default_factory=list, init=False, repr=False, compare=False)

    @abstractmethod
    def start(self, device: str) -> Crew:
        """Workers with a kind of device."""

    def map(
        self, task: Task, blocks: Sequence[Block], notify: ProgressCallback = no_progress
    ) -> Iterator[tuple[Block, list[Row]]]:
        if not self._crew or self._crew[0].device != task.device:
            self.close()
            self._crew.append(self.start(task.device))
        crew = self._crew[0]
        try:
            crew.begin(task, notify)
            yield from hand_out(crew, blocks)
        except BaseException:
            self.close()  # workers may be in the middle of a block
            raise

    @property
    def active(self) -> int:
        return sum(len(crew.ready) for crew in self._crew)

    def close(self) -> None:
        for crew in self._crew:
            crew.end()
        self._crew.clear()


def hand_out(workers: Workers, blocks: Sequence[Block]) -> Iterator[tuple[Block, list[Row]]]:
    """The blocks with their rows, in the order in which they are done.

    A worker has one block more than it computes as long as there are more blocks than workers, so that it never waits
    for the next one; towards the end it has one, so that none waits behind a slow one.
    """
    waiting = deque(enumerate(blocks))
    given: dict[Hashable, dict[int, Block]] = {}
    free: dict[Hashable, None] = {}
    """Workers that take another block."""
    deaths: Counter[int] = Counter()
    left = len(blocks)
    while left:
        results = []
        for event in workers.events():
            if event.what == "ready":
                # A worker that was still loading when the task before ended says it once for each of both.
                given.setdefault(event.worker, {})
                free[event.worker] = None
            elif event.what == "lost":
                free.pop(event.worker, None)
                had = given.pop(event.worker, {})
                for number in list(had)[:1]:  # the others had not begun
                    deaths[number] += 1
                    if deaths[number] == ATTEMPTS:
                        raise WorkerError(
                            f"examples {shown(had[number])} must not end their worker, but {ATTEMPTS} workers died of"
                            " them: is memory short?"
                        )
                waiting.extendleft(reversed(had.items()))
            elif event.number in given.get(event.worker, {}):
                block = given[event.worker].pop(event.number)
                free[event.worker] = None
                if isinstance(event.rows, Exception):
                    raise event.rows
                results.append((block, event.rows))
        # Workers go on before the results are written.
        for worker in sorted(free, key=lambda one: len(given[one])) if waiting else ():
            while waiting and len(given[worker]) < (2 if len(waiting) > len(given) else 1):
                number, block = waiting.popleft()
                given[worker][number] = block
                workers.send(worker, number, block)
            if len(given[worker]) == 2 or (given[worker] and len(waiting) <= len(given)):
                del free[worker]
        left -= len(results)
        yield from results


def shown(block: Block) -> str:
    """A block in a message."""
    return f"{block[0]} to {block[-1]}" if len(block) > 1 else str(block[0])


class Worker:
    """The task of one worker process, and the large part that later tasks may share.

    Args:
        task: The task, where the process has it already.
        share: Part of a GPU's memory that this worker may take. Each chooses its batches by the memory that it finds
            free, which several that start at once would all take.
    """

    def __init__(self, task: Task | None = None, share: float = 1.0) -> None:
        self.key, self.shared, self.task, self.share = -1, None, task, share

    def prepare(self, key: int, shared: Any, rest: Payload) -> Exception | None:
        """Take a task; None, or what was raised.

        Args:
            key: Number of the large part.
            shared: A function that gets it, called only if this worker does not have it.
            rest: The rest of the task.
        """
        try:
            task = rest.unpack()  # first: it says where classes are looked for
            if task.folder is not None:
                with suppress(OSError):  # a cluster's machine may have been started elsewhere, or lack the folder
                    os.chdir(task.folder)
            if key != self.key:
                self.shared = self.task = None  # two networks need not fit into memory
                self.shared, self.key = shared(), key
                if task.device == "cuda" and self.share < 1:
                    torch.cuda.set_per_process_memory_fraction(self.share)
            self.task = replace(task, shared=self.shared)
        except Exception as error:
            return portable(error)
        return None

    def compute(self, block: Block) -> list[Row] | Exception:
        """The rows of a block, or what was raised."""
        assert self.task is not None
        try:
            with kept_memory:
                return list(self.task(block))
        except Exception as error:
            return portable(error)


def portable(error: Exception) -> Exception:
    """An exception that can travel: itself where that is possible, else its message."""
    try:
        ForkingPickler.dumps(error)
        if type(copy.copy(error)) is type(error):
            return error
    except Exception:  # of a class that pickles badly
        pass
    return WorkerError(f"{type(error).__name__}: {error}")


class Connected:
    """The driver's ends: sends blocks and reads what comes back; a worker that dies is not started again."""

    def __init__(self, connections: Iterable[Connection] = ()) -> None:
        self.connections, self.asked = list(connections), -1
        """`asked` is the negative number of the large part that the workers were last asked to load."""
        self.ready: set[Any] = set()

    def send(self, worker: Any, number: int, block: Any) -> None:
        """Give a block to a worker, or, as a negative number, a task."""
        with suppress(OSError):  # it is dead, which `events` says
            worker.send((number, block))

    def events(self) -> list[Event]:
        """What the workers said since the last call; waits for at least one."""
        found = []
        for connection in wait(self.connections):
            try:
                number, rows = connection.recv()  # type: ignore[union-attr]
            except (EOFError, OSError):
                self.connections.remove(connection)  # type: ignore[arg-type]
                self.lost(connection)
                self.ready.discard(connection)
                found.append(Event("lost", connection))
                continue
            if number < 0 and isinstance(rows, Exception):
                if number != self.asked:
                    continue  # it was still loading a task that has ended, whose file is gone
                raise rows
            if number < 0:
                self.ready.add(connection)
            found.append(Event("done" if number >= 0 else "ready", connection, number, rows or []))
        return found

    def lost(self, connection: Any) -> None:
        """A worker is dead."""
        connection.close()


def serve(connection: Connection, worker: Worker) -> None:
    """Take tasks and compute blocks that come through a connection until the other side closes it."""
    with suppress(EOFError, OSError):
        if worker.task is not None:
            connection.send((-1, None))
        while True:
            number, block = connection.recv()
            if number >= 0:
                answer: Any = worker.compute(block)
            else:
                key, file, rest = block
                answer = worker.prepare(key, lambda file=file: Payload.read(Path(file)).unpack(), rest)
            connection.send((number, answer))


def work(connection: Connection, threads: int, share: float) -> None:
    """The main function of a worker process, with its number of threads and its part of a GPU's memory."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started it answers Ctrl-C
    os.dup2(2, 1)  # what a network prints is no result
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
    torch.set_num_threads(threads)
    with watched_cores:
        serve(connection, Worker(share=share))
