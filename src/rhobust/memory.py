"""Freed memory stays with the process while networks run on a CPU, as torch keeps a GPU's.

Every layer writes its outputs into fresh memory. GNU's malloc takes a large block from the system and gives it back as
soon as it is free, and the system clears every page at its first use: for a ResNet-18 that took a third of the time.
While this is on, blocks of any size come from the heap, and the heap does not shrink; afterwards its free pages are
given back. Guarantee: no number depends on it.
"""

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

MIB = 2**20
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
"""Names of malloc's settings in mallopt(3)."""
KEPT = {TRIM_THRESHOLD: -1, MMAP_MAX: 0}
"""No part of the heap is given back, and no block is taken from the system on its own."""
USUAL = {TRIM_THRESHOLD: 64 * MIB, MMAP_THRESHOLD: 32 * MIB, MMAP_MAX: 65536}
"""Where malloc's own adjustment ends in a process that frees large blocks; its state before cannot be read."""


@contextmanager
def kept_memory() -> Iterator[None]:
    """Keep freed memory until the outermost of these contexts ends; works as a decorator too.

    Does nothing without GNU's malloc, and where the environment has settings for it.
    """
    _USERS.enter()
    try:
        yield
    finally:
        _USERS.leave()


class _Users:
    """How many contexts are open, in all threads: malloc's settings belong to the process."""

    def __init__(self) -> None:
        self._lock, self._open = threading.Lock(), 0
        self._malloc: ctypes.CDLL | None = None

    def enter(self) -> None:
        with self._lock:
            if self._open == 0:
                self._malloc = _gnu_malloc()
                self._set(KEPT)
            self._open += 1

    def leave(self) -> None:
        with self._lock:
            self._open -= 1
            if self._open == 0 and self._malloc is not None:
                self._set(USUAL)
                self._malloc.malloc_trim(ctypes.c_size_t(0))

    def _set(self, settings: dict[int, int]) -> None:
        if self._malloc is not None:
            for name, value in settings.items():
                self._malloc.mallopt(name, value)


_USERS = _Users()


def _gnu_malloc() -> ctypes.CDLL | None:
    """The C library, if its malloc may be set: it is GNU's, and nobody has set it before the process started."""
    own = any(name.startswith("MALLOC_") for name in os.environ) or "malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if sys.platform != "linux" or own:
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") and hasattr(library, "mallopt") else None
