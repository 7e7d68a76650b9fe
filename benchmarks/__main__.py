"""Time rhobust against the reference implementation and against peers on this machine: python -m benchmarks NAME..."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from benchmarks import BENCHMARKS, Setting, Table
from benchmarks.peers import FILES, parse_peers
from benchmarks.scale import plot_scale
from benchmarks.speed import plot_curves
from rhobust.progress import no_progress
from rhobust.training import resolve_device


class Parser(argparse.ArgumentParser):
    """A parser whose complaint is one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; a mistake ends the program with exit code 2 and one line."""
    parser = Parser(prog="benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(BENCHMARKS)} (default: all of them)")
    parser.add_argument("--root", type=Path, help="folder of the data sets")
    parser.add_argument("--run", type=Path, help="a trained run, for benchmarks that compare on one")
    parser.add_argument("--limit", type=int, help="test points of that run at most")
    parser.add_argument("--draws", type=int, help="noise samples per point of the comparator")
    parser.add_argument("--curve", type=int, default=0, help="training: steps over which NAL's losses are compared")
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help=f"speed, attacks: a clone of {' or '.join(FILES)}",
    )
    parser.add_argument("--part", action="append", default=[], help="speed, scale: only these parts")
    parser.add_argument("--weights", type=Path, help="speed: weights of a resnet18 that was trained on CIFAR-10")
    parser.add_argument("--sigma", type=float, default=0.25, help="speed: the noise it was trained with (0.25)")
    parser.add_argument("--images", type=Path, help="speed: CIFAR-10 test images, .npz with x_test, y_test")
    parser.add_argument("--out", type=Path, help="speed, scale, coverage, conform, stages: file for the JSON document")
    parser.add_argument("--markdown", type=Path, help="file for the table of one benchmark as Markdown")
    parser.add_argument("--plot", type=Path, help="speed, scale: file for a plot of how cost grows (needs matplotlib)")
    parser.add_argument("--debug", action="store_true", help="speed: stop at the first error")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, ...")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: 0 done, 2 the user's mistake; the other benchmarks that were named run all the same."""
    given = parse(arguments)
    try:
        if unknown := [name for name in given.names if name not in BENCHMARKS]:
            raise ValueError(f"a benchmark must be one of {', '.join(BENCHMARKS)}, got {unknown[0]}")
        setting = Setting(
            device=resolve_device(given.device),
            root=given.root,
            run=given.run,
            limit=given.limit,
            draws=given.draws,
            curve=given.curve,
            peers=parse_peers(given.peer),
            parts=tuple(given.part),
            weights=given.weights,
            sigma=given.sigma,
            images=given.images,
            out=given.out,
            debug=given.debug,
            progress=no_progress if given.quiet else None,
        )
    except (ValueError, OSError) as error:
        return _refuse(error)
    result: dict[str, Any] = {}
    code = 0
    for name in given.names or BENCHMARKS:
        try:
            result[name] = BENCHMARKS[name].run(setting)
        except (ValueError, OSError) as error:
            code = _refuse(f"{name}: {error}")
    if not result:
        return code
    if given.plot is not None and "speed" in result:
        plot_curves(result["speed"], given.plot)
    if given.plot is not None and "lines" in result.get("scale", {}):
        plot_scale(result["scale"], given.plot)
    if given.markdown is not None:
        name, measured = next(iter(result.items()))
        given.markdown.write_text(BENCHMARKS[name].table(measured).markdown(name), encoding="utf-8")
    if given.json:
        print(json.dumps(result, allow_nan=False))
        return code
    for number, (name, measured) in enumerate(result.items()):
        if number:
            print()
        _show(BENCHMARKS[name].table(measured))
    return code


def _refuse(reason: object) -> int:
    """Say in one line what was wrong, and return the exit code."""
    sys.stderr.write(f"benchmarks: {' '.join(str(reason).split())}\n")
    return 2


def _show(table: Table) -> None:
    print(*table.heading, sep="\n")
    lines = [table.columns, *table.rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.columns))]
    for line in lines:
        cells = [
            cell.ljust(width) if column < table.left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
    for note in table.notes:
        print(note)


if __name__ == "__main__":
    sys.exit(main())
