"""The plan of a sweep: axes over trainings, and the evaluations of each."""

import dataclasses
import itertools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from rhobust.attacks import AnyAttack
from rhobust.evaluation import EVALUATIONS, Evaluation
from rhobust.files import read_file
from rhobust.methods import AnyMethod
from rhobust.settings import from_json, kind_of
from rhobust.training.config import TrainConfig, config_from_json

KEYS = ("title", "train", "axes", "evaluate")
"""What a plan may say."""
METHODS = {kind_of(cls): cls for cls in get_args(AnyMethod)}


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

    @property
    def configs(self) -> tuple[TrainConfig, ...]:
        """Every training, once."""
        return tuple(cell.config for cell in self.cells)


def read_plan(path: Path | str) -> SweepPlan:
    """Read a plan from a TOML file.

    `[train]` says what is the same for all trainings, by the names of `TrainConfig`; `[axes]` gives lists, and every
    combination of their values is one training: `method`, fields of methods such as `sigma`, `gamma` and `eps`, `seed`,
    `data` and every other field of `TrainConfig`. A method that lacks a field is trained once for all its values. Each
    `[[evaluate]]` names an evaluation by its `kind` and gives its fields.
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
    for name, values in axes.items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"{where}, axes.{name} must be a list with one value at least, got {values!r}")
    evaluations = document.get("evaluate", [])
    if not isinstance(evaluations, list):
        raise ValueError(f"{where} must hold [[evaluate]] tables, got {evaluations!r}")
    cells = _cells(train, axes, where)
    return SweepPlan(title or "Sweep", cells, tuple(_evaluation(one, where) for one in evaluations))


def _cells(train: Mapping[str, Any], axes: Mapping[str, list[Any]], where: str) -> tuple[Cell, ...]:
    fields = {one.name for one in dataclasses.fields(TrainConfig)}
    cells: dict[TrainConfig, Cell] = {}
    used: set[str] = set()
    for values in itertools.product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        method = chosen.get("method", train.get("method"))
        method = {"kind": method} if isinstance(method, str) else dict(method or {})
        cls = METHODS.get(method.get("kind", ""))
        known = None if cls is None else {one.name for one in dataclasses.fields(cls)}
        at = []
        config = {key: value for key, value in train.items() if key != "method"}
        for name, value in chosen.items():
            if name == "method":
                at.append((name, _word(method)))
            elif name in fields:
                config[name] = value
                at += [] if name == "seed" else [(name, value)]
            elif known is None or name in known:
                method[name] = value
                at.append((name, value))
            else:
                continue  # this method has no such field
            used.add(name)
        made = config_from_json({**config, "method": method}, where)
        cells.setdefault(made, Cell(tuple(at), made))
    if unused := [name for name in axes if name not in used]:
        raise ValueError(f"{where}, axes.{unused[0]} must be a field of a training or of one of its methods")
    return tuple(cells.values())


def _word(method: Mapping[str, Any]) -> str:
    """A method in a table: its name, and what the plan says of it."""
    said = [f"{key} {value}" for key, value in method.items() if key != "kind"]
    return " ".join([str(method.get("kind")), *said])


def _evaluation(document: Any, where: str) -> Evaluation:
    kind = document.get("kind") if isinstance(document, dict) else None
    if kind not in EVALUATIONS:
        raise ValueError(f"{where}, evaluate.kind must be one of {', '.join(EVALUATIONS)}, got {kind!r}")
    settings = {key: value for key, value in document.items() if key != "kind"}
    return from_json(EVALUATIONS[kind], settings, f"{where}, evaluate {kind}", AnyAttack)
