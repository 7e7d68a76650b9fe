"""Run all generated cases and print the counts: `python -m tests.fuzz`.

Two processes take every second case each. A process that answers nothing for long is ended, the case counts as a hang,
and another process goes on with the next one.
"""

import argparse
import itertools
import json
import os
import selectors
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fuzz.harness import GOOD, LIMIT, Case, execute

STUCK = 2 * LIMIT
"""Seconds without an answer after which a process is ended: it is in code that no alarm interrupts."""


def cases() -> Iterator[Case]:
    """All cases, in a fixed order."""
    from tests.fuzz.folders import folder_cases
    from tests.fuzz.options import option_cases
    from tests.fuzz.parsers import archive_cases, data_cases, parser_cases

    return itertools.chain(archive_cases(), data_cases(), parser_cases(), folder_cases(), option_cases())


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose group and name contain this text")
    parser.add_argument("--every", type=int, default=1, help="take every so many cases only")
    parser.add_argument("--worker", nargs=3, type=int, metavar=("FIRST", "STEP", "FROM"), help=argparse.SUPPRESS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--log", type=Path, help="write every outcome here, one JSON object per line")
    given = parser.parse_args()
    if given.worker:
        work(*given.worker, only=given.only, every=given.every)
    else:
        sys.exit(lead(given))


def work(first: int, step: int, start: int, *, only: str, every: int) -> None:
    """Run every `step`-th case and write its outcome as a line."""
    warnings.simplefilter("always")
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    chosen = (case for case in cases() if only in f"{case.group}: {case.name}")
    for number, case in enumerate(itertools.islice(chosen, 0, None, every)):
        if number % step != first or number < start:
            continue
        answers.write(json.dumps({"begin": number, "group": case.group, "name": case.name}) + "\n")
        found = execute(case)
        answers.write(json.dumps({"end": number, "group": case.group, "name": case.name, **vars(found)}) + "\n")


class Worker:
    """A process and the case that it is at."""

    def __init__(self, first: int, given: argparse.Namespace) -> None:
        self.first, self.given, self.at = first, given, {"begin": first, "group": "?", "name": "?"}
        self.start(0)

    def start(self, number: int) -> None:
        words = ["--worker", str(self.first), str(self.given.processes), str(number)]
        words += ["--only", self.given.only, "--every", str(self.given.every)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz", *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.heard = time.monotonic()


def lead(given: argparse.Namespace) -> int:
    """Start the processes, collect outcomes, print the counts, and return 1 if a case went wrong."""
    counts: dict[str, Counter[str]] = {}
    bad: list[dict[str, Any]] = []
    log = given.log.open("w") if given.log else None

    def note(outcome: dict[str, Any]) -> None:
        counts.setdefault(outcome["group"], Counter())[outcome["verdict"]] += 1
        if log:
            log.write(json.dumps(outcome) + "\n")
            log.flush()
        if outcome["verdict"] not in GOOD:
            bad.append(outcome)
            shown = ascii(f"{outcome['group']}: {outcome['name']}")[1:-1]
            sys.stdout.write(f"{outcome['verdict']}: {shown}: {outcome['detail'][:300]!a}\n")
            sys.stdout.flush()

    begin = time.monotonic()
    workers = [Worker(first, given) for first in range(given.processes)]
    with selectors.DefaultSelector() as waiting:
        for worker in workers:
            waiting.register(worker.process.stdout, selectors.EVENT_READ, worker)
        while waiting.get_map():
            for key, _ in waiting.select(timeout=5):
                worker, line = key.data, key.fileobj.readline()
                worker.heard = time.monotonic()
                if line:
                    found = json.loads(line)
                    if "begin" in found:
                        worker.at = found
                    else:
                        note(found)
                        worker.at = {"begin": found["end"] + 1, "group": "", "name": ""}
                    continue
                waiting.unregister(key.fileobj)
                if worker.process.wait() != 0:
                    _next(worker, f"the process ended with code {worker.process.returncode}", note, waiting)
            for worker in workers:
                if worker.process.poll() is None and time.monotonic() - worker.heard > STUCK:
                    waiting.unregister(worker.process.stdout)
                    worker.process.kill()
                    worker.process.wait()
                    _next(worker, "hang", note, waiting)
    _print(counts, time.monotonic() - begin)
    return 1 if bad or not counts else 0


def _next(worker: Worker, verdict: str, note: Any, waiting: selectors.BaseSelector) -> None:
    note({**worker.at, "verdict": verdict, "detail": "", "seconds": 0.0})
    worker.start(worker.at["begin"] + 1)
    waiting.register(worker.process.stdout, selectors.EVENT_READ, worker)


def _print(counts: dict[str, Counter[str]], seconds: float) -> None:
    verdicts = [*GOOD, *sorted({verdict for one in counts.values() for verdict in one} - set(GOOD))]
    total = sum((one for one in counts.values()), Counter())
    rows = [["", "cases", *verdicts]]
    for name, one in (*sorted(counts.items()), ("all", total)):
        rows.append([name, str(one.total()), *(str(one[verdict]) for verdict in verdicts)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        sys.stdout.write("  ".join([row[0].ljust(widths[0]), *cells]) + "\n")
    wrong = total.total() - sum(total[verdict] for verdict in GOOD)
    named = {name: total[name] for name in ("traceback", "hang", "silent success")}
    sys.stdout.write(f"bad input: {total.total()} cases, {named['traceback']} tracebacks, {named['hang']} hangs, ")
    sys.stdout.write(f"{named['silent success']} silent successes, {wrong - sum(named.values())} other faults, ")
    sys.stdout.write(f"{seconds:.0f} s\n")


if __name__ == "__main__":
    main()
