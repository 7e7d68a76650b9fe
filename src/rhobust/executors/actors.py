"""The live workers of a Ray cluster."""

import importlib
import secrets
import time
from dataclasses import dataclass, replace
from typing import Any

from rhobust.executors.base import Block, Task, WorkerError
from rhobust.executors.hand_out import Event
from rhobust.executors.parcel import Parcel
from rhobust.executors.worker import Worker
from rhobust.progress import ProgressCallback

GROWTH = 10.0
"""Seconds between two looks at the cluster's size, where the number of workers is left to it."""
SILENCE = 30.0
"""Seconds without a worker after which that is said."""
FAILURES = 20
"""Workers in a row that may end before they compute anything."""


class Actors:
    """The live workers of `Ray`: actors, and the answers that are awaited."""

    def __init__(self, ray: Any, device: str, workers: int | None, gpus: float) -> None:
        self.ray, self.device, self.workers, self.gpus = ray, device, workers, gpus
        resources = {"num_gpus": gpus} if device == "cuda" else {"num_cpus": 1}
        # What it was computing goes to others at once: Ray may take long to find a place for it again.
        self.make = ray.remote(max_restarts=-1, max_task_retries=0, **resources)(Worker)
        self.actors: dict[str, Any] = {}
        self.awaited: dict[Any, tuple[str, int]] = {}
        """Worker and number of the block, -1 for a task, of each answer."""
        self.ready: set[str] = set()
        self.stored: list[tuple[Any, Any]] = []
        """The large part, and where Ray has it."""
        self.keys, self.failures = 0, 0

    def begin(self, task: Task, notify: ProgressCallback) -> None:
        self.task, self.notify, self.looked, self.failures = task, notify, 0.0, 0
        self.silent = time.monotonic()
        self.ready.clear()
        if not self.stored or self.stored[0][0] is not task.shared:
            self.keys += 1
            parcel = Parcel.pack(task.shared, self.ray.cloudpickle.CloudPickler)
            self.stored = [(task.shared, self.ray.put(parcel))]
        for name in self.actors:
            self._prepare(name)
        self._grow()

    def _grow(self) -> None:
        """Have as many actors as were asked for, or as the cluster has resources for."""
        if time.monotonic() - self.looked < GROWTH:
            return
        self.looked = time.monotonic()
        wanted = self.workers or capacity(self.ray, self.device, self.gpus)
        for _ in range(len(self.actors), wanted):
            name = secrets.token_hex(6)
            self.actors[name] = self.make.remote()
            self._prepare(name)

    def _prepare(self, name: str) -> None:
        rest = Parcel.pack(replace(self.task, shared=None), self.ray.cloudpickle.CloudPickler)
        place = [self.stored[0][1]]  # in a list Ray leaves it where it is until it is asked for
        answer = self.actors[name].prepare.remote(self.keys, _Fetch(place), rest)
        self.awaited[answer] = (name, -1)

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
        if isinstance(found, Exception):
            raise found
        self.ready.add(name)
        return Event("ready", name)

    def _lost(self, name: str, error: Exception) -> Event:
        """Give the task again to an actor that Ray starts again, or to a new one in its place."""
        self.failures += 1
        if self.failures >= FAILURES + len(self.actors):
            raise WorkerError(f"workers must start, but {self.failures} ended one after the other: {error}") from None
        self.awaited = {answer: of for answer, of in self.awaited.items() if of[0] != name}
        self.ready.discard(name)
        actor = self.actors.pop(name)
        following = secrets.token_hex(6)
        dead = isinstance(error, self.ray.exceptions.ActorDiedError)
        self.actors[following] = self.make.remote() if dead else actor
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
