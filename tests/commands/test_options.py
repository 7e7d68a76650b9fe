"""Every option of a command reaches the evaluation that it is for: none is taken and then forgotten."""

import dataclasses
import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from rhobust.attacks import PGD
from rhobust.certificates import ShiftClaim, Smoothing
from rhobust.cli import parse, run
from rhobust.commands import audit, predict
from rhobust.commands.choice import Choice, Several
from rhobust.commands.options import Common
from rhobust.evaluation import Ascent
from rhobust.progress import no_progress

SAMPLE = "--sigma 0.5 --data d.npz --root r --limit 9 --stride 2 --seed 3"
SAMPLED = {"limit": 9, "stride": 2, "seed": 3, "progress": no_progress}

CASES = {
    "attack": (
        f"run {SAMPLE} --radii 0 1 --source other --scored base --votes 7 --no-nested --no-probe --fast"
        " attack:pgd --attack.steps 3",
        "attack_target",
        {"source": "other", "scored": "base", "votes": 7, "nested": False, "probe": False, "fast": True, **SAMPLED},
    ),
    "certify": (
        f"run {SAMPLE} --radii 0 1 --procedure sequential --tolerance 0.1 --n0 50 --n 500 --alpha 0.01 --noise float"
        " --dtype bfloat16 --compile --tsv t.tsv",
        "certify_target",
        {
            "radii": (0.0, 1.0),
            "procedure": "sequential",
            "tolerance": 0.1,
            "n0": 50,
            "n": 500,
            "alpha": 0.01,
            "noise": "float",
        }
        | {"dtype": "bfloat16", "compiled": True, **SAMPLED},
    ),
    "certify-shift": (
        f"run {SAMPLE} --eps 0 1 --draws 5 --alpha 0.01 --baselines --dtype bfloat16 --cost w1",
        "certify_shift_target",
        {"eps": (0.0, 1.0), "draws": 5, "alpha": 0.01, "baselines": True, "dtype": "bfloat16", **SAMPLED}
        | {"claim": ShiftClaim(cost="w1")},
    ),
    "curves": (
        f"run {SAMPLE} --eps 0 1 --loss 0-1 --bound 1 --draws 5 --alpha 0.01 --wrm --dtype bfloat16 --steps 3",
        "curves_target",
        {"eps": (0.0, 1.0), "loss": "0-1", "bound": 1.0, "draws": 5, "alpha": 0.01, "wrm": True, "dtype": "bfloat16"}
        | {"ascent": Ascent(steps=3), **SAMPLED},
    ),
    "measure-shift": (
        "before after --run run --model m:f --weights w --out o --labels l.npy --sigma 0.5 --data d.npz --root r"
        " --draws 5 --alpha 0.01 --dtype bfloat16 --seed 3",
        "measure_target",
        {"draws": 5, "alpha": 0.01, "dtype": "bfloat16", "seed": 3, "progress": no_progress},
    ),
    "transfer": (
        f"run other {SAMPLE} --radii 0 1 --scored base --votes 7 attack:pgd --attack.steps 3",
        "transfer_matrix",
        {"scored": "base", "votes": 7, **SAMPLED},
    ),
}
POSITIONAL = {
    "attack": (PGD(steps=3), (0.0, 1.0)),
    "transfer": (PGD(steps=3), (0.0, 1.0)),
    "measure-shift": ("pairs",),
}


class Called(Exception):  # noqa: N818
    """The evaluation was called; nothing is evaluated."""


@pytest.fixture
def chosen(monkeypatch):
    """The choices of networks that were asked for their targets."""
    seen = []

    def target(self, common):
        seen.append(self)
        return SimpleNamespace(choice=self, data=SimpleNamespace(shape=(1, 8, 8)))

    monkeypatch.setattr(Choice, "target", target)
    monkeypatch.setattr(Several, "targets", target)
    return seen


@pytest.mark.parametrize("name", CASES)
def test_every_option_reaches_the_evaluation(name, chosen, monkeypatch):
    words, function, expected = CASES[name]
    module = importlib.import_module(f"rhobust.commands.{name.replace('-', '_')}")

    def called(*arguments, **options):
        raise Called(arguments, options)

    monkeypatch.setattr(module, function, called)
    if name == "attack":
        monkeypatch.setattr(module, "source_from_run", lambda folder, target: str(folder))
    if name == "measure-shift":
        loaded = {"labels": Path("l.npy"), "channels": 1, "progress": no_progress}
        monkeypatch.setattr(module, "load_pairs", lambda *files, **more: "pairs" if more == loaded else files)
    with pytest.raises(Called) as call:
        run([name, *words.split(), "--quiet"])
    (_, *positional), options = call.value.args
    assert options == expected
    assert tuple(positional) == POSITIONAL.get(name, ())
    (choice,) = chosen
    assert (choice.sigma, choice.data, choice.root) == (0.5, "d.npz", Path("r"))
    assert Path("run") in (getattr(choice, "run", None), *getattr(choice, "runs", ()))
    if name == "measure-shift":
        assert (choice.model, choice.weights, choice.out) == ("m:f", Path("w"), Path("o"))


@pytest.mark.parametrize("name", CASES)
def test_every_option_is_tried(name):
    """An option that is added without a case here could be forgotten on its way."""
    module = importlib.import_module(f"rhobust.commands.{name.replace('-', '_')}")
    command = parse(module.COMMAND, name, [*CASES[name][0].split(), "--quiet"])
    for field in dataclasses.fields(command):
        value = getattr(command, field.name)
        if field.default is not dataclasses.MISSING:
            assert value != field.default, f"--{field.name} is not tried"
        if isinstance(value, Choice | Several):
            own = [part.name for part in dataclasses.fields(value) if part.name not in ("model", "weights", "out")]
            assert all(getattr(value, part) != getattr(type(value)(), part) for part in own)


def test_a_choice_hands_its_options_to_the_run(monkeypatch):
    seen = []
    choice = "rhobust.commands.choice"
    monkeypatch.setattr(f"{choice}.target_from_folder", lambda folder, **more: seen.append((folder, more)) or "target")
    common = Common(device="cpu", quiet=True)
    options = {"sigma": 0.5, "data": "d", "root": Path("r")}
    Choice(run=Path("run"), **options).target(common)
    Several(runs=(Path("run"),), **options).targets(common)
    assert [folder for folder, _ in seen] == [Path("run")] * 2
    for _, more in seen:
        assert more | {"device": str(more["device"])} == {**options, "progress": no_progress, "device": "cpu"}


def test_a_choice_hands_its_options_to_the_users_own_network(monkeypatch):
    seen = []
    monkeypatch.setattr("rhobust.commands.choice.target_from_weights", lambda *own, **more: seen.append((own, more)))
    options = {"sigma": 0.5, "data": "d", "root": Path("r")}
    Choice(model="m:f", weights=Path("w"), out=Path("o"), **options).target(Common(device="cpu", quiet=True))
    ((own, more),) = seen
    assert own == ("m:f", Path("w"))
    assert more | {"device": str(more["device"])} == {
        **options,
        "folder": Path("o"),
        "progress": no_progress,
        "device": "cpu",
    }


def test_the_options_of_an_audit_reach_it(monkeypatch):
    seen = []
    monkeypatch.setattr(audit, "audit_record", lambda path, **more: seen.append((path, more)) or {"problems": []})
    monkeypatch.setattr(audit.Audit, "show", lambda *_: None)
    words = "a.jsonl b.jsonl --share 0.5 --data d --root r --seed 3 --device cpu --quiet"
    assert run(["audit", *words.split()]) == 0
    assert [path for path, _ in seen] == [Path("a.jsonl"), Path("b.jsonl")]
    for _, more in seen:
        expected = {"share": 0.5, "data": "d", "root": Path("r"), "seed": 3, "progress": no_progress, "device": "cpu"}
        assert more | {"device": str(more["device"])} == expected


def test_the_options_of_a_prediction_reach_the_vote(half_space, monkeypatch):
    def called(model, images, smoothing, **more):
        raise Called(smoothing, more)

    trained = SimpleNamespace(sigma=0.25)
    opened = SimpleNamespace(
        load_model=lambda _: half_space, config=trained, shape=(1, 4, 4), classes=("dark", "bright")
    )
    monkeypatch.setattr(predict, "open_run", lambda folder: opened)
    monkeypatch.setattr(predict, "read_image", lambda path, channels: torch.zeros(channels, 4, 4, dtype=torch.uint8))
    monkeypatch.setattr(predict, "predict_inputs", called)
    checked = []
    monkeypatch.setattr(predict, "VoteCounter", lambda model, images, smoothing: smoothing)
    monkeypatch.setattr(predict, "check_batch_independence", checked.append)
    words = "run a.png b.png --sigma 0.5 --n 7 --alpha 0.01 --dtype bfloat16 --compile --seed 3 --device cpu --quiet"
    with pytest.raises(Called) as call:
        run(["predict", *words.split()])
    smoothing, more = call.value.args
    assert smoothing == Smoothing(0.5, 2, seed=3, dtype="bfloat16", compiled=True)
    assert checked == [smoothing]
    assert more == {"indices": range(2), "n": 7, "alpha": 0.01}
