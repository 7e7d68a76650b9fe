"""Run the whole zoo through every command, then the soundness battery, and print the counts."""

import argparse
import faulthandler
import sys
import tempfile
import time
from pathlib import Path

import tests.zoo.factory  # noqa: F401
from tests.zoo.cases import ZOO
from tests.zoo.runner import Cage

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__)
    parser.add_argument("names", nargs="*", help="Networks; default: all.")
    chosen = parser.parse_args()
    faulthandler.dump_traceback_later(3600, exit=True)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        cage = Cage(Path(folder))
        for name in chosen.names or ZOO:
            for problem in cage.check(ZOO[name]):
                print(problem, flush=True)  # noqa: T201
    counts = cage.counts
    print(counts.commands, counts.worked, counts.refused, counts.certificates, counts.false, len(counts.problems), time.monotonic() - start)
    sys.exit(bool(counts.problems))
