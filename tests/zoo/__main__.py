"""Run the whole zoo through every command and the certificates against their truths, and print the counts."""

import argparse
import faulthandler
import sys
import tempfile
import time
from pathlib import Path

import tests.zoo.factory  # noqa: F401
from tests.zoo.cases import ZOO
from tests.zoo.runner import Cage
from tests.zoo.soundness import battery, verdict

HANGS = 6 * 3600
"""Seconds after which a hang is assumed."""


def say(*parts: object) -> None:
    print(*parts, flush=True)  # noqa: T201


def run_zoo(folder: Path, names: list[str]) -> int:
    """Run networks through every command; returns the number of problems."""
    start, cage = time.monotonic(), Cage(folder)
    for name in names:
        for problem in cage.check(ZOO[name]):
            say(problem)
    counts = cage.counts
    say(
        f"zoo: {len(names)} networks, {counts.commands} commands and calls: {counts.worked} worked, {counts.refused}"
        f" were refused in one line; {counts.certificates} certificates, {counts.false} above the truth;"
        f" {counts.tracebacks} tracebacks, {len(counts.problems)} problems ({time.monotonic() - start:.0f} s)"
    )
    return len(counts.problems)


def run_battery(folder: Path, certificates: int) -> int:
    """Certify inputs whose truth is known; returns the number of problems."""
    start, cells = time.monotonic(), []
    for cell in battery(folder, certificates):
        cells.append(cell)
        say(
            f"{cell.name}, alpha {cell.alpha:g}: {cell.certificates} certificates, {cell.false} radii and {cell.above}"
            f" probabilities above the truth (significance {cell.significance:.2g})"
        )
    for alpha in sorted({cell.alpha for cell in cells}, reverse=True):
        chosen = [cell for cell in cells if cell.alpha == alpha]
        total, false, above = (
            sum(getattr(cell, name) for cell in chosen) for name in ("certificates", "false", "above")
        )
        say(
            f"soundness at alpha {alpha:g}: {total} certificates, {false} radii above the truth ({false / total:.1e}),"
            f" {above} probabilities above the truth ({above / total:.1e})"
        )
    problems = verdict(cells)
    for problem in problems:
        say(problem)
    say(f"soundness: {len(cells)} cells, {len(problems)} problems ({time.monotonic() - start:.0f} s)")
    return len(problems)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__)
    parser.add_argument("names", nargs="*", help="Networks; default: all.")
    parser.add_argument("--certificates", type=int, default=100_000, help="Certificates of the battery; 0: none.")
    parser.add_argument("--no-zoo", action="store_true", help="Only the battery.")
    chosen = parser.parse_args()
    faulthandler.dump_traceback_later(HANGS, exit=True)
    problems = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in ("zoo", "battery"):
            (Path(folder) / name).mkdir()
        if not chosen.no_zoo:
            problems += run_zoo(Path(folder) / "zoo", chosen.names or list(ZOO))
        if chosen.certificates:
            problems += run_battery(Path(folder) / "battery", chosen.certificates)
    sys.exit(bool(problems))
