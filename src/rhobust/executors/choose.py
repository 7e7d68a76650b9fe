"""An executor from the words of the command line."""

from rhobust.executors.base import Executor, Local
from rhobust.executors.processes import Processes
from rhobust.executors.ray import Ray
from rhobust.launch import ExecutorName


def choose_executor(
    name: ExecutorName | None, *, workers: int | None = None, address: str | None = None, gpus: float = 1.0
) -> Executor | None:
    """The executor of this name; None where none is named.

    Args:
        name: local, processes or ray.
        workers: Number of workers; default: one per GPU, or per core.
        address: Ray: the cluster to join.
        gpus: GPUs per worker.
    """
    if address is not None and name != "ray":
        raise ValueError(f"address must be left out unless the executor is ray, got {address}")
    if name in (None, "local") and (workers is not None or gpus != 1.0):
        raise ValueError("workers and gpus must be left out unless the executor is processes or ray")
    if name is None:
        return None
    if name == "local":
        return Local()
    return Processes(workers, gpus) if name == "processes" else Ray(workers, gpus, address)
