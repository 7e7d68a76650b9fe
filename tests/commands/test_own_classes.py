"""The user's own method and attack, named on the command line."""

import json
import sys

import pytest

from rhobust.cli import run
from rhobust.evaluation import EVALUATIONS
from rhobust.measurements import read_finished
from rhobust.records import record_paths
from rhobust.training import open_run

CODE = '''
from dataclasses import dataclass
from typing import ClassVar

import torch
from rhobust.attacks import AttackMethod
from rhobust.data import to_unit
from rhobust.evaluation import Evaluation
from rhobust.methods import Loss
from torch.nn import functional as F


@dataclass(frozen=True)
class Weighted:
    """Cross-entropy under noise, weighted."""

    sigma: float = 0.25
    """Noise."""
    weight: float = 0.5
    """Weight."""

    def loss(self, model, x, y, rng):
        return Loss(self.weight * F.cross_entropy(model(x + self.sigma * rng.normal(x, 1)[0]), y), torch.zeros(len(x)))


@dataclass(frozen=True)
class Fade(AttackMethod):
    """Towards grey."""

    strength: float = 1.0
    """How far."""

    @property
    def attacks_smoothed(self):
        return False

    def perturb(self, model, x, y, *, eps, sigma, rng):
        way = 0.5 - x
        length = way.flatten(1).norm(dim=1).clamp_min(1e-9).view(-1, 1, 1, 1)
        return x + way * (self.strength * eps / length).clamp(max=1)


@dataclass(frozen=True)
class Alone:
    """An attack that inherits nothing."""

    attacks_smoothed = False

    def perturb(self, model, x, y, *, eps, sigma, rng):
        return x


@dataclass(frozen=True)
class Lifted(Evaluation):
    """Accuracy after a constant is added to every pixel."""

    kind: ClassVar[str] = "lifted"
    shift: float = 0.1
    """Added to every pixel."""

    def rows(self, target, examples, progress):
        for index in examples:
            image = to_unit(target.data.images[index : index + 1]) + self.shift
            yield {"index": index, "right": bool(target.model(image).argmax() == target.data.labels[index])}

    def summarise(self, target, rows):
        return {"accuracy": sum(row["right"] for row in rows) / len(rows), "shown": True, "words": "none"}


class Taken(Lifted):
    kind: ClassVar[str] = "accuracy"


def function(): ...
'''


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mine_own.py").write_text(CODE)
    yield tmp_path
    sys.modules.pop("mine_own", None)
    EVALUATIONS.pop("lifted", None)


def test_a_method_and_an_attack_are_options_like_the_built_in_ones(mine, capsys):
    options = ["--method", "mine_own.py:Weighted", "--method.weight", "0.7", "--data", "digits", "--model", "cnn-small"]
    assert run(["train", *options, "--epochs", "1", "--out", "run", "--quiet"]) == 0
    assert json.loads((mine / "run" / "config.json").read_text())["method"] == {
        "kind": "mine_own:Weighted",
        "sigma": 0.25,
        "weight": 0.7,
    }
    options = ["run", "--attack=mine_own:Fade", "--attack.strength", "0.5", "--limit", "10", "--no-probe"]
    assert run(["attack", *options, "--quiet", "--json"]) == 0
    attack = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert attack["settings"]["attack"] == {"kind": "mine_own:Fade", "strength": 0.5}
    assert run(["attack", *options, "--quiet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["record"] == attack["record"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--method", "nal"], "--method must name a class, package.module:Class, got 'nal'; built in: method"),
        (["train", "--method"], "--method must name a class, package.module:Class, got ''"),
        (["train", "--method", "mine_own:function"], "must be a dataclass with a function loss"),
        (["train", "--method", "mine_own:Fade"], "must be a dataclass with a function loss"),
        (["train", "--method", "mine_own:absent"], "must define a function or class absent"),
        (["train", "--method", "no_such_place:X"], "must be importable, but"),
        (["attack", "run", "--attack", "mine_own:Alone"], "attack mine_own:Alone must inherit from AttackMethod of"),
        (["sweep", "plan.toml", "--code", "mine_own:Alone"], "code mine_own:Alone must inherit from AttackMethod of"),
        (["sweep", "plan.toml", "--code", "mine_own:Taken"], "must have a kind of its own, got 'accuracy'"),
        (["certify", "run", "--method", "mine_own:Weighted"], "--method must be left out: this command takes none"),
    ],
)
def test_mistakes_are_one_line(mine, capsys, arguments, message):
    assert run(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


PLAN = """
train = { data = "digits", model = "cnn-small", epochs = 1 }
axes = { method = [{ kind = "mine_own:Weighted", sigma = 0.5 }], seed = [0] }

[[evaluate]]
kind = "attack"
attack = { kind = "mine_own:Fade" }
methods = ["mine_own:Weighted"]
radii = [0.5]
limit = 2
"""


@pytest.mark.parametrize("executor", [[], ["--executor", "processes", "--workers", "1"]], ids=["local", "processes"])
def test_a_sweep_takes_a_method_and_an_attack_of_ones_own(mine, executor, capsys):
    (mine / "plan.toml").write_text(PLAN)
    command = ["sweep", "plan.toml", "--out", "sweep", "--quiet", *executor]
    assert run(command) == 2
    assert "--code mine_own:Weighted" in capsys.readouterr().err
    assert run([*command, "--code", "mine_own.py:function"]) == 2
    assert "must be a dataclass with a function loss or perturb" in capsys.readouterr().err
    assert run([*command, "--code", "mine_own:Weighted", "mine_own:Fade"]) == 0
    (folder,) = (mine / "sweep" / "runs").iterdir()
    assert open_run(folder).config.sigma == 0.5
    assert len(record_paths(folder, "attack")) == 1


@pytest.mark.parametrize("executor", [[], ["--executor", "processes", "--workers", "1"]], ids=["local", "processes"])
def test_a_sweep_takes_an_evaluation_of_ones_own_and_shows_its_numbers(mine, executor, capsys):
    (mine / "plan.toml").write_text(
        'train = { data = "digits", model = "cnn-small", epochs = 1, method = "erm" }\n'
        'evaluate = [{ kind = "lifted", shift = 0.2, limit = 5 }]\n'
    )
    command = ["sweep", "plan.toml", "--out", "sweep", "--quiet", "--json", *executor]
    assert run(command) == 2
    assert run([*command, "--code", "mine_own:Lifted"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["evaluation"], row["quantity"], row["status"]) == ("lifted", "accuracy", "estimate")
    (folder,) = (mine / "sweep" / "runs").iterdir()
    (path,) = record_paths(folder, "lifted")
    assert row["mean"] == read_finished(path).summary["accuracy"]
