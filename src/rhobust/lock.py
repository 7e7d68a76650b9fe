"""The lock of a record file: one writer at a time, over all processes."""

import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_HELD: set[Path] = set()
"""Locks that this process holds."""


@contextmanager
def one_writer(path: Path, name: str) -> Iterator[None]:
    """Keep other processes from writing a file.

    The lock is a file next to it that names its owner. One whose owner is gone from this machine is taken over.

    Args:
        path: The file.
        name: Name of the lock, without its ending.

    Raises:
        ValueError: Another process is writing the file.
    """
    lock = path.with_name(f"{name}.lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    owner = {"host": platform.node(), "process": os.getpid()}
    if not _create(lock, owner):
        holder = _holder(lock)
        if holder is not None and not (holder.get("host") == owner["host"] and _gone(holder.get("process"), lock)):
            raise ValueError(
                f"{path} must have one writer, but process {holder.get('process')} on {holder.get('host')} is"
                f" writing it: wait for it, or delete {lock.name} if it is gone"
            )
        lock.unlink(missing_ok=True)
        if not _create(lock, owner):
            raise ValueError(f"{path} must have one writer, but another process is writing it: wait for it")
    _HELD.add(lock)
    try:
        yield
    finally:
        _HELD.discard(lock)
        lock.unlink(missing_ok=True)


def _create(lock: Path, owner: dict[str, Any]) -> bool:
    """Create the lock file, unless there is one."""
    try:
        with lock.open("x") as file:
            json.dump(owner, file)
    except FileExistsError:
        return False
    return True


def _holder(lock: Path) -> dict[str, Any] | None:
    """Who holds a lock; None where it was given back in the meantime, or names nobody."""
    try:
        found = json.loads(lock.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _gone(process: object, lock: Path) -> bool:
    """Whether the owner of a lock, a process of this machine, has ended."""
    if not isinstance(process, int):
        return True
    if process == os.getpid():
        return lock not in _HELD  # an earlier process had the same number, as in a container that was started again
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False
