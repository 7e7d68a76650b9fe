"""Executors: where blocks of examples are computed. Rows are the same whatever the executor and its workers."""

from rhobust.executors.base import Executor as Executor
from rhobust.executors.base import Local as Local
from rhobust.executors.base import Task as Task
from rhobust.executors.base import WorkerError as WorkerError
from rhobust.executors.processes import Processes as Processes
from rhobust.executors.processes import Ranks as Ranks
from rhobust.executors.ray import Ray as Ray
from rhobust.process import ExecutorName


def choose_executor(
    name: ExecutorName | None, *, workers: int | None = None, address: str | None = None, gpus: float = 1.0
) -> Executor | None:
    """The executor of this name; None where none is named."""
    if address is not None and name != "ray":
        raise ValueError(f"address must be left out unless the executor is ray, got {address}")
    if name in (None, "local") and (workers is not None or gpus != 1.0):
        raise ValueError("workers and gpus must be left out unless the executor is processes or ray")
    if name is None:
        return None
    if name == "local":
        return Local()
    return Processes(workers, gpus) if name == "processes" else Ray(workers, gpus, address)
