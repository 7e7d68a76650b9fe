"""The command line: find the command, parse, call, print.

Only the named command's module is imported, so `rhobust --help` needs neither torch nor anything slow.
"""

import contextlib
import functools
import importlib
import io
import json
import os
import re
import shlex
import shutil
import sys
import textwrap
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from rhobust.launch import launched

COMMANDS = {
    "quickstart": "train, attack and certify three models on real digits and write a report (a few minutes, CPU)",
    "data": "list, get and check data sets",
    "train": "train a classifier into a run folder",
    "attack": "attack a run over radii",
    "transfer": "attack each of several runs and predict the perturbed images by all of them",
    "certify": "certify the L2 radius of a run's test images",
    "certify-shift": "certify a run's accuracy under every distribution shift up to eps",
    "measure-shift": "measure how far a change moves images, and certify a run's accuracy after it",
    "curves": "bracket a run's worst-case loss under shift from above and below, with the paper's estimate",
    "compare": "show the certified accuracy of records and of peers' tables side by side",
    "audit": "recompute certificates from their counts, and draw a share of them again",
    "predict": "classify images by the smoothed classifier's vote, or abstain",
    "report": "write one self-contained HTML page about runs",
}
TRACEBACK = "RHOBUST_TRACEBACK"
ONE_COLUMN = 129
"""Columns of a terminal on which the parser sets its boxes one below the other; on a wider one, side by side."""
GONE = 141
"""Exit code where the reader of the output is gone: what a shell shows of a program that a closed pipe ended."""


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code.

    0 done, 1 a check failed, 2 the user's mistake, 130 interrupted, 141 nobody reads on.
    """
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        sys.stdout.write(_help())
        return 0
    if name == "--version":
        from rhobust import __version__

        sys.stdout.write(f"rhobust {__version__}\n")
        return 0
    try:
        if name not in COMMANDS:
            raise ValueError(f"the command must be one of {', '.join(COMMANDS)}, got {name}")
        module = importlib.import_module(f"rhobust.commands.{name.replace('-', '_')}")
        command = parse(module.COMMAND, name, list(arguments[1:]))
        launched()
        result = command.run()
        if not _follows():
            if command.common.json:
                sys.stdout.write(json.dumps(result, allow_nan=False) + "\n")
            else:
                command.show(result)
            sys.stdout.flush()
        # Why a result, though it was computed and shown, must not be used; None for nearly all.
        failure = command.failure(result) if hasattr(command, "failure") else None
        if failure:
            sys.stderr.write(f"rhobust: {failure}\n")
            return 1
    except BrokenPipeError:
        # The reader (`| head`) closed the pipe. Nothing may be left to write when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return GONE
    except (ValueError, OSError, FloatingPointError) as error:
        if os.environ.get(TRACEBACK):
            traceback.print_exc()
        sys.stderr.write(f"rhobust: {' '.join(_message(error).split())}\n")
        return 2
    except KeyboardInterrupt:
        again = "the same command with --resume" if name == "train" else "the same command"
        sys.stderr.write(f"rhobust: interrupted; {again} goes on where it stopped\n")
        return 130
    return 0


def _follows() -> bool:
    """Whether this is one of several processes that met, and not the first, which speaks for them."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    return distributed.get_rank() > 0


def _message(error: Exception) -> str:
    """An error in the words of the command line, where a refused folder is trusted by options, not by arguments."""
    named = getattr(error, "untrusted", None)
    if named is None:
        return str(error)
    options = " ".join(f"--{name} {shlex.quote(value)}" for name, value in named.items())
    return f"{getattr(error, 'refusal', error)}: if you trust it, pass {options}, or --trust"


def parse(command: Any, name: str, arguments: list[str]) -> Any:
    """Turn arguments into the command's dataclass; a mistake is a ValueError of one line."""
    import tyro

    _name_choices()

    def call() -> Any:
        return tyro.cli(
            command,
            prog=f"rhobust {name}",
            args=arguments,
            config=(tyro.conf.CascadeSubcommandArgs, tyro.conf.FlagCreatePairsOff),
        )

    caught = io.StringIO()
    if {"-h", "--help"} & set(arguments):
        try:
            with _terminal(ONE_COLUMN), contextlib.redirect_stdout(caught):
                return call()
        finally:
            sys.stdout.write(render_help(caught.getvalue(), min(100, shutil.get_terminal_size().columns)))
    try:
        with _terminal(10_000), contextlib.redirect_stderr(caught):  # a message is one line
            return call()
    except SystemExit as stop:
        if stop.code == 2:
            raise ValueError(f"{_one_line(caught.getvalue())} (see rhobust {name} --help)") from None
        raise


@functools.cache
def _name_choices() -> None:
    """Let a method or an attack have the same word on the command line as in JSON: `smoothadv`, not `smooth-adv`."""
    import tyro

    from rhobust.attacks import AnyAttack
    from rhobust.methods import AnyMethod
    from rhobust.settings import kind_of

    for member in (*get_args(AnyMethod), *get_args(AnyAttack)):
        tyro.conf.configure(tyro.conf.subcommand(name=kind_of(member)))(member)


@contextlib.contextmanager
def _terminal(columns: int) -> Iterator[None]:
    """Let the parser believe that the terminal has so many columns."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(columns)
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


def _one_line(box: str) -> str:
    """The message of the parser's box: its frame, rules and pointers to the help are dropped."""
    message: list[str] = []
    for framed in box.splitlines()[1:]:
        line = framed.strip("│| ")  # the frame is plain ASCII where the output's encoding is
        if line.startswith("For full helptext"):
            break
        if re.fullmatch(r"[-─+╭╮╰╯]*", line) or line.startswith(("in rhobust", "(")):
            continue
        if not re.search(r"\(default: .*\)$", line):
            message.append(re.sub(r"^Error parsing [^:]+: ", "", line))
    return " ".join(message)


def render_help(boxes: str, width: int) -> str:
    """The parser's help in two columns: `PATH` for `{None}|PATH`, no default that is None, negated flags as such.

    Args:
        boxes: What the parser prints, one box below the other.
        width: Characters per line.
    """
    lines: list[str] = []
    entries: list[tuple[str, list[str]]] = []

    def write_entries() -> None:
        for name, texts in entries:
            lines.extend(_entry(name, " ".join(texts), width))
        entries.clear()

    for line in boxes.splitlines():
        if not line.strip(" -"):
            continue
        if re.match(r" \S", line):
            write_entries()
            lines += ["", f"{line.strip()}:"]
        elif found := re.match(r" {2,4}(?:• )?(-\S.*?|\[.*?|[A-Z]+|[a-z]+:[a-z]+|(?<=• )[a-z]+)(?: {2,}(.*))?$", line):
            entries.append((found.group(1), [found.group(2)] if found.group(2) else []))
        elif entries and line.startswith(" " * 8):
            entries[-1][1].append(line.strip())
        else:
            write_entries()
            indent = "  " if line.startswith(" ") else ""
            lines += [] if indent else [""]
            line = line.strip().replace("{None}|", "")
            lines += textwrap.wrap(line, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False)
    write_entries()
    return "\n".join(lines).strip("\n") + "\n"


def _entry(name: str, text: str, width: int) -> list[str]:
    """One option: its name, and what it means in a column of its own."""
    name = name.replace("{None}|", "").replace("{None,", "{")
    text = re.sub(r"\s+", " ", text).replace(" (default: None)", "")
    if " " not in name and name.startswith("-"):  # a flag
        text = re.sub(r" \(default: (True|False)\)", "", text)
        if text.startswith("False: "):  # a negated flag carries the negated sentence
            text = text[7:8].upper() + text[8:]
    margin = " " * 26
    body = textwrap.wrap(text, width, initial_indent=margin, subsequent_indent=margin)
    if body and len(name) + 4 <= len(margin):
        return [f"  {name}".ljust(len(margin)) + body[0].lstrip(), *body[1:]]
    return [f"  {name}", *body]


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items()]
    return "\n".join(
        [
            "usage: rhobust COMMAND [OPTIONS]",
            "",
            "Certified distributional robustness of smoothed classifiers.",
            "",
            "commands:",
            *lines,
            "",
            "rhobust COMMAND --help shows a command's options with their defaults; rhobust --version the version.",
            f"A mistake is answered with one line and exit code 2; {TRACEBACK}=1 adds the traceback.",
            "",
        ]
    )
