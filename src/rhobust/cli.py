"""The command line: find the command, parse, call, print.

Only the named command's module is imported, so `rhobust --help` needs neither torch nor anything slow.
"""

import contextlib
import difflib
import functools
import importlib
import io
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from rhobust.cores import watched_cores
from rhobust.process import FAILED, GONE, answer, catch_signals, emit, launched, open_streams, results_only, say

COMMANDS = {
    "evaluate": "accuracy, attacks, certificates and a page for any network and images, in one command",
    "quickstart": "train, attack and certify three models on real digits and write a report (a few minutes, CPU)",
    "data": "list, get and check data sets",
    "train": "train a classifier into a run folder",
    "sweep": "train and evaluate a grid of methods, noise levels and seeds, and make one table and one page",
    "attack": "attack a run over radii",
    "transfer": "attack each of several runs and predict the perturbed images by all of them",
    "certify": "certify the L2 radius of a run's test images, or of image files",
    "certify-shift": "certify a run's accuracy under every distribution shift up to eps",
    "attack-shift": "attack a run's accuracy under distribution shift: the ceiling over the certified floor",
    "conform": "calibrate prediction sets that hold the label under every distribution shift up to eps",
    "measure-shift": "measure how far a change moves images, and certify a run's accuracy after it",
    "monitor": "certify a run's accuracy on today's images against a floor, without labels; exit code 1 below it",
    "curves": "bracket a run's worst-case loss under shift from above and below, with the paper's estimate",
    "compare": "show the certified accuracy of records and of peers' tables side by side",
    "audit": "recompute certificates from their counts, and draw a share of them again",
    "sign": "sign records with a key of OpenSSH, for audit --signers",
    "predict": "classify images by the smoothed classifier's vote, or abstain",
    "demo": "open a local web page: drop an image, see votes, answer and certified radius, attack it",
    "publish": "write a model card, weights and records of a run, ready for the Hugging Face Hub",
    "report": "write one self-contained HTML page about runs",
}
ONE_COLUMN = 129
"""Columns of a terminal on which the parser sets its boxes one below the other; on a wider one, side by side."""


def main() -> None:
    """Entry point of the console script."""
    arguments = sys.argv[1:]
    try:
        open_streams()
    except ValueError as error:
        sys.exit(answer(error, arguments))
    catch_signals()
    try:
        with watched_cores:
            code = run(arguments)
    except KeyboardInterrupt as error:  # as the watch began or ended
        code = answer(error, arguments)
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code.

    0 done, 1 a check failed, 2 a mistake in what was given, 70 an error of rhobust's own, 130 interrupted (143 by
    SIGTERM), 141 nobody reads on.
    """
    try:
        return _run(arguments[0] if arguments else "--help", list(arguments[1:]))
    except (Exception, KeyboardInterrupt) as error:
        return answer(error, arguments)


def _run(name: str, arguments: list[str]) -> int:
    if name in ("-h", "--help"):
        return _show(_help())
    if name == "--version":
        from rhobust import __version__

        return _show(f"rhobust {__version__}\n")
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"the command must be one of {', '.join(COMMANDS)}, got {name}{hint}")
    if {"-h", "--help"} & set(arguments):
        from rhobust.helptext import EXAMPLES, stored_help

        asked = " ".join([name, *(word for word in arguments if word not in ("-h", "--help"))])
        if asked in EXAMPLES:
            return _show(stored_help(asked, _columns()))
    module = importlib.import_module(f"rhobust.commands.{name.replace('-', '_')}")
    command = parse(module.COMMAND, name, arguments)
    command.common.check()
    launched()
    result = _compute(command)
    if not _follows() and _show(_result(command, result)) == GONE:
        return GONE
    # Why a result, though it was computed and shown, must not be used; None for nearly all.
    failure = command.failure(result) if hasattr(command, "failure") else None
    if failure:
        say(failure)
        return FAILED
    return 0


def _follows() -> bool:
    """Whether this is one of several processes that met, and not the first, which speaks for them."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    return distributed.get_rank() > 0


def _compute(command: Any) -> Any:
    """The result of a command; what the code of a network prints goes to standard error, and it ends no process."""
    try:
        with results_only(), _batches(command):
            return command.run()
    except SystemExit as stop:
        raise ValueError(f"a network or data set must not end the process, but its code did: {stop!r}") from stop
    except BrokenPipeError as error:
        raise ValueError(f"a network or data set must not write to a closed pipe, but its code did: {error}") from error


def _batches(command: Any) -> contextlib.AbstractContextManager[None]:
    """The batch size that was asked for."""
    rows = getattr(command.common, "batch_size", None)
    if rows is None:
        return contextlib.nullcontext()
    from rhobust.certificates import batch_size

    return batch_size(rows)


def _result(command: Any, result: Any) -> str:
    """A result in the form in which it is shown."""
    if command.common.json:
        return json.dumps(result, allow_nan=False) + "\n"
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        command.show(result)
    return shown.getvalue()


def _show(text: str) -> int:
    """Write to standard output; a reader (`| head`) may leave."""
    try:
        emit(text)
    except BrokenPipeError:
        return GONE
    return 0


def parse(command: Any, name: str, arguments: list[str]) -> Any:
    """Turn arguments into the command's dataclass; a mistake is a ValueError of one line."""
    from rhobust.commands.arguments import (
        about_names,
        check_numbers,
        names_first,
        own_code,
        spelt_choices,
        suggestions,
        with_own_code,
    )
    from rhobust.helptext import render_help

    _check_empty(arguments)
    _check_choices(arguments)
    own, arguments = own_code(arguments)
    command = command if own is None else with_own_code(command, own)
    single = isinstance(command, type)  # `data` is a choice of commands
    if single:
        arguments = spelt_choices(command, arguments)
        check_numbers(command, arguments)
        arguments = names_first(command, arguments)
    if {"-h", "--help"} & set(arguments):
        _show(render_help(print_boxes(command, name, arguments), _columns()))
        raise SystemExit(0)
    caught = io.StringIO()
    try:
        with _terminal(10_000), contextlib.redirect_stderr(caught):  # a message is one line
            return _read(command, name, arguments)
    except SystemExit as stop:
        if stop.code == 2:
            message = _one_line(caught.getvalue())
            if single:
                message = about_names(command, message)
            if single and (hint := suggestions(command, arguments)):
                message = message.split(" Perhaps you meant")[0].rstrip(".") + hint
            raise ValueError(f"{message} (see rhobust {name} --help)") from None
        raise


def print_boxes(command: Any, name: str, arguments: list[str]) -> str:
    """What the parser prints as the help of a command, one box below the other."""
    caught = io.StringIO()
    with _terminal(ONE_COLUMN), contextlib.redirect_stdout(caught), contextlib.suppress(SystemExit):
        _read(command, name, arguments)
    return caught.getvalue()


def _read(command: Any, name: str, arguments: list[str]) -> Any:
    import tyro

    from rhobust.commands.arguments import registry

    _name_choices()
    return tyro.cli(
        command,
        prog=f"rhobust {name}",
        args=arguments,
        config=(tyro.conf.CascadeSubcommandArgs, tyro.conf.FlagCreatePairsOff),
        registry=registry(),
    )


def _check_empty(arguments: list[str]) -> None:
    """Refuse empty texts: a path of no letters would be the current folder."""
    for before, argument in zip(["", *arguments], arguments, strict=False):
        name, given, value = argument.partition("=")
        if not argument:
            raise ValueError(f"{before if before.startswith('-') else 'an argument'} must not be empty, got ''")
        if name.startswith("--") and given and not value:
            raise ValueError(f"{name} must not be empty, got ''")


def _check_choices(arguments: list[str]) -> None:
    """Refuse a method or an attack that there is not: the parser would take its name for that of a folder."""
    if not any(argument.startswith(("method:", "attack:")) for argument in arguments):
        return
    from rhobust.attacks import AnyAttack
    from rhobust.commands.arguments import suggestion
    from rhobust.methods import AnyMethod
    from rhobust.settings import kind_of

    for role, members in (("method", AnyMethod), ("attack", AnyAttack)):
        known = [f"{role}:{kind_of(member)}" for member in get_args(members)]
        for argument in arguments:
            if argument.startswith(f"{role}:") and argument not in known:
                raise ValueError(
                    f"{role} must be one of {', '.join(known)}, or --{role} FILE:CLASS, got"
                    f" {argument}{suggestion(argument, known)}"
                )


@functools.cache
def _name_choices() -> None:
    """Let a method or an attack have the same word on the command line as in JSON: `smoothadv`, not `smooth-adv`."""
    import tyro

    from rhobust.attacks import AnyAttack
    from rhobust.methods import AnyMethod
    from rhobust.settings import kind_of

    for member in (*get_args(AnyMethod), *get_args(AnyAttack)):
        tyro.conf.configure(tyro.conf.subcommand(name=kind_of(member)))(member)


def _columns() -> int:
    """Columns of the terminal, as far as lines are easy to read."""
    return min(100, shutil.get_terminal_size().columns)


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
    return re.sub(r"'None', |, 'None'(?=\))", "", " ".join(message))  # nobody writes None: it is the option left out


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
            "A mistake is answered with one line and exit code 2; --debug adds the traceback.",
            "",
        ]
    )
