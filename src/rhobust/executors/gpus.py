"""Which GPUs a worker has."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def share_of_gpu(gpus: float) -> float:
    """Workers per GPU; refuses a share that fits no whole number of times."""
    if not gpus > 0 or (gpus > 1 and gpus != int(gpus)):
        raise ValueError(f"gpus must be a whole number, or a share in (0, 1], got {gpus:g}")
    return int(1 / gpus + 1e-9) if gpus <= 1 else 1 / gpus


def visible_gpus() -> list[str]:
    """Names of the GPUs that this process may use."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]


def gpus_of(place: int, gpus: float) -> str:
    """The GPUs of a worker, as CUDA_VISIBLE_DEVICES names them: consecutive workers get different ones."""
    known, width = visible_gpus(), max(1, int(gpus))
    first = place * width
    return ",".join(known[(first + offset) % len(known)] for offset in range(width))


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
