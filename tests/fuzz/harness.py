"""Bad input is run through the command line in this process, under a time limit, and each answer gets a verdict."""

import contextlib
import io
import json
import os
import re
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

LIMIT = 60.0
"""Seconds after which a case counts as a hang; the machine may be busy."""
GOOD = ("refused", "failed", "right")
"""Verdicts that a case should get: one line and exit code 2, a failed check and exit code 1, a right success."""


class LateError(BaseException):
    """A case ran past its limit; no handler of rhobust takes it for an error of its own."""


@dataclass(frozen=True)
class Case:
    """One command on one bad input."""

    group: str
    name: str
    prepare: Callable[[Path], Any]
    """Makes the input in an empty folder, which is then the current one, and returns the arguments; or a function in
    their place, which must return or raise ValueError or OSError."""
    right: Callable[[str], bool]
    """Whether what a success printed is right; False where the input must be refused."""


@dataclass(frozen=True)
class Outcome:
    """What became of a case."""

    verdict: str
    detail: str
    seconds: float


def refused(_: str) -> bool:
    """No success is right."""
    return False


def anything(_: str) -> bool:
    """Every success is right: the input is odd, not wrong."""
    return True


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in a folder; links, FIFOs and read-only files in it are removed with it."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `LateError` after some seconds."""

    def late(_: int, frame: FrameType | None) -> None:
        # What a callback of the garbage collector raises is lost: the next alarm is for what it interrupted.
        if frame is None or frame.f_code.co_name != "gc_callback":
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise LateError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.05)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def execute(case: Case, limit: float = LIMIT) -> Outcome:
    """Run a case in a folder of its own and judge it."""
    out, err, code, caught = io.StringIO(), io.StringIO(), -1, ""
    begin = time.perf_counter()
    with inside(Path(tempfile.mkdtemp(prefix="fuzz-"))), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            todo = case.prepare(Path.cwd())
            with limited(limit), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = call(todo) if callable(todo) else command([str(word) for word in todo])
        except LateError:
            caught = "hang"
        except BaseException:
            caught = "traceback"
            err.write(traceback.format_exc())
    seconds = time.perf_counter() - begin
    verdict = caught or judge(case, code, out.getvalue(), err.getvalue())
    return Outcome(verdict, " | ".join(err.getvalue().strip().splitlines()[-3:]) or out.getvalue()[:300], seconds)


def command(arguments: list[str]) -> int:
    """Run a command as the console script does."""
    from rhobust.cli import run

    try:
        return run(arguments)
    except SystemExit as stop:  # help
        return stop.code if isinstance(stop.code, int) else 1


def call(parser: Callable[[], Any]) -> int:
    """Call a parser; an error of one line that it may raise counts as exit code 2."""
    try:
        parser()
    except (ValueError, OSError) as error:
        # The command line joins the lines of a message.
        import sys

        sys.stderr.write(f"rhobust: {' '.join(str(error).split())}\n")
        return 2
    return 0


def judge(case: Case, code: int, out: str, err: str) -> str:
    """The verdict on an answer."""
    if "Traceback" in err or "internal error" in err:
        return "traceback"
    if re.search(r"[^\n -~]", re.sub(r"[^\x00-\x1f\x7f-\x9f]", " ", out + err)):
        return "control characters"
    lines = err.splitlines()
    if code == 2:
        return "refused" if len(lines) == 1 and lines[0].startswith("rhobust: ") and not out else "more than one line"
    if code == 1:
        return "failed" if lines and all(line.startswith("rhobust: ") for line in lines) else "more than one line"
    if code != 0:
        return f"exit code {code}"
    return "right" if case.right(out) else "silent success"


def normal(out: str) -> Any:
    """What a command printed under --json without places and times."""
    return _normal(json.loads(out))


def _normal(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _normal(item) for key, item in value.items() if key != "seconds"}
    if isinstance(value, list):
        return [_normal(item) for item in value]
    if isinstance(value, str) and "/" in value:
        return value.rsplit("/", 1)[-1]
    return value
