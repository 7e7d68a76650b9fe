"""Cores that other programs use too: threads that wait for each other sleep while they are crowded, and spin otherwise.

After every parallel loop the threads of an OpenMP team wait for the slowest of them. They spin for some milliseconds,
which is fastest where each has a core for itself. Where other programs want the cores too, a thread that spins burns
the time of the one that it waits for: a training step on two shared cores took tens of times longer. Threads that
always sleep cost two to three times as much on free cores.

GNU's OpenMP, which torch has on Linux, reads how long to spin once, when it is loaded. But at every wait it compares
the threads that it manages with the cores, and where there are more of them, they sleep almost at once. So idle threads
are the switch: some are kept while others crowd the cores, and let go when they leave. Guarantee: as many threads
compute as before, so that no number depends on it.
"""

import contextlib
import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rhobust.shared_context import SharedContext

PAUSE = 0.25
"""Seconds between two looks."""
WAITED = 0.25
"""Threads of this process that wait for a core, on average, from which on it is slowed down."""
SLACK = 0.25
"""Cores that others may use before there are too few."""
POLICIES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
"""The environment's own words on how to wait: they are heeded."""
PROC = Path("/proc")
"""Where Linux says what its cores and threads do."""
RUNNING = (1, 2, 3, 6, 7)
"""Columns of a core in `stat` that are work: user, nice, system, and both kinds of interrupts."""


@dataclass(frozen=True)
class Look:
    """What was used up to a moment, in seconds; the difference of two looks is what happened between them."""

    time: float
    waited: float
    """This process's threads, all together, waited so long for a core."""
    busy: float
    """The cores that this process may use worked so long, all together, whoever had them."""
    own: float
    """This process had so much of that."""

    @classmethod
    def now(cls) -> "Look":
        """Look; an OSError where the system does not say."""
        delays = 0
        for thread in (PROC / "self" / "task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                delays += int((thread / "schedstat").read_text().split()[1])
        names = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        lines = [line.split() for line in (PROC / "stat").read_text().splitlines()]
        ticks = sum(int(line[column]) for line in lines if line[0] in names for column in RUNNING)
        times = os.times()
        return cls(time.monotonic(), delays / 1e9, ticks / os.sysconf("SC_CLK_TCK"), own=times.user + times.system)

    def crowded(self, before: "Look", threads: int, cores: int, *, asleep: bool) -> bool:
        """Whether threads should sleep from now on.

        Others leave too few cores, and threads waited for one. Those that sleep wait less, so that the first is asked
        alone while they do.
        """
        seconds = self.time - before.time
        others = (self.busy - before.busy - self.own + before.own) / seconds
        few = cores - others < threads - SLACK
        return few and (asleep or self.waited - before.waited > WAITED * seconds)


class Idle:
    """Idle threads of every OpenMP library that is loaded, so many that it lets all threads sleep at once."""

    def __init__(self) -> None:
        self._end, self._started = threading.Event(), threading.Event()
        # A team belongs to the thread that made it, and is gone when that one ends.
        self._thread = threading.Thread(target=self._hold, name="rhobust idle", daemon=True)
        self._thread.start()
        self._started.wait()

    def _hold(self) -> None:
        more = len(os.sched_getaffinity(0)) + 1
        for path in openmp_libraries():
            with contextlib.suppress(OSError, AttributeError):
                library = ctypes.CDLL(path)
                # A parallel region of nothing: each of its threads asks for a number.
                library.GOMP_parallel(library.omp_get_num_threads, None, ctypes.c_uint(more), ctypes.c_uint(0))
        self._started.set()
        self._end.wait()

    def release(self) -> None:
        """End them."""
        self._end.set()
        self._thread.join()


def openmp_libraries() -> set[str]:
    """The files of GNU's OpenMP that this process has loaded."""
    lines = [line.split(maxsplit=5) for line in (PROC / "self" / "maps").read_text().splitlines()]
    return {line[5] for line in lines if len(line) == 6 and Path(line[5]).name.startswith("libgomp")}


def _watch(ended: threading.Event) -> None:
    idle: Idle | None = None
    # The system does not say, or no more threads may be started.
    with contextlib.suppress(OSError, ValueError, IndexError, RuntimeError):
        if ended.wait(PAUSE):
            return  # a short call, which looking would make longer
        before = Look.now()
        while not ended.wait(PAUSE):
            look, cores = Look.now(), len(os.sched_getaffinity(0))
            threads = getattr(sys.modules.get("torch"), "get_num_threads", lambda: 1)()  # without torch nothing waits
            crowded = threads > 1 and look.crowded(before, threads, cores, asleep=idle is not None)
            if crowded and idle is None:
                idle = Idle()
            elif idle is not None and not crowded:
                idle.release()
                idle = None
            before = look
    if idle is not None:
        idle.release()


def _begin() -> Callable[[], None]:
    ended = threading.Event()
    if sys.platform == "linux" and not any(os.environ.get(name) for name in POLICIES):
        with contextlib.suppress(RuntimeError):  # no more threads may be started
            threading.Thread(target=_watch, args=[ended], name="rhobust cores", daemon=True).start()
    return ended.set


watched_cores = SharedContext(_begin)
"""Torch's threads sleep while they wait for each other whenever others crowd the cores, until the outermost of these
contexts ends; also a decorator. Does nothing where the environment says how to wait, and where the system does not say
what its threads do."""
