"""The device of a process, and data-parallel training: each process takes its rows of every batch."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rhobust.noise import BatchNoise
from rhobust.process import launched

PATIENCE = timedelta(days=7)
"""How long a process waits for the others; torchrun ends them all when one fails."""


def resolve_device(device: torch.device | str) -> torch.device:
    """The torch device of a name: "auto" is the GPU if there is one, else the CPU.

    With torchrun each process gets its own GPU.
    """
    if device == "auto":
        if not torch.cuda.is_available():
            return torch.device("cpu")
        if launched() and os.environ.get("LOCAL_RANK", "").isdecimal():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("cuda")
    try:
        resolved = torch.device(device)
        torch.empty(1, device=resolved)
    except (RuntimeError, AssertionError):
        resolved = None
    if resolved is None or resolved.type not in ("cpu", "cuda") or (resolved.type == "cpu" and resolved.index):
        raise ValueError(f"device must be auto, cpu, or a CUDA device that torch can use here, got {device}")
    return resolved


@dataclass(frozen=True)
class ProcessGroup:
    """Number of training processes, and the rank of this one.

    Every process generates the order, the augmentation and the noise of the whole batch and keeps its own rows, so the
    losses are those of one process with the same batch. Only batch normalisation uses the rows of one process.
    """

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def rows(self, indices: Tensor) -> Tensor:
        """This process's rows of a batch; there must be at least one per process."""
        if len(indices) < self.world:
            raise ValueError(f"a batch must hold at least one image per process ({self.world}), got {len(indices)}")
        return indices[self.rank :: self.world]

    def add_gradients(self, model: nn.Module) -> None:
        """Sum the gradients of all processes in one all-reduce."""
        if self.world == 1:
            return
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def total(self, values: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def wait(self) -> None:
        """Wait for all processes."""
        if self.world > 1:
            dist.barrier(_patient_group())

    def tell(self, message: Any) -> Any:
        """What the first process says, to all of them; the others wait for it."""
        told = [message]
        if self.world > 1:
            dist.broadcast_object_list(told, src=0, group=_patient_group())
        return told[0]

    def apart(self) -> bool:
        """Whether the processes may be on several machines."""
        return os.environ.get("LOCAL_WORLD_SIZE") != str(self.world)

    def after_first(self, action: Callable[[], Any]) -> None:
        """Let the first process act while all wait; where it fails, all fail with the same line."""
        failure: Exception | None = None
        if self.first:
            try:
                action()
            except Exception as error:  # raised again below
                failure = error
        said = self.tell(None if failure is None else str(failure))
        if failure is None and said is not None:
            failure = ValueError(said)
        if failure is not None:
            raise failure


@dataclass
class ShardNoise:
    """The rows of a whole batch's noise that belong to this process."""

    whole: BatchNoise
    processes: ProcessGroup
    batch: int = 0
    """Size of the whole batch; set before each batch."""

    def normal(self, x: Tensor, draws: int) -> Tensor:
        if self.processes.world == 1:
            return self.whole.normal(x, draws)
        template = x.new_empty(()).expand(self.batch, *x.shape[1:])
        return self.whole.normal(template, draws)[:, self.processes.rank :: self.processes.world]


def join_processes(device: torch.device) -> ProcessGroup:
    """The processes started by torchrun, or a single process."""
    if not launched():
        return ProcessGroup()
    if not dist.is_initialized():
        try:
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        except (RuntimeError, ValueError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(f"MASTER_ADDR and MASTER_PORT must lead to the other processes, but {reason}") from None
    return ProcessGroup(dist.get_rank(), dist.get_world_size())


@cache
def _patient_group() -> Any:
    """All processes, on the CPU: they only wait for each other."""
    return dist.new_group(backend="gloo", timeout=PATIENCE)
