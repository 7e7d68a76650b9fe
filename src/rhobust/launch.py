"""Which of several processes this one is: what torchrun and its like say in the environment.

A process belongs to others only if the environment also says where they meet. A stray variable, exported by hand or
left by a scheduler, is named in one line on stderr and ignored: it neither silences a command nor cuts its work.
"""

import os
import sys
from functools import cache

NUMBERED = ("RANK", "WORLD_SIZE")
"""The number of this process, and how many there are."""
RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT")
"""Where they meet."""
SINGLE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "SLURM_PROCID": "0"}
"""What launchers say to a single process: harmless wherever it comes from."""


def launched() -> bool:
    """Whether this process is one of several that a launcher started; a stray variable is named on stderr, once.

    Raises:
        ValueError: The number of this process is none of the numbers from 0 to the number of processes less one.
    """
    everything = NUMBERED + RENDEZVOUS
    missing = [name for name in everything if not os.environ.get(name)]
    if missing:
        stray = [f"{name}={os.environ[name]}" for name, one in SINGLE.items() if os.environ.get(name, one) != one]
        if stray:
            _notice(" ".join(stray), " and ".join(missing))
        return False
    rank, world = (os.environ[name] for name in NUMBERED)
    if not (rank.isdecimal() and world.isdecimal() and int(rank) < int(world)):
        raise ValueError(f"RANK must be a number from 0 to WORLD_SIZE - 1, got RANK={rank!r}, WORLD_SIZE={world!r}")
    return True


@cache
def _notice(stray: str, missing: str) -> None:
    sys.stderr.write(f"rhobust: {stray!r} in the environment is ignored: without {missing} this is a single process\n")
