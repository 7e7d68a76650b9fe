"""Make tables and figures of the paper, and our own: python -m reproduction NAME|all|ours --scale smoke --out DIR.

python -m reproduction pack|publish|index|figures|audit packs, publishes, lists, draws and audits networks and records.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import torch

from reproduction.archive import unpacked
from reproduction.runner import GROUPS, SPECS, VARIANTS, Outcome, Plan, Store, plan, reproduce
from reproduction.scales import SCALES
from reproduction.specs import Job
from reproduction.spread import perform_all
from reproduction.tools import TOOLS, Parser
from rhobust.executors import choose_executor
from rhobust.process import ExecutorName
from rhobust.progress import no_progress
from rhobust.training import resolve_device


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: 0 done, 1 something asked for is missing, 2 the user's mistake."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if arguments and arguments[0] in TOOLS:
            return TOOLS[arguments[0]](arguments[1:])
        given = parse(arguments)
        result = _run(given)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"reproduction: {' '.join(str(error).split())}\n")
        return 2
    if given.json:
        print(json.dumps(result, allow_nan=False))
    elif given.plan:
        _show_plan(result)
    else:
        print(*result["files"], sep="\n")
        for fault in result["faults"]:
            print(f"warning: {fault}")
    if count := len(result.get("faults", ())):
        reasons = "1 reason" if count == 1 else f"{count} reasons"
        sys.stderr.write(f"reproduction: tables or figures have gaps, for {reasons}: see the warnings\n")
        return 1
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line; a mistake ends the program with exit code 2 and one line."""
    parser = Parser(prog="reproduction", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="tables and figures, or all, ours, variants")
    parser.add_argument("--scale", choices=list(SCALES), default="smoke", help="how much is trained (default: smoke)")
    parser.add_argument("--out", type=Path, help="folder for runs, tables and figures (default: reproduced/SCALE)")
    parser.add_argument("--root", type=Path, help="folder of the data sets")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, ...")
    parser.add_argument("--plan", action="store_true", help="count runs and evaluations, start nothing")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no further work after this time")
    parser.add_argument("--draw-only", action="store_true", help="train and evaluate nothing: draw finished records")
    parser.add_argument("--records", type=Path, nargs="+", default=[], help="archives to draw from, in place of --out")
    names = get_args(ExecutorName)
    parser.add_argument("--executor", choices=names, help="spread trainings and evaluations (default: one by one)")
    parser.add_argument("--workers", type=int, help="workers of processes or ray (default: one per GPU, or per core)")
    parser.add_argument("--address", help="ray: auto, HOST or HOST:PORT of a cluster (default: a new one, here)")
    parser.add_argument("--gpus", type=float, default=1.0, help="GPUs per worker, 0.25 for four on one (default: 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    return parser.parse_args(arguments)


def _run(given: argparse.Namespace) -> dict[str, Any]:
    unknown = [name for name in given.names if name not in SPECS and name not in GROUPS]
    if unknown or not given.names:
        known, wrong = ", ".join((*GROUPS, *SPECS)), " ".join(unknown) or "none"
        raise ValueError(f"names must be of {known}, got {wrong}")
    others = {"draw-only": given.draw_only, "records": given.records}
    if given.plan and (other := next((name for name, value in others.items() if value), None)):
        raise ValueError(f"--plan and --{other} must not be given together")
    scale = SCALES[given.scale]
    chosen = plan(given.names, scale)
    if not chosen.specs:
        raise ValueError(f"{' '.join(given.names)} must have a data set at the scale {given.scale}, but has none")
    apart = {spec.name in VARIANTS for spec in chosen.specs}
    if len(apart) == 2:
        raise ValueError("variants must be made in a call and a folder of their own: they attack other test images")
    out = given.out or Path("reproduced") / (f"{given.scale}-variants" if apart == {True} else given.scale)
    store = Store(out, resolve_device(given.device), given.root, no_progress if given.quiet else None)
    if given.plan:
        return count(chosen, store)
    if given.records:
        with unpacked(given.records) as folder:
            outcome = reproduce(chosen, replace(store, out=folder), draw_only=True, to=out)
    else:
        with _threads(scale.threads):
            outcome = _reproduced(chosen, store, given)
    return {"files": [str(path) for path in outcome.files], "faults": list(outcome.faults)}


def _reproduced(chosen: Plan, store: Store, given: argparse.Namespace) -> Outcome:
    executor = choose_executor(given.executor, workers=given.workers, address=given.address, gpus=given.gpus)
    if executor is None:
        return reproduce(chosen, store, draw_only=given.draw_only, minutes=given.minutes)
    if given.draw_only or given.minutes < math.inf:
        raise ValueError("--executor must be given without --draw-only and --minutes")
    with executor:
        failed = perform_all(chosen, store, executor)
    return reproduce(chosen, store, draw_only=True, failed=failed)


def count(chosen: Plan, store: Store) -> dict[str, Any]:
    """Runs and evaluations of each table and figure and of all of them, each once, and how many are finished."""
    finished = {job: store.done(job) for job in chosen.jobs}

    def counts(jobs: Sequence[Job]) -> dict[str, int]:
        runs = list(dict.fromkeys(run for job in jobs for run in job.runs))
        return {
            "runs": len(runs),
            "runs_done": sum(map(store.trained, runs)),
            "evaluations": len(jobs),
            "evaluations_done": sum(finished[job] for job in jobs),
        }

    work = [{"name": spec.name, **counts(spec.jobs)} for spec in chosen.specs]
    return {"scale": chosen.scale.name, "work": work, "total": counts(chosen.jobs)}


def _show_plan(result: dict[str, Any]) -> None:
    lines = [*result["work"], {"name": "all of these, each once", **result["total"]}]
    width = max(len(line["name"]) for line in lines)
    print(f"{'name':<{width}}  {'runs done':>12}  {'evaluations done':>16}")
    for line in lines:
        runs, evaluations = (f"{line[f'{what}_done']} of {line[what]}" for what in ("runs", "evaluations"))
        print(f"{line['name']:<{width}}  {runs:>12}  {evaluations:>16}")


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


if __name__ == "__main__":
    sys.exit(main())
