"""The table of a sweep: mean and deviation over seeds, and the difference to the first method, paired by seed."""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rhobust.attacks import AnyAttack
from rhobust.data import EvaluationSplit
from rhobust.evaluation import Evaluation
from rhobust.files import write_json, write_whole
from rhobust.formatting import format_distance, format_interval, format_number, name_split
from rhobust.measurements import READERS, Measurement, measurements, read_finished
from rhobust.records import Record
from rhobust.settings import flatten, to_json
from rhobust.stats import mean_difference

if TYPE_CHECKING:
    from rhobust.sweeps.plan import SweepPlan
    from rhobust.sweeps.sweep import Unit

ADDED = ("seconds", "trained_on")
"""Numbers of a summary that the engine adds to those of the evaluation."""
EQUAL = 1e-9
"""Width of an interval that rounding alone may have left: every seed gave the same difference."""
Where = tuple[tuple[str, Any], ...]
"""Values on the axes."""


@dataclass(frozen=True)
class SweepTable:
    """What a sweep measured: one row per combination of axes and number, over the seeds."""

    title: str
    axes: tuple[str, ...]
    """Names of the axes but the seed."""
    rows: tuple[Mapping[str, Any], ...]
    """Each with the axes' values, evaluation, quantity, radius or eps, `mean`, `deviation` and `seeds`; where there is
    a first method to compare with, the `difference` of the means with its 95% interval over seeds; none where every
    seed gave the same difference."""
    missing: int
    """Trainings without all their numbers."""
    split: EvaluationSplit = "test"
    """The images that everything was measured on."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Why the record of a run was refused, such as one that was changed, by the run's id."""

    def write(self, folder: Path) -> None:
        """Write `sweep.json`, `sweep.md` and `sweep.csv`."""
        shown = {"axes": list(self.axes), "rows": list(self.rows), "missing": self.missing}
        write_json(folder / "sweep.json", {"title": self.title, "split": self.split, **shown})
        write_whole(folder / "sweep.md", self.markdown())
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        columns = [*self.axes, "evaluation", "quantity", "at", "status", "mean", "deviation", "seeds"]
        columns += ["difference", "low", "high", "split"]
        writer.writerow(columns)
        rows = [{**row, "split": self.split} for row in self.rows]
        writer.writerows([["" if (value := row.get(one)) is None else value for one in columns] for row in rows])
        write_whole(folder / "sweep.csv", text.getvalue())

    def cells(self) -> list[list[str]]:
        """The rows as people read them, under `columns`."""
        return [
            [
                *("" if (value := row.get(axis)) is None else str(value) for axis in self.axes),
                row["evaluation"],
                row["quantity"] if row["at"] is None else f"{row['quantity']} at {format_distance(row['at'])}",
                format_number(row["mean"], 4, row["direction"]),
                "–" if row["deviation"] is None else format_number(row["deviation"], 4, "nearest"),
                str(row["seeds"]),
                "–" if row["difference"] is None else format_number(row["difference"], 4, "nearest"),
                "–" if row["low"] is None else format_interval(row["low"], row["high"], 4),
            ]
            for row in self.rows
        ]

    @property
    def images(self) -> str:
        """The images that everything was measured on, in words."""
        whose = " of each training, no test images" if self.split == "validation" else ""
        return f"{name_split(self.split)} images{whose}"

    @property
    def columns(self) -> list[str]:
        """Titles of the columns."""
        numbers = ["mean", "deviation", "seeds", "difference to the first method", "95% over seeds"]
        return [*self.axes, "evaluation", "quantity", *numbers]

    def markdown(self) -> str:
        """The table in Markdown."""
        lines = [self.columns, ["---"] * len(self.columns), *self.cells()]
        body = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        note = (
            f"Everything is measured on {self.images}. Means and standard deviations are over seeds. The difference is"
            " to the first method of the plan at the same place of the other axes, paired by seed, with Student's"
            " interval, which covers the randomness of training and not the choice of images; there is none where every"
            " seed gave the same difference. A mean of certified numbers is no certificate."
        )
        lack = "training lacks" if self.missing == 1 else "trainings lack"
        gaps = f"\n\n{self.missing} {lack} numbers." if self.missing else ""
        return f"# {self.title}\n\n{body}\n\n{note}{gaps}\n"


def table_of(plan: "SweepPlan", units: "Sequence[Unit]") -> SweepTable:
    """The table of a plan from the records that are there.

    Args:
        plan: The plan.
        units: Its units, one per training, in its order.
    """
    found: dict[tuple[Where, str, str, float | None], dict[int, Measurement]] = {}
    names, missing, refused = names_of(plan.evaluations), 0, dict[str, str]()
    for cell, unit in zip(plan.cells, units, strict=True):
        paths = [unit.record(one) for one in unit.evaluations]
        whole = unit.run.finished and None not in paths
        for evaluation, path in zip(unit.evaluations, paths, strict=True):
            try:
                numbers = [] if path is None else _numbers(read_finished(path))
            except ValueError as error:
                numbers, whole = [], False
                refused[cell.config.run_id] = str(error)
            for one in numbers:
                quantity = " ".join([one.quantity, *_detail(one)])
                found.setdefault((cell.at, names[evaluation], quantity, one.at), {})[cell.config.seed] = one
        missing += not whole
    first = next((dict(cell.at).get("method") for cell in plan.cells), None)
    axes = tuple(dict.fromkeys(name for cell in plan.cells for name, _ in cell.at))
    rows = [_row(key, by_seed, found.get(_first(key, first, plan), {})) for key, by_seed in found.items()]
    return SweepTable(plan.title, axes, tuple(rows), missing, plan.split, refused)


def names_of(evaluations: Sequence[Evaluation]) -> dict[Evaluation, str]:
    """A name for each evaluation: its kind and what it uses, and the settings in which others of that name differ."""
    plain = {one: one.title for one in evaluations}
    names = {}
    for one, name in plain.items():
        alike = [_settings(other) for other, same in plain.items() if same == name]
        own = _settings(one)
        told = [f"{key} {own.get(key)}" for key in own if any(other.get(key) != own.get(key) for other in alike)]
        names[one] = ", ".join([name, *told])
    return names


def _settings(evaluation: Evaluation) -> dict[str, Any]:
    """The settings of an evaluation by their names, those of its attack among them."""
    return dict(flatten(to_json(evaluation.with_defaults(), AnyAttack)))


def _numbers(record: Record) -> list[Measurement]:
    """What a record measured; of an evaluation of the user's own the numbers of its summary, as estimates."""
    if record.kind in READERS:
        return measurements(record)
    n = len({row["index"] for row in record.rows})
    return [
        Measurement(name, None, float(value), None, None, n, "estimate")
        for name, value in (record.summary or {}).items()
        if name not in ADDED and isinstance(value, int | float) and not isinstance(value, bool)
    ]


def _detail(one: Measurement) -> list[str]:
    """What distinguishes numbers of one name: whose bound, which corruption."""
    keys = ("baseline", "cost", "classifier", "corruption", "severity")
    return [str(one.detail[key]) for key in keys if one.detail.get(key)]


def _first(key: tuple[Where, str, str, float | None], first: Any, plan: "SweepPlan") -> Any:
    """The same number of the first method, at the same place of the axes that it has."""
    at, *rest = key
    if first is None or dict(at).get("method") == first:
        return None
    theirs = next(cell.at for cell in plan.cells if dict(cell.at).get("method") == first)
    shared = dict(at) | {"method": first}
    wanted = tuple((name, shared.get(name)) for name, _ in theirs)
    return (wanted, *rest)


def _row(
    key: tuple[Where, str, str, float | None], by_seed: Mapping[int, Measurement], theirs: Mapping[int, Measurement]
) -> dict[str, Any]:
    at, evaluation, quantity, place = key
    values = [by_seed[seed].value for seed in sorted(by_seed)]
    one = next(iter(by_seed.values()))
    shared = sorted(by_seed.keys() & theirs.keys())
    pairs = [[side[seed].value for seed in shared] for side in (by_seed, theirs)]
    paired = mean_difference(*pairs) if len(shared) > 1 else None
    single = pairs[0][0] - pairs[1][0] if len(shared) == 1 else None
    # A few equal differences, of accuracies on few images, do not say how much others would spread.
    equal = paired is None or paired.high - paired.low < EQUAL
    return {
        **dict(at),
        "evaluation": evaluation,
        "quantity": quantity,
        "at": place,
        "status": one.status,
        "direction": one.direction,
        "mean": statistics.fmean(values),
        "deviation": statistics.stdev(values) if len(values) > 1 else None,
        "seeds": len(values),
        "difference": single if paired is None else paired.value,
        "low": None if paired is None or equal else paired.low,
        "high": None if paired is None or equal else paired.high,
    }
