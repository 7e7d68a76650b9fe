"""Which of several processes this one is: what torchrun, srun and their like say in the environment.

A process belongs to others only if the environment also says where they meet. A stray variable, exported by hand or
left by a scheduler, is named in one line on stderr and ignored: it neither silences a command nor cuts its work.
"""

import os
import re
import sys
from functools import cache
from typing import Literal

ExecutorName = Literal["local", "processes", "ray"]
"""Executors by their names on the command line."""
NUMBERED = ("RANK", "WORLD_SIZE")
"""The number of this process, and how many there are."""
RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT")
"""Where they meet."""
SINGLE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "SLURM_PROCID": "0"}
"""What launchers say to a single process: harmless wherever it comes from."""


BATCH = 1 << 31
"""Numbers of Slurm's steps from which on a step is no `srun`: the batch script itself has one of them, or none."""


def launched() -> bool:
    """Whether this process is one of several that a launcher started; a stray variable is named on stderr, once.

    Raises:
        ValueError: The number of this process is none of the numbers from 0 to the number of processes less one.
    """
    _read_slurm()
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


def _read_slurm() -> None:
    """Say in torchrun's words what `srun` says in its own, where it started several tasks and nobody else says more.

    The batch script of a job is no task of an `srun`, though Slurm gives it the job's number of tasks too: a command in
    it is a single process.
    """
    step, rank, world = (os.environ.get(f"SLURM_{name}", "") for name in ("STEP_ID", "PROCID", "NTASKS"))
    started = all(one.isdecimal() for one in (step, rank, world)) and int(step) < BATCH and int(world) > 1
    if not started or any(os.environ.get(name) for name in NUMBERED):
        return
    nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST", "")
    alone = os.environ.get("SLURM_STEP_NUM_NODES", os.environ.get("SLURM_NNODES")) == "1" or not nodes
    job = os.environ.get("SLURM_JOB_ID", "0")
    said = {
        "RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_RANK": os.environ.get("SLURM_LOCALID", rank),
        "MASTER_ADDR": "127.0.0.1" if alone else first_host(nodes),
        # Jobs that share a node, and steps of one job, get different ports.
        "MASTER_PORT": str(20_000 + (int(job) * 31 + int(step)) % 20_000 if job.isdecimal() else 20_000),
        **({"LOCAL_WORLD_SIZE": world} if alone else {}),
    }
    for name, value in said.items():
        os.environ.setdefault(name, value)


def first_host(nodes: str) -> str:
    """The first host of Slurm's list of nodes.

    >>> first_host("gpu[007-012,20],cpu1"), first_host("a1,a2"), first_host("rack[2-3]node[01,05]")
    ('gpu007', 'a1', 'rack2node01')
    """
    numbered = re.sub(r"\[([^\]]*)\]", lambda found: re.split(r"[-,]", found[1])[0], nodes)
    return numbered.split(",")[0]


@cache
def _notice(stray: str, missing: str) -> None:
    sys.stderr.write(f"rhobust: {stray!r} in the environment is ignored: without {missing} this is a single process\n")
