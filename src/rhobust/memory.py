"""Freed memory stays with the process while networks run on a CPU, as torch keeps a GPU's.

Every layer writes its outputs into fresh memory. GNU's malloc takes a large block from the system and gives it back as
soon as it is free, and the system clears every page at its first use: for a ResNet-18 that took a third of the time.
While this is on, blocks of any size come from the heap, and the heap does not shrink; afterwards its free pages are
given back. Guarantee: no number depends on it.
"""

import ctypes
import os
import sys
from collections.abc import Callable

from rhobust.shared_context import SharedContext

MIB = 2**20
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
"""Names of malloc's settings in mallopt(3)."""
KEPT = {TRIM_THRESHOLD: -1, MMAP_MAX: 0}
"""No part of the heap is given back, and no block is taken from the system on its own."""
USUAL = {TRIM_THRESHOLD: 64 * MIB, MMAP_THRESHOLD: 32 * MIB, MMAP_MAX: 65536}
"""Where malloc's own adjustment ends in a process that frees large blocks; its state before cannot be read."""


def _keep() -> Callable[[], None]:
    malloc = _gnu_malloc()
    if malloc is None:
        return lambda: None

    def give_back() -> None:
        _set(malloc, USUAL)
        malloc.malloc_trim(ctypes.c_size_t(0))

    _set(malloc, KEPT)
    return give_back


kept_memory = SharedContext(_keep)
"""Freed memory is kept until the outermost of these contexts ends; also a decorator. Does nothing without GNU's malloc,
and where the environment has settings for it."""


def _set(malloc: ctypes.CDLL, settings: dict[int, int]) -> None:
    for name, value in settings.items():
        malloc.mallopt(name, value)


def _gnu_malloc() -> ctypes.CDLL | None:
    """The C library, if its malloc may be set: it is GNU's, and nobody has set it before the process started."""
    own = any(name.startswith("MALLOC_") for name in os.environ) or "malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if sys.platform != "linux" or own:
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") and hasattr(library, "mallopt") else None
