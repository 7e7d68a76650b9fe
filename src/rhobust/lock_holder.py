"""Who owns a lock: a process, when it began, on which machine, and whether it is gone."""

import hashlib
import os
import platform
import re
import secrets
from dataclasses import dataclass
from functools import cache
from pathlib import Path

LIMIT = 120.0
"""Seconds without a heartbeat after which an owner on another machine counts as gone."""
HELD: set[str] = set()
"""Tokens of this process."""


@dataclass(frozen=True)
class Holder:
    """The owner of a lock, as the name of its entry says."""

    process: int
    started: int
    """When the process began, in the machine's ticks, so that a process number used again is noticed; 0: unknown."""
    machine: str
    """Names the machine since its last start, and the container: where the process number means something."""
    token: str
    """Random: names this ownership."""
    beat: int
    """Number of heartbeats."""
    host: str

    @classmethod
    def of_this_process(cls) -> "Holder":
        host = re.sub(r"[^A-Za-z0-9_.]", "-", platform.node())[:60] or "unknown"
        return cls(os.getpid(), _status(os.getpid())[1], _machine(), secrets.token_hex(6), 0, host)

    @classmethod
    def parse(cls, name: str) -> "Holder | None":
        """The owner that an entry names; None where it is not the name of one."""
        found = re.fullmatch(r"(\d{1,19})-(\d{1,19})-([0-9a-f]{8})-([0-9a-f]{12})-(\d{1,19})-([A-Za-z0-9_.-]+)", name)
        if found is None:
            return None
        process, started, machine, token, beat, host = found.groups()
        return cls(int(process), int(started), machine, token, int(beat), host)

    @property
    def name(self) -> str:
        return f"{self.process}-{self.started}-{self.machine}-{self.token}-{self.beat}-{self.host}"

    @property
    def here(self) -> bool:
        """Whether its process number means something to this process."""
        return self.machine == _machine()

    def gone(self, age: float) -> bool:
        """Whether it counts as gone, with the seconds since its last heartbeat."""
        if not self.here:
            return age > LIMIT
        state, started = _status(self.process)
        if state in ("", "Z", "X") or (self.started and started not in (0, self.started)):
            return True
        return self.process == os.getpid() and self.token not in HELD  # an interrupt came while it was acquired

    def describe(self, age: float) -> str:
        """What is known of an owner that does not count as gone."""
        if self.here:
            suspended = ", but is suspended" if _status(self.process)[0] in ("T", "t") else ""
            return f"process {self.process} on this machine is writing it{suspended}"
        return (
            f"process {self.process} on {self.host} may still be writing it: its last heartbeat was"
            f" {max(0.0, age):.0f} s ago, and after {LIMIT:.0f} s it counts as gone"
        )


@cache
def _machine() -> str:
    """Eight hex digits that name this machine since its last start, and this container."""
    try:
        known = Path("/proc/sys/kernel/random/boot_id").read_text() + str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        known = platform.node()
    return hashlib.sha256(known.encode()).hexdigest()[:8]


def _status(process: int) -> tuple[str, int]:
    """State of a process of this machine (one letter, empty if there is none), and when it began (0: unknown)."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, ValueError, IndexError):
        pass
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return "", 0
    except OSError:
        pass  # of another user
    return "?", 0
