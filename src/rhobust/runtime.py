"""Device and environment of this process."""

import os
import platform
from typing import Any

import torch

from rhobust.launch import launched
from rhobust.version import VERSION


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


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Versions and hardware, as written to `environment.json`."""
    return {
        "rhobust": VERSION,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "cpu_threads": torch.get_num_threads(),
    }
