"""Workers of a Ray cluster: one actor per GPU, or per core; Ray starts them and starts them again."""

import importlib
import importlib.util
import os
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rhobust.executors.actors import Actors, capacity
from rhobust.executors.base import Block, Executor, Task
from rhobust.executors.gpus import share_of_gpu
from rhobust.executors.hand_out import hand_out
from rhobust.progress import ProgressCallback, no_progress
from rhobust.records import Row
from rhobust.settings import check_at_least, check_declared

REACHED = 10.0
"""Seconds within which a cluster's address must answer."""


@dataclass(frozen=True)
class Ray(Executor):
    """Workers of a Ray cluster, which may come and go: with their nodes, or because they are killed.

    A network travels through Ray's object store, once per machine. A class of a notebook or script travels with its
    code (cloudpickle): it is the user's own, of the process that calls this.
    """

    workers: int | None = None
    """Number of workers; default: as many as the cluster has resources for, also when it grows."""
    gpus: float = 1.0
    """GPUs per worker; 0.25 puts four workers on each."""
    address: str | None = None
    """auto, HOST:PORT or ray://HOST:PORT of a cluster; default: the one that this process is connected to, or that
    RAY_ADDRESS names, else a new one on this machine."""
    _crew: "list[Actors]" = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if importlib.util.find_spec("ray") is None:
            raise ValueError("the executor ray needs the package ray: python -m pip install 'ray>=2.60'")
        check_declared(self)
        check_at_least(1, self, "workers")
        share_of_gpu(self.gpus)

    def size(self, device: str) -> int:
        return self.workers or capacity(_connected(self.address), device, self.gpus)

    def map(
        self, task: Task, blocks: Sequence[Block], notify: ProgressCallback = no_progress
    ) -> Iterator[tuple[Block, list[Row]]]:
        ray = _connected(self.address)
        if not self._crew or self._crew[0].device != task.device:
            self.close()
            self._crew.append(Actors(ray, task.device, self.workers, self.gpus))
        actors = self._crew[0]
        actors.begin(task, notify)
        try:
            yield from hand_out(actors, blocks)
        except BaseException:
            self.close()
            raise

    @property
    def active(self) -> int:
        return sum(len(crew.ready) for crew in self._crew)

    def close(self) -> None:
        for crew in self._crew:
            crew.end()
        self._crew.clear()


def _connected(address: str | None) -> Any:
    """The package, connected to a cluster."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # silences a warning about a later default
    ray: Any = importlib.import_module("ray")
    if not ray.is_initialized():
        _check_reachable(address)
        before = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(address=address, log_to_driver=False, logging_level="error", include_dashboard=None)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ValueError(f"address must be that of a Ray cluster, got {address}: {error}") from None
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGTERM, before)  # Ray would end the process before rows are written
    return ray


def _check_reachable(address: str | None) -> None:
    """Refuse an address at which nobody listens: Ray would try for ten minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host, int(port)), timeout=REACHED).close()
        except OSError as error:
            raise ValueError(f"address must be that of a Ray cluster, got {address}: {error}") from None
