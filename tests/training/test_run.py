"""Run folders: a training that fails leaves the disk unchanged, and an invalid method is one line."""

import math
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from rhobust import lock_holder
from rhobust.lock import BusyError, LostError
from rhobust.lock_holder import Holder
from rhobust.methods import Gaussian, Loss
from rhobust.progress import no_progress
from rhobust.training import TrainConfig, open_run, train

CONFIG = TrainConfig(Gaussian(sigma=0.2), data="digits", model="cnn-small", epochs=2, batch_size=500, lr=2e-3)


def narrow():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))


@dataclass(frozen=True)
class Picky:
    """A user's own method, which finds out in its first step that it cannot go on."""

    sigma: float = 0.1

    def loss(self, model, x, y, rng):
        raise ValueError("x must be in colour, got grey")


@dataclass(frozen=True)
class Diverging:
    sigma: float = 0.1

    def loss(self, model, x, y, rng):
        return Loss(model(x).sum() * float("inf"), x.new_zeros(len(x)))


@dataclass(frozen=True)
class Interrupted:
    sigma: float = 0.1

    def loss(self, model, x, y, rng):
        raise KeyboardInterrupt("stopped")


REFUSED = {
    "data": ({"data": "nothing-of-this-name"}, ValueError, "must be"),
    "validation": ({"validation": 1000}, ValueError, "must leave images"),
    "network": ({"model": f"{__name__}:narrow"}, ValueError, "each of the 10 classes, got 3"),
    "factory": ({"model": "rhobust.models:absent"}, ValueError, "absent"),
    "first step": ({"method": Picky()}, ValueError, "in colour"),
    "diverging": ({"method": Diverging()}, FloatingPointError, "in epoch 1"),
    "interrupted": ({"method": Interrupted()}, KeyboardInterrupt, "stopped"),
}


def trained(folder, resume=False, **change):
    return train(replace(CONFIG, **change), folder, device=torch.device("cpu"), resume=resume, progress=no_progress)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize(("change", "error", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused_leaves_no_folder(tmp_path, change, error, message):
    with pytest.raises(error, match=message):
        trained(tmp_path / "run", **change)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("change", [{"model": "rhobust.models:absent"}, {"method": Picky()}])
def test_a_folder_that_was_there_stays_as_it_was(tmp_path, change):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="must"):
        trained(tmp_path, **change)
    assert contents(tmp_path) == {"notes.txt": b"mine"}


def test_an_unfinished_run_stays_as_it_was(tmp_path):
    def interrupt(_):
        raise KeyboardInterrupt("stopped")

    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, tmp_path, device=torch.device("cpu"), progress=interrupt)
    before = contents(tmp_path)
    assert sorted(before) == ["config.json", "environment.json", "metrics.jsonl", "resume.pt", "training-images.bin"]
    for change, message in (({"lr": 0.5}, "it differs in lr"), ({}, "set resume to continue")):
        with pytest.raises(ValueError, match=message):
            trained(tmp_path, **change)
        assert contents(tmp_path) == before
    (tmp_path / "resume.pt").write_bytes(b"cut off")
    with pytest.raises(ValueError, match="must be a checkpoint of this run"):
        trained(tmp_path, resume=True)
    assert contents(tmp_path) == {**before, "resume.pt": b"cut off"}


def test_one_changed_bit_of_the_weights_is_refused(tmp_path):
    before = trained(tmp_path).model_hash
    content = bytearray((tmp_path / "model.safetensors").read_bytes())
    content[-5] ^= 1
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.safetensors must be as it was written, .*: delete weights\.json"):
        open_run(tmp_path).load_model()
    (tmp_path / "weights.json").unlink()
    assert open_run(tmp_path).model_hash != before
    assert open_run(tmp_path).load_model()


def test_weights_without_a_config_are_no_finished_run(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"another file")
    with pytest.raises(ValueError, match=r"must be a run folder, but it holds no config\.json"):
        trained(tmp_path)
    assert contents(tmp_path) == {"model.safetensors": b"another file"}


@dataclass(frozen=True)
class Own:
    """A user-defined method with a chosen return value."""

    returns: str
    note: object = None

    def loss(self, model, x, y, rng):
        values = torch.nn.functional.cross_entropy(model(x), y, reduction="none")
        return {
            "a tensor": values.mean(),
            "a value per image": Loss(values, x.new_zeros(len(x))),
            "no gradient": Loss(values.mean().detach(), x.new_zeros(len(x))),
        }[self.returns]


@dataclass(frozen=True)
class Silent:
    """A method without a loss."""


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (Own("a tensor"), "a method's loss must return a rhobust.methods.Loss, got a Tensor"),
        (Own("a value per image"), r"a loss's value must be a scalar that .*, got the shape \(100,\)"),
        (Own("no gradient"), "a loss's value must be a scalar that .*, got one without a gradient"),
        (Silent(), r"method must be .* with a function loss\(model, x, y, rng\), got Silent\(\)"),
        (Gaussian, r"method must be a dataclass instance .*, got <class 'rhobust\.methods\.gaussian\.Gaussian'>"),
        (Own("a tensor", note=math.sqrt), "method must hold JSON values only, for config.json, but Object of type"),
    ],
)
def test_a_method_of_ones_own_that_cannot_train_is_one_line(method, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        train(
            TrainConfig(method, "digits", "cnn-small", epochs=1, batch_size=100),
            tmp_path / "own",
            device="cpu",
            progress=no_progress,
        )


def beside(folder, act):
    """Train, and act beside it after the first epoch."""

    def notify(event):
        if event.done == 1:
            act()

    return train(CONFIG, folder, device=torch.device("cpu"), progress=notify)


def test_a_second_training_in_a_folder_is_refused(tmp_path):
    refused = []

    def act():
        before = contents(tmp_path / "run")
        for options in ({}, {"resume": True}, {"epochs": 3}):
            with pytest.raises(BusyError, match=rf"run must have one writer, but process {os.getpid()} on this mach"):
                trained(tmp_path / "run", **options)
            refused.append(options)
        assert contents(tmp_path / "run") == before

    run = beside(tmp_path / "run", act)
    assert len(refused) == 3
    assert [row["epoch"] for row in run.metrics()] == [1, 2]
    assert "train.lock" not in contents(tmp_path / "run")


def test_who_waits_for_a_training_gets_its_run(tmp_path):
    waiting, lines, asked = [], [], threading.Event()

    def act():
        options = {
            "device": torch.device("cpu"),
            "wait": True,
            "progress": lambda line: (lines.append(line), asked.set()),
        }
        waiting.append(ThreadPoolExecutor(1).submit(train, CONFIG, tmp_path / "run", **options))
        assert asked.wait(60)

    run = beside(tmp_path / "run", act)
    before = contents(run.folder)
    assert waiting[0].result(60) == run
    assert contents(run.folder) == before
    assert len(lines) == 1


def test_a_training_that_slept_until_another_machine_finished_stops_without_a_trace(tmp_path, monkeypatch):
    after = []

    def act():
        (entry,) = (tmp_path / "train.lock").iterdir()
        entry.rename(entry.with_name(replace(Holder.parse(entry.name), machine="0" * 8).name))
        with monkeypatch.context() as patch:
            patch.setattr(lock_holder, "LIMIT", -1.0)
            trained(tmp_path, resume=True)
        after.append(contents(tmp_path))

    with pytest.raises(LostError, match="taken over by another process"):
        beside(tmp_path, act)
    assert contents(tmp_path) == after[0]
    assert {"config.json", "metrics.jsonl", "model.safetensors"} < after[0].keys()
    assert "resume.pt" not in after[0]
