import re
import shlex
import sys
from dataclasses import dataclass, fields, replace
from typing import get_args

import pytest

from rhobust.cli import parse
from rhobust.commands.train import Train
from rhobust.methods import ERM, NAL, AdversarialTraining, AnyMethod
from rhobust.settings import NotImported, kind_of
from rhobust.training import TrainConfig, config_from_json, config_to_json, train_command


def config(**changes):
    return replace(TrainConfig(NAL(), data="digits", model="cnn-small"), **changes)


@pytest.mark.parametrize("method", get_args(AnyMethod))
def test_json_round_trip(method):
    before = config(method=method(), lr=0.003, validation=5)
    document = config_to_json(before)
    assert document["method"]["kind"] == kind_of(method)
    assert config_from_json(document, "config.json") == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epoch": 3}, "unknown keys (epoch)"),
        ({"epochs": 2.5}, "whole number, got 2.5"),
        ({"epochs": "3"}, "whole number, got '3'"),
        ({"epochs": 0}, "epochs must be >= 1, got 0"),
        ({"augment": 1}, "true or false"),
        ({"model": "resnet"}, "model must be one of"),
        ({"activation": "gelu"}, "gelu"),
        ({"method": {"kind": "nall"}}, "kind must be one of erm, gaussian, stn, pgd, trades, smoothadv, wrm, nal"),
        ({"method": {"kind": "nal", "sigmaa": 1.0}}, "unknown keys (sigmaa)"),
        ({"method": {"kind": "nal", "sigma": -1.0}}, "sigma must be > 0, got -1.0"),
        ({"method": 3}, "kind must be one of"),
    ],
)
def test_a_damaged_config_is_one_line_that_names_file_and_fault(change, message):
    document = {**config_to_json(config()), **change}
    with pytest.raises(ValueError, match=r"run/config\.json must be a valid TrainConfig") as caught:
        config_from_json(document, "run/config.json")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_key_is_named():
    document = config_to_json(config())
    del document["data"]
    with pytest.raises(ValueError, match="data"):
        config_from_json(document, "config.json")


@dataclass(frozen=True)
class Mine:
    """A user's own method."""

    sigma: float = 0.3

    def loss(self, model, x, y, rng):
        raise NotImplementedError


def test_a_users_own_method_round_trips():
    document = config_to_json(config(method=Mine(0.4)))
    assert document["method"] == {"kind": f"{Mine.__module__}:Mine", "sigma": 0.4}
    assert config_from_json(document, "config.json") == config(method=Mine(0.4))
    assert config(method=Mine(0.4)).run_id.startswith("mine-sigma0.4-digits-")


@dataclass(frozen=True)
class MyNal(NAL):
    """A user's own change of a method of ours."""

    share: float = 0.5


@pytest.mark.parametrize("cls", [NAL, MyNal])
def test_a_setting_that_came_later_is_written_only_where_it_is_used(cls):
    plain, used = config_to_json(config(method=cls())), config(method=cls(agreement=2.0))
    assert "agreement" not in plain["method"], "runs that were named before keep their names"
    assert config_to_json(used)["method"]["agreement"] == 2.0
    assert config_from_json(config_to_json(used), "config.json") == used
    assert used.run_id != config(method=cls()).run_id


def test_a_users_subclass_of_our_method_round_trips_with_its_own_fields():
    document = config_to_json(config(method=MyNal(gamma=2.0, share=0.25)))
    assert document["method"]["kind"] == f"{MyNal.__module__}:MyNal"
    assert (document["method"]["gamma"], document["method"]["share"]) == (2.0, 0.25)
    assert config_from_json(document, "config.json") == config(method=MyNal(gamma=2.0, share=0.25))
    assert config(method=MyNal()).run_id.startswith("mynal-sigma0.1-gamma0.5-digits-")


def test_a_method_that_is_not_imported_is_read_but_never_imported():
    document = config_to_json(config(method=Mine(0.4)))
    document["method"]["kind"] = "antigravity:Method"
    read = config_from_json(document, "config.json")
    assert "antigravity" not in sys.modules
    assert read.method == NotImported("antigravity:Method", {"sigma": 0.4})
    assert read.sigma == 0.4
    assert config_to_json(read) == document


def test_the_run_id_is_readable_and_changes_with_every_field():
    assert re.fullmatch(r"nal-sigma0.1-gamma0.5-digits-cnn-small-epochs\d+-seed0-[0-9a-f]{8}", config().run_id)
    assert config(data="/a/b/photos/").run_id.startswith("nal-sigma0.1-gamma0.5-photos-")
    assert config(method=AdversarialTraining(eps=0.9), activation="elu", seed=3).run_id.startswith("pgd-eps0.9-digits-")
    assert "-elu-" in config(activation="elu").run_id
    assert "-seed3-" in config(seed=3).run_id
    assert config(method=NAL(inner="paper")).run_id.startswith("nal-paper-sigma")
    other = {
        "method": ERM(),
        "data": "mnist",
        "model": "cnn",
        "activation": "elu",
        "epochs": 7,
        "batch_size": 7,
        "optimizer": "sgd",
        "lr": 0.7,
        "schedule": "cosine",
        "weight_decay": 0.7,
        "augment": False,
        "clip": 7.0,
        "label_smoothing": 0.7,
        "average": 0.7,
        "weight_perturbation": 0.7,
        "cutmix": 0.7,
        "attack_after": 7,
        "teacher": ("runs/teacher", "runs/other"),
        "teacher_weight": 0.7,
        "mirror": True,
        "round_weights": True,
        "resize": 7,
        "crop": 7,
        "crop_padding": 7,
        "flip": True,
        "validation": 7,
        "measure_eps": 7.0,
        "fast": False,
        "seed": 7,
    }
    start = [{"weights": weights, "init": "cnn-small"} for weights in "vw"]
    joined = [*start, {"mean": (7.0,), "std": (7.0,)}]
    named = {name for changes in joined for name in changes}
    assert {*other, "keep", *named} == {one.name for one in fields(TrainConfig)}
    ids = {config(**changes).run_id for changes in [*({name: value} for name, value in other.items()), *joined]}
    assert len(ids | {config().run_id}) == len(other) + len(joined) + 1
    assert "/" not in config(model="code/net.py:make").run_id


def test_sigma_is_the_methods():
    assert config().sigma == NAL().sigma
    assert config(method=ERM()).sigma is None


@pytest.mark.parametrize("change", [{"lr": 0.0}, {"batch_size": 0}, {"weight_decay": -1.0}, {"seed": -1}])
def test_bad_values_are_refused(change):
    with pytest.raises(ValueError, match=f"{next(iter(change))} must be"):
        config(**change)


@pytest.mark.parametrize("method", [cls() for cls in get_args(AnyMethod)], ids=repr)
def test_the_command_trains_the_same(method):
    changed = replace(method, **{"sigma": 0.3} if hasattr(method, "sigma") else {})
    wanted = TrainConfig(changed, "my data.npz", "cnn", activation="elu", lr=3e-5, augment=False, clip=0.5, seed=7)
    command = train_command(wanted)
    assert command.startswith("rhobust train method:")
    assert parse(Train, "train", shlex.split(command)[2:]).config == wanted
    plain = TrainConfig(method, "digits", "cnn")
    assert train_command(plain).split()[3:] == ["--data", "digits", "--model", "cnn"]


@pytest.mark.parametrize(
    ("given", "optimizer", "lr", "decay"),
    [
        ({"model": "resnet18"}, "sgd", 0.2, 1e-3),
        ({"model": "cnn"}, "adam", 2e-3, 0.0),
        ({"model": "mynet:make"}, "adam", 2e-3, 0.0),
        ({"init": "resnet18", "weights": "weights.pt"}, "adam", 2e-3, 0.0),
        ({"model": "resnet18", "optimizer": "adam"}, "adam", 2e-3, 0.0),
        ({"model": "cnn", "optimizer": "sgd", "lr": 0.01}, "sgd", 0.01, 1e-3),
        ({"model": "resnet18", "weight_decay": 0.0}, "sgd", 0.2, 0.0),
    ],
)
def test_networks_with_batch_norm_are_trained_by_sgd_by_default(given, optimizer, lr, decay):
    config = TrainConfig(NAL(), data="cifar10", **given)
    assert (config.optimizer, config.lr, config.weight_decay) == (optimizer, lr, decay)
    stored = config_to_json(config)
    assert (stored["optimizer"], stored["lr"], stored["weight_decay"]) == (optimizer, lr, decay)
    command = train_command(config)
    assert command is not None
    for option, name in (("--optimizer", "optimizer"), ("--lr", "lr"), ("--weight-decay", "weight_decay")):
        assert (f"{option} " in command) == (name in given)


def test_a_method_of_the_users_own_has_no_command():
    @dataclass(frozen=True)
    class Own(NAL):
        pass

    assert train_command(TrainConfig(Own(), "digits", "cnn")) is None


def test_a_config_builds_no_other_dataclass_in_memory():
    document = config_to_json(config(method=Mine(0.4)))
    for kind in ("rhobust.training.config:TrainConfig", "rhobust.records:Record", "rhobust:Target"):
        document["method"] = {"kind": kind}
        assert config_from_json(document, "config.json").method == NotImported(kind, {})
