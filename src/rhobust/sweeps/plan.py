"""The plan of a sweep: a TOML file as trainings and evaluations."""

import dataclasses
import itertools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from rhobust.attacks import AnyAttack, AttackMethod
from rhobust.data import EvaluationSplit
from rhobust.data.array_file import ArrayFile
from rhobust.data.registry import source
from rhobust.data.source import data_root
from rhobust.evaluation import EVALUATIONS, Evaluation
from rhobust.files import read_file
from rhobust.methods import AnyMethod
from rhobust.settings import NotImported, check_instance, from_json, kind_of, member_to_json
from rhobust.training import TrainConfig, config_from_json, open_run

KEYS = ("title", "split", "train", "axes", "grid", "evaluate")
"""What a plan may say."""
METHODS = {kind_of(cls): cls for cls in get_args(AnyMethod)}
ELSEWHERE = {"transfer": "several networks", "measure-shift": "pairs of images before and after a change"}
"""Evaluations that no plan can ask for, and why."""


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
        method, everyone = _method_of(config), ((),) * len(self.evaluations)
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
    trained = dict.fromkeys(_method_of(config) for config in cells)
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


def _method_of(config: TrainConfig) -> str:
    """The name by which a plan asks for the method of a training."""
    return member_to_json(config.method, AnyMethod)["kind"]


def _methods(names: Any, trained: Sequence[str], where: str) -> tuple[str, ...]:
    """The methods of an evaluation, which the plan must train."""
    if not isinstance(names, list) or not names or any(name not in trained for name in names):
        raise ValueError(f"{where}, evaluate.methods must be a list of the plan's {', '.join(trained)}, got {names!r}")
    return tuple(names)


def absent(plan: SweepPlan, root: Path | str | None = None) -> list[str]:
    """Data and teachers that a plan names and this machine lacks, one line each; workers may have them elsewhere."""
    place, found = data_root(root), list[str]()
    for name in dict.fromkeys(config.data for config in plan.configs):
        try:
            data = source(name)
            if data.locate(place) is None:
                found.append(f"there is no {name}" if isinstance(data, ArrayFile) else f"{name} is not under {place}")
        except ValueError as error:
            found.append(str(error))
    for folder in dict.fromkeys(folder for config in plan.configs for folder in config.teacher):
        try:
            if not open_run(folder).finished:
                found.append(f"{folder} is not finished")
        except ValueError as error:
            found.append(str(error))
    return found
