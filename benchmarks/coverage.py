"""How often bounds fail, and how loose they are, on simulated half-spaces whose worst case is known.

A bound can miss only where one of its confidence bounds about counts fails: the majorants hold for every law. So each
data set is checked for such a failure, and the linear programmes are solved where there is one, and on every `EVERY`-th
of the other data sets too: for the slack, and to see that none of those misses.
"""

from typing import Any

import numpy as np

from benchmarks.benchmark import Setting, Table
from benchmarks.known_worst_cases import Case, cases
from rhobust.files import read_json
from rhobust.formatting import format_number
from rhobust.progress import progress_or_default

SETS, EVERY = 2000, 100
"""Data sets per case, and of how many of them one is solved in any case."""


def simulate(case: Case, sets: int, every: int = EVERY) -> dict[str, Any]:
    """Violations of one bound over simulated data sets, and its slack where it was computed."""
    data = case.sample(np.random.default_rng(0), sets)
    failed, slacks, violations = case.failed(data), [], 0
    for number in np.union1d(np.flatnonzero(failed), np.arange(0, sets, every)).tolist():
        slack = case.compute({name: values[number] for name, values in data.items()}) - case.truth
        violations += slack < 0
        if number % every == 0:
            slacks.append(slack)
    return {
        "bound": case.bound,
        "setting": case.setting,
        "alpha": case.alpha,
        "truth": case.truth,
        "sets": sets,
        "count_bounds_failed": int(failed.sum()),
        "violations": violations,
        "median_slack": None if case.bound == "prediction sets" else float(np.median(slacks)),
    }


def bench_coverage(setting: Setting) -> dict[str, Any]:
    """Simulate every case; `--limit` sets the number of data sets, 2,000 by default.

    With `--out` the file is written after each case, and the cases that it has already are not simulated again.
    """
    sets, found = setting.limit or SETS, []
    known = read_json(setting.out)["cases"] if setting.out is not None and setting.out.exists() else []
    with progress_or_default(setting.progress) as notify:
        for case in cases():
            notify(f"coverage of {case.bound}: {case.setting}")
            named = {"bound": case.bound, "setting": case.setting, "alpha": case.alpha, "sets": sets}
            done = next((one for one in known if named.items() <= one.items()), None)
            found.append(done or simulate(case, sets))
            setting.write({"cases": found})
    return {"cases": found}


def coverage_table(result: dict[str, Any]) -> Table:
    """One line per case: violations against alpha, and the median slack of the bound over the true worst case."""
    rows = [
        [
            one["bound"],
            one["setting"],
            f"{one['alpha']:g}",
            f"{one['violations']} of {one['sets']}",
            format_number(one["violations"] / one["sets"], 4, "nearest"),
            "" if one["median_slack"] is None else format_number(one["median_slack"], 3, "nearest"),
        ]
        for one in result["cases"]
    ]
    return Table(["bound", "setting", "alpha", "violations", "rate", "median slack"], rows, left=2)
