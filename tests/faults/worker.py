"""A command in a process of its own that can be killed, suspended, or put on another machine."""

import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

COMMANDS = {
    "train": "method:gaussian --method.sigma 0.25 --data digits --model cnn-small --epochs 4 --batch-size 400",
    "attack": "attack:pgd --attack.steps 3 --radii 0 0.25 0.5 --limit 40",
    "certify": "--radii 0 0.25 --n0 20 --n 200 --limit 40",
    "certify-shift": "--eps 0 0.1 --limit 200 --draws 4",
    "curves": "--eps 0 0.1 --gammas 1 4 --steps 3 --limit 40 --draws 4",
}
WRITES = frozenset({"open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.truncate", "os.utime"})
"""Audit events of operations on files."""
PATIENCE = 300.0
"""Seconds after which a command counts as hanging."""


def arguments(name, folder, *, resume=False, wait=False):
    where = ["--out", str(folder)] if name == "train" else [str(folder)]
    extra = ["--resume"] * (resume and name == "train") + ["--wait"] * wait
    options = COMMANDS[name].split()
    return [name, *(options + where if name == "train" else where + options), "--device", "cpu", "--quiet", *extra]


@dataclass
class Worker:
    """A command in a process of its own."""

    argv: list[str]
    errors: Path
    real: bool = False
    fatal: int | None = None
    """Kill the process before its operation on a file with this number."""
    machine: str | None = None
    """A machine of its own, and heartbeats that count in tenths of a second."""
    environment: dict[str, str] = field(default_factory=dict)
    """What a launcher of several processes says."""
    pid: int = field(init=False)
    status: int | None = None

    def __post_init__(self):
        if self.real:
            command, append = [sys.executable, "-m", "rhobust", *self.argv], os.O_WRONLY | os.O_APPEND | os.O_CREAT
            outputs = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
            outputs.append((os.POSIX_SPAWN_OPEN, 2, str(self.errors), append, 0o644))
            self.pid = os.posix_spawn(sys.executable, command, os.environ, file_actions=outputs)
            return
        self.pid = os.fork()
        if self.pid == 0:
            code = 70
            try:
                code = self._child()
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                os._exit(code)

    def _child(self):
        from rhobust import cli, lock, lock_holder
        from rhobust.evaluation import base, sweep
        from rhobust.executors import base as executors

        descriptor = os.open(self.errors, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(descriptor, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        # More writes per second than in earnest.
        executors.PAUSE, executors.PIECE, base.BLOCK, lock.POLL = 0.0, 5, 10, 0.02
        sweep.BLOCKS["cpu"] = 10
        os.environ.update(self.environment)
        if self.machine is not None:
            lock_holder._machine = lambda: self.machine
            lock_holder.LIMIT, lock.BEAT = 0.6, 0.05
        if self.fatal is not None:
            left, place = [self.fatal], str(self.errors.parent)

            def hook(event, args):
                if (
                    event in WRITES
                    and str(args[0]).startswith(place)
                    and (event != "open" or args[1] not in ("r", "rb"))
                ):
                    left[0] -= 1
                    if left[0] < 0:
                        os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(hook)
        return cli.run(self.argv)

    def signal(self, number):
        """Send a signal; whether the process was still there."""
        if self.ended():
            return False
        os.kill(self.pid, number)
        return True

    def ended(self):
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is not None

    def wait(self, seconds=PATIENCE):
        """The exit code; None after so many seconds."""
        until = time.monotonic() + seconds
        while not self.ended() and time.monotonic() < until:
            time.sleep(0.005)
        return self.status

    def complaint(self):
        return self.errors.read_text(errors="replace") if self.errors.exists() else ""
