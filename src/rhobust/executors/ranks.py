"""The processes that torchrun or srun started: the first one hands out blocks and writes, all of them compute."""

import os
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Client, Listener
from typing import Any

import torch

from rhobust.executors.base import Block, Executor, Task
from rhobust.executors.connected import Connected
from rhobust.executors.hand_out import hand_out
from rhobust.executors.worker import Worker, serve
from rhobust.progress import ProgressCallback, no_progress
from rhobust.records import Row
from rhobust.training.distributed import ProcessGroup, join_processes


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
