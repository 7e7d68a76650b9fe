"""Settings of the whole process that are in force while anybody needs them, and the lock behind such counts."""

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ContextDecorator


def forkable_lock() -> AbstractContextManager[bool]:
    """A reentrant lock that is free in a forked child, which has none of the threads that may hold it in the parent."""
    lock = threading.RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock


class SharedContext(ContextDecorator):
    """A context that begins with its first entry and ends with its last exit, in whatever threads; a decorator too.

    Args:
        begin: Called at the first entry; it returns what is called at the last exit.

    Example:
        >>> def begin():
        ...     print("begun")
        ...     return lambda: print("ended")
        >>> context = SharedContext(begin)
        >>> with context, context:
        ...     print("inside")
        begun
        inside
        ended
    """

    def __init__(self, begin: Callable[[], Callable[[], object]]) -> None:
        # Reentrant: the collector may close a generator that is inside of the context while this thread holds it.
        self._begin, self._lock, self._open = begin, forkable_lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            if self._open == 0:
                self._end = self._begin()
            self._open += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._open -= 1
            if self._open == 0:
                self._end()
