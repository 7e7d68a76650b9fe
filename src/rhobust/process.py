"""The process: its streams and signals, errors as one line with an exit code, and whether it is one of several.

Guarantee: whatever a file, a folder or a user's own code holds, the terminal gets printable characters only.

What torchrun, srun and their like say is in the environment. A process belongs to others only if the environment also
says where they meet. A stray variable, exported by hand or left by a scheduler, is named in one line on stderr and
ignored: it neither silences a command nor cuts its work.
"""

import contextlib
import os
import re
import shlex
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from functools import cache
from types import FrameType
from typing import Literal

from rhobust.formatting import printable, shorten

FAILED, MISTAKE, INTERNAL, GONE = 1, 2, 70, 141
"""Exit codes: a check failed; a mistake in what was given; an error of rhobust's own; the reader of the output left."""
KEEPS_NOTHING = ("predict", "compare", "audit", "sign", "report", "publish", "demo")
"""Commands of which nothing is left to go on from."""
_STREAMS = ("stdin", "stdout", "stderr")
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


asked: set[int] = set()
"""Signals that asked this process to end."""


class TerminatedError(KeyboardInterrupt):
    """The process was asked to end (SIGTERM): it ends as it does after Ctrl-C."""


def open_streams() -> None:
    """Make sure that every standard stream is open, and that no character is too strange for it.

    A file that is opened while standard output is closed would get its number, and what is printed would go there.

    Raises:
        ValueError: Standard output is closed: nothing that is computed could be shown.
    """
    closed = sys.stdout is None
    for number, name in enumerate(_STREAMS):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDONLY if number == 0 else os.O_WRONLY)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w"))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    if closed:
        raise ValueError("standard output must be open, but it is closed")


def catch_signals() -> None:
    """Let Ctrl-C and SIGTERM end the work in order, once: the second of them ends the process at once."""

    def stop(number: int, _: FrameType | None) -> None:
        for each in caught:
            signal.signal(each, signal.SIG_DFL)
        asked.add(number)
        raise TerminatedError if number == signal.SIGTERM else KeyboardInterrupt

    # What whoever started the process ignores (nohup, a background job) stays ignored.
    caught = [one for one in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(one) is not signal.SIG_IGN]
    for each in caught:
        signal.signal(each, stop)


@contextlib.contextmanager
def results_only() -> Iterator[None]:
    """Keep standard output for the result: what is printed meanwhile, by Python or past it, goes to standard error."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # a stream without a descriptor, or a closed one
            if sys.stdout.fileno() == 1:
                sys.stdout.flush()
                kept = os.dup(1)
                stack.callback(os.close, kept)
                stack.callback(os.dup2, kept, 1)
                os.dup2(2, 1)
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield


def emit(text: str) -> None:
    """Write the result to standard output; control characters are shown escaped.

    Raises:
        BrokenPipeError: The reader left.
        ValueError: It takes no more, for example because the disk is full.
    """
    try:
        sys.stdout.write("\n".join(map(printable, text.split("\n"))))
        sys.stdout.flush()
    except OSError as error:
        # Nothing may be left to write when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise ValueError(f"standard output must take the result, but: {error.strerror}") from None


def say(line: str) -> None:
    """Write one line to standard error, whatever it holds; a reader who left is no error."""
    try:
        sys.stderr.write(f"rhobust: {printable(shorten(' '.join(line.split())))}\n")
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def answer(error: BaseException, arguments: Sequence[str]) -> int:
    """Say in one line what went wrong, and return the exit code.

    With --debug among the arguments the traceback is shown too.
    """
    if "--debug" in arguments:
        traceback.print_exception(error)
    if isinstance(error, KeyboardInterrupt):
        again = [*arguments, *(["--resume"] if arguments[:1] == ["train"] and "--resume" not in arguments else [])]
        command = shlex.join(["rhobust", *again])
        if arguments[:1] and arguments[0] in KEEPS_NOTHING:
            say(f"interrupted; nothing is kept; this begins again: {command}")
        else:
            say(f"interrupted; {str(error) or 'what was done is kept'}; this goes on from there: {command}")
        # Ray makes a plain KeyboardInterrupt of what a signal's handler raises in one of its calls.
        terminated = isinstance(error, TerminatedError) or signal.SIGTERM in asked
        return 128 + (signal.SIGTERM if terminated else signal.SIGINT)
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "allocate" in str(error)):
        say(f"there must be enough memory, but {_text(error)}: take fewer images at once, or a smaller network")
        return MISTAKE
    if isinstance(error, ValueError | OSError | FloatingPointError):
        say(_text(error))
        return MISTAKE
    where = "" if "--debug" in arguments else "; --debug shows the traceback"
    say(f"internal error, please report it: {type(error).__name__}: {_text(error)}{where}")
    return INTERNAL


def _text(error: BaseException) -> str:
    """An error in the words of the command line, where what is missing is given by options, not by arguments."""
    if isinstance(error, OSError) and error.strerror is not None:
        return error.strerror if error.filename is None else f"{os.fsdecode(error.filename)}: {error.strerror}"
    named = getattr(error, "untrusted", None)
    if named is not None:
        options = " ".join(f"--{name} {shlex.quote(value)}" for name, value in named.items())
        return f"{getattr(error, 'refusal', error)}: if you trust it, pass {options}, or --trust"
    unsmoothed = getattr(error, "unsmoothed", None)
    if unsmoothed is not None:
        return f"{unsmoothed}: pass --sigma, or attack the base network with attack:pgd"
    return str(error).strip() or ("there is not enough" if isinstance(error, MemoryError) else type(error).__name__)


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
