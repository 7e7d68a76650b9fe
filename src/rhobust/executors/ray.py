"""Workers of a Ray cluster: one actor per GPU, or per core; Ray starts them and starts them again."""

import importlib
import importlib.util
import math
import os
import secrets
import signal
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from rhobust.executors.base import Block, Task, WorkerError
from rhobust.executors.payload import Payload
from rhobust.executors.processes import check_there, share_of_gpu
from rhobust.executors.workers import Event, Keeping, Worker
from rhobust.process import TerminatedError
from rhobust.progress import ProgressCallback
from rhobust.settings import check_at_least, check_declared

PORT = 6379
"""Ray's own port, where an address names none."""
REACHED = 10.0
"""Seconds within which a cluster's address must answer."""
GROWTH = 10.0
"""Seconds between two looks at the cluster's size, where the number of workers is left to it."""
SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""An empty frame of settings: with one of them HTTP/2, and so gRPC, which Ray speaks, begins on either side."""
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS
"""What a client of HTTP/2 says first."""
SILENCE = 30.0
"""Seconds without a worker after which that is said."""
FAILURES = 20
"""Workers in a row that may end before they compute anything."""
PAUSE = 2.0
"""Seconds, at most, between two of them."""


@dataclass(frozen=True)
class Ray(Keeping):
    """Workers of a Ray cluster, which may come and go: with their nodes, or because they are killed.

    A network travels through Ray's object store, once per machine. A class of a notebook or script travels with its
    code (cloudpickle): it is the user's own, of the process that calls this.
    """

    workers: int | None = None
    """Number of workers; default: as many as the cluster has resources for, also when it grows."""
    gpus: float = 1.0
    """GPUs per worker; 0.25 puts four workers on each."""
    address: str | None = None
    """auto, HOST, HOST:PORT or ray://HOST:PORT of a cluster; default: the one that this process is connected to, or
    that RAY_ADDRESS names, else a new one on this machine."""

    def __post_init__(self) -> None:
        if importlib.util.find_spec("ray") is None:
            raise ValueError("the executor ray needs the package ray: python -m pip install 'ray>=2.60'")
        check_declared(self)
        check_at_least(1, self, "workers")
        share_of_gpu(self.gpus)

    def size(self, device: str) -> int:
        return self.workers or capacity(_connected(self.address), device, self.gpus)

    def start(self, device: str) -> "Actors":
        if device != "cuda":
            check_there(self.gpus, 0)  # how many a cluster has may change
        return Actors(_connected(self.address), device, self.workers, self.gpus)


class Actors:
    """The live workers of `Ray`: actors, and the answers that are awaited."""

    def __init__(self, ray: Any, device: str, workers: int | None, gpus: float) -> None:
        self.ray, self.device, self.workers, self.gpus = ray, device, workers, gpus
        resources = {"num_gpus": gpus} if device == "cuda" else {"num_cpus": 1}
        # What it was computing goes to others at once: Ray may take long to find a place for it again.
        self.make = ray.remote(max_restarts=-1, max_task_retries=0, **resources)(Worker)
        self.actors: dict[str, Any] = {}
        self.awaited: dict[Any, tuple[str, int]] = {}
        """Worker and number of the block of each answer; of a task, the number of its large part below zero."""
        self.ready: set[str] = set()
        self.shared: list[Any] = []
        """The large part of the task."""
        self.place: Any = None
        """Where Ray has it."""
        self.keys, self.failures, self.by_path = 0, 0, True

    def begin(self, task: Task, notify: ProgressCallback) -> None:
        self.task, self.notify, self.looked, self.failures = task, notify, -math.inf, 0
        self.silent = time.monotonic()
        self.ready.clear()
        if not self.shared or self.shared[0] is not task.shared:
            self.shared = [task.shared]
            self._store()
        for name in self.actors:
            self._prepare(name)
        self._grow()

    def _store(self) -> None:
        """Put the large part into the object store; images that are in a file travel as its path while that works."""
        self.keys += 1
        payload = Payload.pack(self.shared[0], self.ray.cloudpickle.CloudPickler)
        self.place = self.ray.put(payload.by_path() if self.by_path else payload)

    def _grow(self) -> None:
        """Have as many actors as were asked for, or as the cluster has resources for."""
        if time.monotonic() - self.looked < GROWTH:
            return
        self.looked = time.monotonic()
        wanted = self.workers or capacity(self.ray, self.device, self.gpus)
        for _ in range(len(self.actors), wanted):
            name = secrets.token_hex(6)
            self.actors[name] = self._start()
            self._prepare(name)

    def _start(self) -> Any:
        return self.make.remote(share=min(1.0, self.gpus))

    def _prepare(self, name: str) -> None:
        rest = Payload.pack(replace(self.task, shared=None), self.ray.cloudpickle.CloudPickler)
        place = [self.place]  # in a list Ray leaves it where it is until it is asked for
        answer = self.actors[name].prepare.remote(self.keys, _Fetch(place), rest)
        self.awaited[answer] = (name, -self.keys)

    def send(self, worker: Any, number: int, block: Block) -> None:
        self.awaited[self.actors[worker].compute.remote(block)] = (worker, number)

    def events(self) -> list[Event]:
        answers = list(self.awaited)
        done, _ = self.ray.wait(answers, num_returns=1, timeout=1.0)
        if done:
            done, _ = self.ray.wait(answers, num_returns=len(answers), timeout=0)
        elif not self.ready and time.monotonic() - self.silent > SILENCE:
            self.silent = time.monotonic()
            self.notify(f"no worker is ready: the cluster has {self.ray.cluster_resources()}")
        if self.workers is None:
            self._grow()
        return [event for answer in done if (event := self._event(answer)) is not None]

    def _event(self, answer: Any) -> Event | None:
        if answer not in self.awaited:
            return None  # of an actor that was lost a moment ago
        name, number = self.awaited.pop(answer)
        try:
            found = self.ray.get(answer)
        except self.ray.exceptions.RayTaskError as error:
            raise WorkerError(str(error.cause or error)) from None
        except self.ray.exceptions.RayError as error:
            return self._lost(name, error)
        if number >= 0:
            self.failures = 0
            return Event("done", name, number, found)
        if isinstance(found, OSError) and (self.by_path or -number < self.keys):
            if self.by_path:  # a machine lacks the file: from now on the images themselves travel, once per machine
                self.by_path = False
                self._store()
            self._prepare(name)
            return None
        if isinstance(found, Exception):
            raise found
        self.ready.add(name)
        return Event("ready", name)

    def _lost(self, name: str, error: Exception) -> Event:
        """Give the task again to an actor that Ray starts again, or to a new one in its place."""
        self.failures += 1
        if self.failures >= FAILURES + len(self.actors):
            reason = (str(error).split("\n") if str(error) else [type(error).__name__])[-1]  # above it is a traceback
            raise WorkerError(f"workers must start, but {self.failures} ended one after the other: {reason}") from None
        # Ray may take a moment to hear of a new driver; a whole node that is lost is no reason to wait.
        time.sleep(min(PAUSE, PAUSE / 10 * max(0, self.failures - len(self.actors))))
        self.awaited = {answer: of for answer, of in self.awaited.items() if of[0] != name}
        self.ready.discard(name)
        actor = self.actors.pop(name)
        following = secrets.token_hex(6)
        dead = isinstance(error, self.ray.exceptions.ActorDiedError)
        self.actors[following] = self._start() if dead else actor
        self._prepare(following)
        return Event("lost", name)

    def end(self) -> None:
        for actor in self.actors.values():
            self.ray.kill(actor)


@dataclass(frozen=True)
class _Fetch:
    """Gets the large part of a task from the object store."""

    place: list[Any]

    def __call__(self) -> Any:
        ray: Any = importlib.import_module("ray")
        return ray.get(self.place[0]).unpack()


def capacity(ray: Any, device: str, gpus: float) -> int:
    """How many workers the cluster has resources for."""
    has = ray.cluster_resources()
    return max(1, int(has.get("GPU", 0) / gpus + 1e-9) if device == "cuda" else int(has.get("CPU", 1)))


def _connected(address: str | None) -> Any:
    """The package, connected to a cluster."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # silences a warning about a later default
    ray: Any = importlib.import_module("ray")
    if not ray.is_initialized():
        if address not in (None, "auto", "local") and ":" not in address:
            address = f"{address}:{PORT}"
        _check_reachable(_joined(address))
        before = signal.getsignal(signal.SIGTERM)
        if address is None and not os.environ.get("RAY_ADDRESS"):
            address = "local"  # Ray would join any cluster that it finds on this machine
        try:
            ray.init(address=address, log_to_driver=False, logging_level="error", include_dashboard=None)
        except (ConnectionError, RuntimeError, ValueError) as error:
            # Ray sends its token to no address that is named, unless the environment asks for it, and does not say so.
            asked = isinstance(error, ConnectionError) and address != "auto" and not os.environ.get("RAY_AUTH_MODE")
            hint = "; if it asks for a token, set RAY_AUTH_MODE=token" if asked else ""
            raise ValueError(f"address must be that of a Ray cluster, got {address}: {error}{hint}") from None
        except SystemExit as stop:  # Ray's answer to SIGTERM
            raise TerminatedError from stop
        finally:
            if threading.current_thread() is threading.main_thread() and before is not None:
                signal.signal(signal.SIGTERM, before)  # Ray would end the process before rows are written
    return ray


def _joined(address: str | None) -> str | None:
    """The address that Ray would join; None where it starts a cluster of its own, or finds none."""
    named = os.environ.get("RAY_ADDRESS")
    if named or address != "auto":
        return named if address in (None, "auto") else address
    # Ray notes the last cluster in a file, which stays behind where one was killed. No public function reads it.
    with suppress(ImportError, AttributeError, ConnectionError, ValueError):
        return importlib.import_module("ray._private.services").canonicalize_bootstrap_address(address)
    return None


def _check_reachable(address: str | None) -> None:
    """Refuse an address at which nobody listens, or something other than Ray: Ray would try for ten minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=REACHED) as connection:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return
            connection.sendall(GREETING)
            said = connection.recv(len(SETTINGS))
    except OSError as error:
        raise ValueError(f"address must be that of a Ray cluster, got {address}: {error}") from None
    if said[3:4] != SETTINGS[3:4]:  # the kind of the frame
        raise ValueError(f"address must be that of a Ray cluster, got {address}: what answers there is not Ray")
