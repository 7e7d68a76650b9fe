"""What other packages must not leave behind."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def generators_kept(device: torch.device) -> Iterator[None]:
    """Other packages draw from the global generators, which are not ours to move."""
    state = np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        np.random.set_state(state)  # noqa: NPY002
