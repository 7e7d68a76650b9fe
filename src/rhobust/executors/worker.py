"""What a worker does, whatever process it is: take a task, compute its blocks, hand back rows or what was raised."""

import copy
import multiprocessing
import os
import signal
import threading
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import torch

from rhobust.executors.base import Block, Task, WorkerError
from rhobust.executors.parcel import Parcel
from rhobust.records import Row


class Worker:
    """The task of one worker process, and the large part that later tasks may share."""

    def __init__(self, task: Task | None = None) -> None:
        self.key, self.shared, self.task = -1, None, task

    def prepare(self, key: int, shared: Any, rest: Parcel) -> Exception | None:
        """Take a task; None, or what was raised.

        Args:
            key: Number of the large part.
            shared: A function that gets it, called only if this worker does not have it.
            rest: The rest of the task.
        """
        try:
            task = rest.unpack()  # first: it says where classes are looked for
            if key != self.key:
                self.shared = self.task = None  # two networks need not fit into memory
                self.shared, self.key = shared(), key
            self.task = replace(task, shared=self.shared)
        except Exception as error:
            return portable(error)
        return None

    def compute(self, block: Block) -> list[Row] | Exception:
        """The rows of a block, or what was raised."""
        assert self.task is not None
        try:
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
                answer = worker.prepare(key, lambda file=file: Parcel.read(Path(file)).unpack(), rest)
            connection.send((number, answer))


def work(connection: Connection, threads: int) -> None:
    """The main function of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started it answers Ctrl-C
    os.dup2(2, 1)  # what a network prints is no result
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
    torch.set_num_threads(threads)
    serve(connection, Worker())
