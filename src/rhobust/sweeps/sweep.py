"""A sweep: the plan of its trainings and evaluations, and their work, unit by unit, each in a folder of its own."""

import dataclasses
import itertools
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import torch

from rhobust.attacks import AnyAttack, AttackMethod
from rhobust.data import EvaluationSplit
from rhobust.data.registry import source
from rhobust.data.source import data_root
from rhobust.evaluation import EVALUATIONS, Evaluation, Target, find_record, run
from rhobust.executors import Executor, Local, Task
from rhobust.files import check_folder, read_file, write_json
from rhobust.formatting import format_duration, format_workers
from rhobust.lock import owned
from rhobust.methods import AnyMethod
from rhobust.process import launched
from rhobust.progress import ProgressCallback, ProgressEvent, progress_or_default
from rhobust.records import Row, is_finished
from rhobust.report import write_report
from rhobust.settings import NotImported, check_instance, from_json, kind_of
from rhobust.sweeps.table import SweepTable, table_of
from rhobust.training import Run, TrainConfig, config_from_json, train
from rhobust.training.distributed import resolve_device

KEYS = ("title", "split", "train", "axes", "grid", "evaluate")
"""What a plan may say."""
METHODS = {kind_of(cls): cls for cls in get_args(AnyMethod)}
ELSEWHERE = {"transfer": "several networks", "measure-shift": "pairs of images before and after a change"}
"""Evaluations that no plan can ask for, and why."""
RUNS, FAILURES, LOCK = "runs", "failures.json", "sweep.lock"
"""Folder of the runs, file of what failed, and the lock of the sweep's folder."""
RETRIES = 1
"""How often a unit that failed is tried again in the same sweep; one that diverged is not."""


@dataclass(frozen=True)
class Cell:
    """One training of a sweep: where it is on the axes, and its config."""

    at: tuple[tuple[str, Any], ...]
    """Value on each axis but the seed; an axis that the method does not have is left out."""
    config: TrainConfig


@dataclass(frozen=True)
class SweepPlan:
    """Trainings and their evaluations."""

    title: str
    cells: tuple[Cell, ...]
    evaluations: tuple[Evaluation, ...]
    split: EvaluationSplit = "test"
    """The images that every run is evaluated on: test images, or those that it held out of its training."""
    methods: tuple[tuple[str, ...], ...] = ()
    """For each evaluation the names of the methods that it is of; empty, or left out at the end: every method."""

    @property
    def configs(self) -> tuple[TrainConfig, ...]:
        """Every training, once."""
        return tuple(cell.config for cell in self.cells)

    def evaluations_of(self, config: TrainConfig) -> tuple[Evaluation, ...]:
        """What is evaluated of a training."""
        method, everyone = kind_of(type(config.method)), ((),) * len(self.evaluations)
        named = zip(self.evaluations, self.methods + everyone, strict=False)
        return tuple(dict.fromkeys(one for one, methods in named if method in (methods or (method,))))


def read_plan(path: Path | str) -> SweepPlan:
    """Read a plan from a TOML file.

    `split = "validation"` evaluates every run on the training images that it held out, so that what is chosen by the
    sweep is not chosen on test images.

    `[train]` says what is the same for all trainings, by the names of `TrainConfig`; `[axes]` gives lists, and every
    combination of their values is one training: `method`, fields of methods such as `sigma`, `gamma` and `eps`, `seed`,
    `data` and every other field of `TrainConfig`. A method that lacks a field is trained once for all its values.
    Experiments that are no single grid are several: each `[[grid]]` has axes of its own besides those of `[axes]`, as
    lists or as single values. A training that two grids name is done once. Each `[[evaluate]]` names an evaluation by
    its `kind` and gives its fields; with `methods` it is made of these methods only, as an attack that needs noise.
    """
    path = Path(path)
    try:
        document = tomllib.loads(read_file(path).decode())
    except FileNotFoundError:
        raise ValueError(f"{path} must be the plan of a sweep, but there is no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} must be a TOML file, but {error}") from None
    return plan_from_document(document, str(path))


def plan_from_document(document: Mapping[str, Any], where: str) -> SweepPlan:
    """The plan that a document describes; errors name the file."""
    if unknown := [key for key in document if key not in KEYS]:
        raise ValueError(f"{where} must hold {', '.join(KEYS)}, got {unknown[0]}")
    title, train, axes = (document.get(key, empty) for key, empty in (("title", ""), ("train", {}), ("axes", {})))
    if not isinstance(title, str) or not isinstance(train, dict) or not isinstance(axes, dict):
        raise ValueError(f"{where} must hold a title, a table train and a table axes")
    split = document.get("split", "test")
    if split not in get_args(EvaluationSplit):
        raise ValueError(f"{where}, split must be 'test' or 'validation', got {split!r}")
    grids = document.get("grid", [{}])
    if not isinstance(grids, list) or not all(isinstance(grid, dict) for grid in grids):
        raise ValueError(f"{where} must hold [[grid]] tables, got {grids!r}")
    singles = ({name: one if isinstance(one, list) else [one] for name, one in grid.items()} for grid in grids)
    grids = [grid | {name: values for name, values in axes.items() if name not in grid} for grid in singles]
    for name, values in (axis for grid in grids for axis in grid.items()):
        if not isinstance(values, list) or not values:
            raise ValueError(f"{where}, axes.{name} must be a list with one value at least, got {values!r}")
    evaluations = document.get("evaluate", [])
    if not isinstance(evaluations, list):
        raise ValueError(f"{where} must hold [[evaluate]] tables, got {evaluations!r}")
    cells: dict[TrainConfig, Cell] = {}
    for grid in grids:
        for cell in _cells(train, grid, where):
            cells.setdefault(cell.config, cell)
    for name in dict.fromkeys(config.data for config in cells):
        if Path(name).name == name:  # a path may be one of the workers' machines
            try:
                source(name)
            except ValueError as error:
                raise ValueError(f"{where}, {error}") from None
    if split == "validation" and (none := [config for config in cells if not config.validation]):
        raise ValueError(
            f"{where}, validation must be > 0 in every training to evaluate held-out images, got 0 in {none[0].run_id}"
        )
    made = tuple(_evaluation(one, where) for one in evaluations)
    trained = dict.fromkeys(kind_of(type(config.method)) for config in cells)
    only = tuple(_methods(one["methods"], list(trained), where) if "methods" in one else () for one in evaluations)
    return SweepPlan(title or "Sweep", tuple(cells.values()), made, split, only)


def _cells(train: Mapping[str, Any], axes: Mapping[str, list[Any]], where: str) -> tuple[Cell, ...]:
    """Every combination of the axes, each training once."""
    fields = {one.name for one in dataclasses.fields(TrainConfig)}
    cells: dict[TrainConfig, Cell] = {}
    used: set[str] = set()
    for values in itertools.product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        method = chosen.get("method", train.get("method"))
        if not isinstance(method, str | dict | None):
            raise ValueError(f"{where}, method must be a name, or a table with kind and its fields, got {method!r}")
        method = {"kind": method} if isinstance(method, str) else dict(method or {})
        if not isinstance(method.get("kind", ""), str):
            raise ValueError(f"{where}, method's kind must be a name, got {method['kind']!r}")
        cls = METHODS.get(method.get("kind", ""))
        known = None if cls is None else {one.name for one in dataclasses.fields(cls)}
        at = []
        config = {key: value for key, value in train.items() if key != "method"}
        for name, value in chosen.items():
            if name == "method":
                at.append((name, _word(method)))
            elif name in fields:
                config[name] = value
                at += [] if name == "seed" else [(name, _shown(value))]
            elif known is None or name in known:
                method[name] = value
                at.append((name, _shown(value)))
            else:
                continue  # this method has no such field
            used.add(name)
        made = config_from_json({**config, "method": method}, where)
        _check_imported(made.method, where)
        cells.setdefault(made, Cell(tuple(at), made))
    if unused := [name for name in axes if name not in used]:
        raise ValueError(f"{where}, axes.{unused[0]} must be a field of a training or of one of its methods")
    return tuple(cells.values())


def _shown(value: Any) -> Any:
    """A value of an axis in a table, where it must be hashable: several teachers are one text."""
    if isinstance(value, list):
        return " ".join(map(str, value))
    return str(value) if isinstance(value, dict) else value


def _word(method: Mapping[str, Any]) -> str:
    """A method in a table: its name, and what the plan says of it."""
    said = [f"{key} {value}" for key, value in method.items() if key != "kind"]
    return " ".join([str(method.get("kind")), *said])


def _evaluation(document: Any, where: str) -> Evaluation:
    kind = document.get("kind") if isinstance(document, dict) else None
    if not isinstance(kind, str) or kind not in EVALUATIONS:
        raise ValueError(f"{where}, evaluate.kind must be one of {', '.join(EVALUATIONS)}, got {kind!r}")
    if kind in ELSEWHERE:
        raise ValueError(f"{where}, evaluate.kind must be of one run alone, got {kind}, which needs {ELSEWHERE[kind]}")
    settings = {key: value for key, value in document.items() if key not in ("kind", "methods")}
    settings = _by_options(EVALUATIONS[kind], settings)
    made = from_json(EVALUATIONS[kind], settings, f"{where}, evaluate {kind}", AnyAttack)
    if (attack := getattr(made, "attack", None)) is not None:
        _check_imported(attack, where)
        check_instance(f"{where}, evaluate {kind}, attack", attack, AttackMethod, "an AttackMethod of rhobust.attacks")
    return made


def _by_options(cls: type[Evaluation], settings: dict[str, Any]) -> dict[str, Any]:
    """Settings in which the fields of a part, such as a claim, may have been given by the names of their options."""
    fields = {one.name: one.type for one in dataclasses.fields(cls)}
    for name, kind in fields.items():
        part = get_args(kind)[0] if get_origin(kind) is Annotated else kind
        if isinstance(part, type) and dataclasses.is_dataclass(part) and name != "attack":
            own = {one.name for one in dataclasses.fields(part)} - fields.keys()
            given = {key: settings[key] for key in own & settings.keys()}
            if given and isinstance(settings.get(name, {}), dict):
                settings = {key: value for key, value in settings.items() if key not in given}
                settings[name] = {**settings.get(name, {}), **given}
    return settings


def _check_imported(code: object, where: str) -> None:
    """Refuse a method or an attack of the user's own whose module no one has imported: a plan imports nothing."""
    if isinstance(code, NotImported):
        module = code.kind.partition(":")[0]
        raise ValueError(
            f"{where} names {code.kind}, which must be imported before the plan is read: pass --code {code.kind}, or in"
            f" Python, import {module}"
        )


def _methods(names: Any, trained: Sequence[str], where: str) -> tuple[str, ...]:
    """The methods of an evaluation, which the plan must train."""
    if not isinstance(names, list) or not names or any(name not in trained for name in names):
        raise ValueError(f"{where}, evaluate.methods must be a list of the plan's {', '.join(trained)}, got {names!r}")
    return tuple(names)


@dataclass(frozen=True)
class Unit:
    """A training and its evaluations, in a run folder."""

    config: TrainConfig
    folder: Path
    evaluations: tuple[Evaluation, ...] = ()
    split: EvaluationSplit = "test"

    @property
    def run(self) -> Run:
        """The run, finished or not."""
        return Run(self.folder, self.config)

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return self.run.finished and all(self.record(one) is not None for one in self.evaluations)

    def record(self, evaluation: Evaluation) -> Path | None:
        """The finished record of an evaluation; None where there is none yet."""
        if not self.run.finished:
            return None
        # With its defaults: a record of fewer noise samples than this plan's is not what it asks for.
        path = find_record(
            evaluation.with_defaults(),
            self.folder,
            model_hash=self.run.model_hash,
            sigma=self.config.sigma,
            split=self.split,
        )
        return path if path is not None and is_finished(path) else None


@dataclass(frozen=True)
class SweepOutcome:
    """What a sweep made."""

    table: SweepTable
    page: Path | None
    """The report; None where no run was finished."""
    failures: dict[str, str]
    """One line per run that failed."""


def plan_units(plan: SweepPlan, out: Path) -> list[Unit]:
    """The units of a plan, one per training, in the folder of a sweep."""
    runs = out.absolute() / RUNS
    return [Unit(one, runs / one.run_id, plan.evaluations_of(one), plan.split) for one in plan.configs]


def run_sweep(
    plan: SweepPlan,
    out: Path | str,
    *,
    executor: Executor | None = None,
    device: torch.device | str = "auto",
    root: Path | str | None = None,
    progress: ProgressCallback | None = None,
    wait: bool = False,
) -> SweepOutcome:
    """Train and evaluate what a plan lacks, and write its table and its page.

    Finished work is skipped and interrupted work goes on, with any executor: the table is a function of the records. A
    unit that fails is tried again once, then listed; everything else is done. Workers on other machines need the folder
    and the data at the same paths.

    Args:
        plan: What to train and to evaluate.
        out: Folder for `runs/`, `sweep.json`, `sweep.md`, `sweep.csv`, `report.html` and `failures.json`.
        executor: Where it is done, one unit per worker at a time; default: in this process.
        device: Torch device of each worker; "auto": the GPU if there is one.
        root: Folder of the data sets; default: $RHOBUST_DATA or the cache folder.
        progress: Progress callback; default: shown on stderr.
        wait: If another process works on the folder, wait for it.
    """
    if launched():
        raise ValueError("a sweep must be started once, not by torchrun or srun: name an executor instead")
    check_instance("plan", plan, SweepPlan, "a SweepPlan, as of read_plan(file)")
    out = Path(out)
    check_folder("out", out)
    units = plan_units(plan, out)
    with progress_or_default(progress) as notify:
        out.mkdir(parents=True, exist_ok=True)
        with owned(out / LOCK, out, wait=float("inf") if wait else 0.0, notify=notify) as owner:
            failures = run_units(units, executor=executor, device=device, root=root, progress=notify)
            owner.check()
            table = table_of(plan, units)
            table.write(out)
            named = {**table.refused, **{units[number].config.run_id: line for number, line in failures.items()}}
            write_json(out / FAILURES, named)
            trained = [unit.folder for unit in units if unit.run.finished]
            page = write_report(trained, out / "report.html", title=plan.title).path if trained else None
    return SweepOutcome(table, page, named)


def run_units(
    units: Sequence[Unit],
    *,
    executor: Executor | None = None,
    device: torch.device | str = "auto",
    root: Path | str | None = None,
    progress: ProgressCallback,
) -> dict[int, str]:
    """Do what is left of some units; why each of those failed that did, by its number."""
    executor, kind = executor or Local(), resolve_device(device)
    place = str(kind) if not executor.spread else kind.type
    task = Task(_perform, tuple(units), (place, data_root(root).absolute()), kind.type)
    left = [number for number, unit in enumerate(units) if not unit.done]
    failures: dict[int, str] = {}
    for _ in range(1 + RETRIES):
        if not left:
            break
        again = []
        before, start = len(units) - len(left), time.monotonic()
        for number, (_, rows) in enumerate(executor.map(task, [[one] for one in left], progress), start=1):
            for row in rows:
                failures.pop(row["index"], None)
                if row["failure"] is not None:
                    failures[row["index"]] = row["failure"]
                    again += [] if row["final"] else [row["index"]]
                    progress(f"{units[row['index']].folder.name}: {row['failure']}")
            rest = (time.monotonic() - start) / number * (len(left) - number)
            note = f"{format_workers(executor.active)}, {format_duration(rest)} left" if executor.spread else ""
            progress(ProgressEvent("sweep", before + number, len(units), "runs", note))
        left = sorted(again)
    return failures


def _perform(units: Sequence[Unit], where: tuple[str, Path], block: Sequence[int], progress: Any) -> Iterator[Row]:
    """Do some units, one after the other; what goes wrong with one does not end the others."""
    device, root = where
    for number in block:
        unit, failure, final = units[number], None, False
        try:
            _do(unit, device, root, progress)
        except FloatingPointError as error:
            failure, final = f"did not converge: {error}", True
        except (ValueError, OSError, RuntimeError, MemoryError) as error:
            failure = " ".join(str(error).split()) or type(error).__name__
        yield {"index": number, "failure": failure, "final": final}


def _do(unit: Unit, device: str, root: Path, progress: ProgressCallback) -> None:
    # A worker of a killed sweep may still hold a folder for a moment.
    train(unit.config, unit.folder, device=device, root=root, resume=True, progress=progress, wait=True)
    missing = [one for one in unit.evaluations if unit.record(one) is None]
    if not missing:
        return
    # The plan names the network and its data itself, so the folder may use them.
    config = unit.config
    named = {"data": config.data, "model": config.model}
    target = Target.from_run(unit.folder, device=device, split=unit.split, root=root, progress=progress, **named)
    for evaluation in missing:
        run(evaluation, target, executor=Local(), progress=progress, wait=True)
