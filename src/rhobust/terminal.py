"""The edge of the process: its streams, its signals, and errors as one line with an exit code.

Guarantee: whatever a file, a folder or a user's own code holds, the terminal gets printable characters only.
"""

import contextlib
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType

from rhobust.formatting import printable, shorten

FAILED, MISTAKE, INTERNAL, GONE = 1, 2, 70, 141
"""Exit codes: a check failed; a mistake in what was given; an error of rhobust's own; the reader of the output left."""
_STREAMS = ("stdin", "stdout", "stderr")


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

    Args:
        error: What was raised.
        arguments: The command line; with --debug the traceback is shown too.
    """
    if "--debug" in arguments:
        traceback.print_exception(error)
    if isinstance(error, KeyboardInterrupt):
        again = [*arguments, *(["--resume"] if arguments[:1] == ["train"] and "--resume" not in arguments else [])]
        kept, command = str(error) or "what was done is kept", shlex.join(["rhobust", *again])
        say(f"interrupted; {kept}; this goes on from there: {command}")
        return 128 + (signal.SIGTERM if isinstance(error, TerminatedError) else signal.SIGINT)
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
    """An error in the words of the command line, where a refused folder is trusted by options, not by arguments."""
    if isinstance(error, OSError) and error.strerror is not None:
        return error.strerror if error.filename is None else f"{os.fsdecode(error.filename)}: {error.strerror}"
    named = getattr(error, "untrusted", None)
    if named is not None:
        options = " ".join(f"--{name} {shlex.quote(value)}" for name, value in named.items())
        return f"{getattr(error, 'refusal', error)}: if you trust it, pass {options}, or --trust"
    return str(error).strip() or ("there is not enough" if isinstance(error, MemoryError) else type(error).__name__)
