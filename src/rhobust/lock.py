"""One writer per file and per run folder, over all processes and machines that share a file system.

The lock of a file is a folder with one entry, itself a folder, whose name says who owns it and counts its heartbeats.
Each step is one rename or removal of a name that nobody else can hold, so the file server decides it, on NFS too:

- acquire: rename a folder that was prepared with an entry; this fails unless the lock is absent or empty
- heartbeat: rename the own entry to its next number; this fails once another process has taken it over
- take over: rename the entry that was found to be stale to one's own; of several processes one succeeds, and none if
  the owner has given a heartbeat since
- write a file: write it inside the entry and rename it from there; this fails once the entry was taken over
- release: remove the entry

Whether an owner on this machine is gone is known: by its process number and its start time. Of one on another machine
only the heartbeat is known, by the clock of the file server; after `LIMIT` seconds without one it counts as gone. If it
was only suspended and wakes, its next write fails before anything is written.
"""

import errno
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from rhobust.files import check_regular, naming
from rhobust.lock_holder import HELD, Holder

BEAT = 5.0
"""Seconds between two heartbeats."""
POLL = 0.2
"""Seconds between two looks at a lock that is waited for."""
LOOKS = 50
"""Looks at a lock that is not free and names no owner, as in the moment of a heartbeat, before it is called damaged."""
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.ENOENT)


class BusyError(ValueError):
    """Another process owns what was to be written."""


class LostError(ValueError):
    """Another process took over what this one was writing; nothing more was written."""


class Ownership:
    """A lock that this process holds, with a thread that gives its heartbeats."""

    def __init__(self, lock: Path, what: Path, holder: Holder) -> None:
        self.what = what
        self._lock, self._holder, self._mutex = lock, holder, threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"heartbeat of {lock.name}", daemon=True)
        self._thread.start()

    @property
    def _entry(self) -> Path:
        return self._lock / self._holder.name

    def check(self) -> None:
        """Give a heartbeat; raise `LostError` if another process took over."""
        with self._mutex:
            self._beat()

    def replace(self, path: Path, content: bytes) -> None:
        """Write a file whole, only if this process still owns it at that moment."""
        part = secrets.token_hex(4)
        with naming(path):
            if path.exists():
                check_regular(path)
            with self._mutex:
                self._beat()
                file = (self._entry / part).open("xb")
            try:
                with file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                with self._mutex:
                    (self._entry / part).replace(path)
            except FileNotFoundError:
                raise self._lost() from None
            except BaseException:
                with self._mutex:
                    (self._entry / part).unlink(missing_ok=True)
                raise

    def append(self, path: Path, known: tuple[int, int], content: bytes) -> tuple[int, int]:
        """Append to a file, only if it is the one that this process knows; raise `LostError` otherwise.

        Args:
            path: The file.
            known: Its inode and size, as this process left it.
            content: What to append.

        Returns:
            Inode and size afterwards.
        """
        try:
            file = path.open("r+b", buffering=0)
        except FileNotFoundError:
            raise self._changed(path) from None
        with naming(path), file:
            # Whoever takes over puts a copy in the place of the file. If that happens after this check, the bytes go
            # to the file that was replaced, and the second check says so.
            self.check()
            if identity(path, file.fileno()) != known:
                raise self._changed(path)
            try:
                file.seek(known[1])
                rest = memoryview(content)
                while rest:
                    rest = rest[file.write(rest) or 0 :]
                os.fsync(file.fileno())
            except BaseException:
                file.truncate(known[1])  # a full disk: what was written so far is no whole line
                raise
            self.check()
            after = (known[0], known[1] + len(content))
            if identity(path, file.fileno()) != after:
                raise self._changed(path)
        return after

    def release(self) -> None:
        """Give the lock back; one that was taken over is left alone."""
        if self._holder.process != os.getpid():
            return  # a fork of the owner
        self._stop.set()
        self._thread.join()
        with suppress(OSError, LostError):
            self._beat()
            _clear(self._entry)
            self._entry.rmdir()
            self._lock.rmdir()
        HELD.discard(self._holder.token)

    def _beat(self) -> None:
        following = replace(self._holder, beat=self._holder.beat + 1)
        try:
            self._entry.rename(self._lock / following.name)
        except FileNotFoundError:
            # The rename was done where its reply was lost on the network, or where an interrupt came after it.
            holder = _holder(self._lock)
            if holder is None or holder.token != self._holder.token:
                raise self._lost() from None
            following = holder
        self._holder = following
        with suppress(OSError):
            os.utime(self._entry)  # not every file system dates a rename

    def _keep(self) -> None:
        while not self._stop.wait(BEAT):
            try:
                self.check()
            except LostError:
                return
            except OSError:
                continue  # the file server may come back; the main thread's next write says more

    def _lost(self) -> LostError:
        return LostError(f"{self.what} was taken over by another process while this one gave no heartbeat: stopped")

    def _changed(self, path: Path) -> LostError:
        return LostError(f"{path} was changed by another process while this one was writing it: stopped")


def identity(path: Path, descriptor: int | None = None) -> tuple[int, int] | None:
    """Inode and size of a file; None where there is none, or where an open file is no longer the one of that name."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    if descriptor is not None and os.fstat(descriptor).st_ino != found.st_ino:
        return None
    return found.st_ino, found.st_size


@contextmanager
def owned(
    lock: Path, what: Path, *, wait: float = 0.0, notify: Callable[[str], None] | None = None
) -> Iterator[Ownership]:
    """Own a file or a folder: no other process writes it meanwhile.

    Args:
        lock: The lock; its folder is created, and removed again if nothing is written into it.
        what: What is owned, for messages.
        wait: Seconds to wait for another owner.
        notify: Gets one line when the waiting begins.

    Raises:
        BusyError: Another process owns it.
    """
    there = lock.parent.exists()
    lock.parent.mkdir(parents=True, exist_ok=True)
    try:
        ownership = Ownership(lock, what, _acquire(lock, what, wait, notify))
        try:
            yield ownership
        finally:
            ownership.release()
    finally:
        if not there:
            with suppress(OSError):
                lock.parent.rmdir()


def tidy(lock: Path) -> None:
    """Remove what processes left that were killed after the work was finished: a lock, or what one prepared."""
    if lock.exists() or any(path.name.startswith(f".{lock.name}-") for path in lock.parent.iterdir()):
        with suppress(BusyError, OSError), owned(lock, lock):
            pass


def _acquire(lock: Path, what: Path, wait: float, notify: Callable[[str], None] | None) -> Holder:
    mine, until, nobody = Holder.of_this_process(), time.monotonic() + wait, 0
    prepared = lock.with_name(f".{lock.name}-{mine.name}")
    HELD.add(mine.token)
    try:
        while nobody < LOOKS:
            # Made anew where another machine removed it, because this process was suspended for long.
            with naming(what):  # in a folder that cannot be written nobody knows the lock's name
                (prepared / mine.name).mkdir(parents=True, exist_ok=True)
            if _rename(prepared, lock, lock / mine.name):
                break
            holder = _holder(lock)
            age = None if holder is None else _age(lock / holder.name, prepared)
            if holder is None or age is None:  # released, or in the middle of a heartbeat
                nobody += 1
                with suppress(OSError):
                    lock.rmdir()  # where a rename does not replace an empty folder
                time.sleep(POLL / 10)
                continue
            if holder.gone(age):
                if _rename(lock / holder.name, lock / mine.name, lock / mine.name):
                    with suppress(OSError):
                        _clear(lock / mine.name)
                    break
                continue
            nobody = 0
            if time.monotonic() >= until:
                raise BusyError(
                    f"{what} must have one writer, but {holder.describe(age)}; wait for it (--wait, or wait=True in"
                    " Python)"
                )
            if notify is not None:
                notify(f"waiting for {what}: {holder.describe(age)}")
                notify = None
            time.sleep(POLL)
        else:
            raise BusyError(f"{what} must have one writer, but {lock} is no lock: delete it if nobody writes")
    except BaseException:
        HELD.discard(mine.token)
        raise
    finally:
        shutil.rmtree(prepared, ignore_errors=True)
    _sweep(lock)
    return mine


def _rename(old: Path, new: Path, made: Path) -> bool:
    """Rename where that is possible; whether what it makes is there."""
    try:
        old.rename(new)
    except OSError as error:
        if error.errno not in _TAKEN:
            raise
        return made.is_dir()  # its reply may have been lost
    return True


def _holder(lock: Path) -> Holder | None:
    """The owner that a lock names; None where it names none, or is none."""
    if lock.is_symlink():
        return None
    try:
        names = sorted(path.name for path in lock.iterdir())
    except OSError:
        return None
    return next(filter(None, map(Holder.parse, names)), None)


def _age(entry: Path, probe: Path) -> float | None:
    """Seconds since an entry's last heartbeat, by the clock of the file server; None where it is gone."""
    os.utime(probe)
    try:
        return _changed_at(probe) - _changed_at(entry)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _changed_at(path: Path) -> float:
    """When a folder was changed: by the file server's clock, which nobody can set; opening asks the server."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        return os.fstat(descriptor).st_ctime
    finally:
        os.close(descriptor)


def _sweep(lock: Path) -> None:
    """Remove what processes prepared that were killed while they acquired the lock."""
    head = f".{lock.name}-"
    for path in lock.parent.iterdir():
        holder = Holder.parse(path.name.removeprefix(head))
        if path.name.startswith(head) and holder is not None:
            with suppress(OSError):
                if holder.gone(_age(path, lock) or 0.0):
                    shutil.rmtree(path, ignore_errors=True)


def _clear(entry: Path) -> None:
    """Remove the files that a process was writing when it ended."""
    for path in entry.iterdir():
        path.unlink()
