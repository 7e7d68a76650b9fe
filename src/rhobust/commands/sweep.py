"""rhobust sweep."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from rhobust.commands.arguments import ROLES, check_attack
from rhobust.commands.options import Spreading, SpreadingOptions, print_table
from rhobust.evaluation import EVALUATIONS, Evaluation
from rhobust.formatting import name_split
from rhobust.models.named_code import named_code
from rhobust.settings import kind_of
from rhobust.sweeps import SweepPlan, plan_units, read_plan, run_sweep
from rhobust.sweeps.plan import absent


@dataclass(frozen=True)
class SweepCommand:
    """Train every combination of a plan's axes, evaluate each, and make one table over seeds and one page."""

    plan: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PLAN.toml")]
    """The plan: what is trained, over which axes, and what is evaluated."""
    out: Path | None = None
    """Folder for runs, table and page; default: sweeps/ and the plan's name."""
    root: Path | None = None
    """Folder of the data sets; default: $RHOBUST_DATA, else a cache folder."""
    code: tuple[str, ...] = ()
    """Methods, attacks and evaluations of your own that the plan names: package.module:Class or file.py:Class."""
    dry_run: bool = False
    """Count what is planned, by network and evaluation, and what is finished, say which data and teachers are missing
    here, and start nothing."""
    common: SpreadingOptions = Spreading()

    def run(self) -> dict[str, Any]:
        import_own(self.code)
        plan, out = read_plan(self.plan), self.out or Path("sweeps") / self.plan.stem
        if self.dry_run:
            units = plan_units(plan, out)
            finished = sum(unit.done for unit in units)
            evaluations = sum(len(unit.evaluations) for unit in units)
            planned = {"planned": len(units), "evaluations": evaluations, "finished": finished, "split": plan.split}
            return {**planned, **described(plan), "absent": absent(plan, self.root)}
        outcome = run_sweep(
            plan,
            out,
            executor=self.common.chosen(),
            device=self.common.device,
            root=self.root,
            progress=self.common.progress,
            wait=self.common.wait,
        )
        return {
            "out": str(out),
            "split": plan.split,
            "table": {"columns": outcome.table.columns, "cells": outcome.table.cells()},
            "rows": list(outcome.table.rows),
            "report": None if outcome.page is None else str(outcome.page),
            "failures": outcome.failures,
            "missing": outcome.table.missing,
        }

    def show(self, result: dict[str, Any]) -> None:
        if "planned" in result:
            planned, evaluations, finished = (result[key] for key in ("planned", "evaluations", "finished"))
            where = f" on {name_split(result['split'])} images" if evaluations else ""
            print(f"{planned} runs planned, {finished} finished; {evaluations} evaluations{where}")
            for line, count in (result["trainings"] | result["measured"]).items():
                print(f"{count:>5}  {line}")
            for line in result["absent"]:
                print(f"missing here: {line}")
            return
        table = result["table"]
        print_table(table["columns"], table["cells"], left=len(table["columns"]) - 5)
        print(f"measured on {name_split(result['split'])} images")
        for name, line in result["failures"].items():
            print(f"failed: {name}: {line}")
        if missing := result["missing"]:
            print(f"trainings without all their numbers: {missing}")
        print(f"{result['out']}/sweep.md")
        if result["report"] is not None:
            print(result["report"])

    def failure(self, result: dict[str, Any]) -> str | None:
        failed = len(result.get("failures", ()))
        return f"{failed} run{'s' if failed > 1 else ''} failed: the same command tries again" if failed else None


def described(plan: SweepPlan) -> dict[str, dict[str, int]]:
    """How many trainings a plan has of each kind, and how often each evaluation is made."""
    trainings = Counter(
        f"{kind_of(type(one.method))} on {one.data}, {one.model}, {one.epochs} epoch{'s' * (one.epochs != 1)}"
        for one in plan.configs
    )
    measured = Counter(_said(one) for config in plan.configs for one in plan.evaluations_of(config))
    return {"trainings": dict(trainings), "measured": dict(measured)}


def _said(evaluation: Evaluation) -> str:
    """An evaluation with the settings that are not the usual ones."""
    values = {one.name: getattr(evaluation, one.name) for one in fields(evaluation) if one.name != "attack"}
    usual = {one.name: one.default for one in fields(evaluation)}
    said = [f"{name} {_plain(value)}" for name, value in values.items() if value != usual[name]]
    return ", ".join([evaluation.title, *said])


def _plain(value: Any) -> str:
    if is_dataclass(value):
        return " ".join(
            str(getattr(value, one.name)) for one in fields(value) if getattr(value, one.name) != one.default
        )
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def import_own(names: Sequence[str]) -> None:
    """Import the user's own methods, attacks and evaluations, which a plan finds by module or kind."""
    for name in names:
        cls, functions = named_code(name, "code"), ROLES.values()
        if isinstance(cls, type) and issubclass(cls, Evaluation):
            if EVALUATIONS.get(cls.kind) is not cls:
                raise ValueError(f"code {name} must have a kind of its own, got {cls.kind!r}")
            continue
        if not is_dataclass(cls) or not any(hasattr(cls, function) for function in functions):
            wanted = " or ".join(functions)
            raise ValueError(f"code {name} must be a dataclass with a function {wanted}, or an Evaluation, got {cls!r}")
        check_attack(f"code {name}", cls)


COMMAND = SweepCommand
