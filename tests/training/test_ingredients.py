"""Ingredients of a training: no attack in the first epochs, distillation, and the mirror image."""

import json
import re
import shutil
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from rhobust.data import load, to_unit
from rhobust.methods import ERM, NAL, TRADES, SmoothAdv
from rhobust.models import Mirrored
from rhobust.noise import BatchNoise, noisy_copies, stream
from rhobust.progress import no_progress
from rhobust.training import TrainConfig, config_from_json, open_run, train
from rhobust.training.config import config_to_json, train_command
from rhobust.training.distributed import ProcessGroup
from rhobust.training.loop import split_validation
from rhobust.training.metrics import accuracy_under_noise
from rhobust.training.run import Run
from rhobust.training.teacher import DRAWS, Teacher
from rhobust.training.trainer import Trainer

CPU = torch.device("cpu")
CONFIG = TrainConfig(NAL(sigma=0.2, steps=2, draws=2), data="digits", model="cnn-small", epochs=2, batch_size=200)


def trained(config, folder):
    return train(config, folder, device=CPU, progress=no_progress)


def stop(event):
    """Interrupt a training after its first epoch."""
    if getattr(event, "done", 0) == 1:
        raise KeyboardInterrupt


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    return trained(replace(CONFIG, epochs=1, mirror=True), tmp_path_factory.mktemp("teacher") / "run")


@pytest.mark.parametrize("method", [NAL(sigma=0.2, steps=2, draws=2), SmoothAdv(sigma=0.2, steps=2, draws=2)])
def test_no_input_is_attacked_before_its_epoch(tmp_path, method):
    config = replace(CONFIG, method=method, attack_after=1)
    late = trained(config, tmp_path / "late").metrics()
    never = trained(replace(config, method=replace(method, steps=0), attack_after=0), tmp_path / "never").metrics()
    assert [row["distance_rms"] > 0 for row in late] == [False, True]
    assert late[0]["loss"] == never[0]["loss"]
    assert late[1]["loss"] > never[1]["loss"]


def test_weights_are_not_perturbed_before_that_epoch_either(tmp_path):
    runs = [
        trained(replace(CONFIG, epochs=1, attack_after=1, weight_perturbation=size), tmp_path / f"{size:g}")
        for size in (0.0, 0.1)
    ]
    first, second = (run.load_model().state_dict() for run in runs)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("method", [ERM(), TRADES()])
def test_a_method_that_needs_its_attack_has_it_from_the_first_epoch(method):
    with pytest.raises(ValueError, match="attack_after must be 0 for a method whose attack cannot be left out"):
        replace(CONFIG, method=method, attack_after=1)


def test_a_label_is_in_part_the_teachers(tmp_path, teacher):
    data = load("digits", "train").select(torch.arange(50))
    hard, soft = (
        next(Trainer.start(Run(tmp_path, config), data, data, CPU, ProcessGroup()).batches(1))
        for config in (CONFIG, replace(CONFIG, teacher=str(teacher.folder), teacher_weight=0.25))
    )
    assert torch.equal(hard[0], soft[0])
    taught = Teacher.load((str(teacher.folder),), data, 0.2, CPU, fast=True)(
        soft[0], BatchNoise(stream(CONFIG.seed, "teacher", 1))
    )
    assert torch.allclose(soft[1], 0.75 * F.one_hot(hard[1], 10) + 0.25 * taught)
    assert torch.allclose(soft[1].sum(1), torch.ones(50))


@pytest.mark.parametrize("sigma", [None, 0.3])
def test_the_teacher_predicts_under_noise(teacher, sigma):
    data = load("digits", "test").select(torch.arange(20))
    x, network = to_unit(data.images), teacher.load_model()
    found = Teacher.load((str(teacher.folder),), data, sigma, CPU, fast=False)(x, BatchNoise(stream(0, "noise")))
    copies = x if sigma is None else noisy_copies(x, sigma, DRAWS, BatchNoise(stream(0, "noise")))
    expected = network(copies).softmax(1).view(-1, 20, 10).mean(0)
    assert torch.allclose(found, expected, atol=1e-6)
    assert not found.requires_grad


def test_several_teachers_give_their_mean(tmp_path, teacher):
    other = trained(replace(CONFIG, epochs=1, seed=1), tmp_path / "other")
    data = load("digits", "test").select(torch.arange(20))
    x = to_unit(data.images)
    each = [
        Teacher.load((str(run.folder),), data, None, CPU, fast=False)(x, BatchNoise(stream(0, "noise")))
        for run in (teacher, other)
    ]
    both = Teacher.load((str(teacher.folder), str(other.folder)), data, None, CPU, fast=False)
    assert torch.allclose(both(x, BatchNoise(stream(0, "noise"))), (each[0] + each[1]) / 2)
    assert not torch.allclose(each[0], each[1], atol=1e-3)


def test_one_teacher_is_written_as_before_several_as_a_list():
    one, two = (replace(CONFIG, teacher=teacher) for teacher in ("runs/a", ("runs/a", "runs/b")))
    assert [config_to_json(config)["teacher"] for config in (one, two)] == ["runs/a", ["runs/a", "runs/b"]]
    assert "teacher" not in config_to_json(CONFIG)
    assert all(config_from_json(config_to_json(config), "config.json") == config for config in (one, two, CONFIG))
    assert "--teacher runs/a runs/b" in train_command(two)


@pytest.mark.parametrize(
    ("teacher", "line"),
    [
        (7, "teacher must be a run folder, or a list of them, got 7"),
        (("runs/a", 7), "teacher must be a run folder, or a list of them, got"),
        (("runs/a", "runs/a"), "teacher must name each run folder once, got runs/a runs/a"),
    ],
)
def test_teachers_are_run_folders_each_named_once(teacher, line):
    with pytest.raises(ValueError, match=re.escape(line)):
        replace(CONFIG, teacher=teacher)


def test_the_teacher_must_know_the_same_classes(teacher):
    data = load("digits", "train")
    other = replace(data, classes=tuple("abcdefghij"))
    line = (
        r"shape \(1, 8, 8\) and the same 10 classes in the same order \(a, b, c, \.\.\.\), got .* \(0, 1, 2, \.\.\.\)"
    )
    with pytest.raises(ValueError, match=f"teacher must be trained on images of {line}"):
        Teacher.load((str(teacher.folder),), other, None, CPU, fast=False)


def test_a_taught_run_names_its_teachers_weights_and_goes_on_with_no_others(tmp_path, teacher):
    moved = shutil.copytree(teacher.folder, tmp_path / "teacher")
    config = replace(CONFIG, epochs=2, teacher=(str(moved),))
    begun = tmp_path / "begun"
    with pytest.raises(KeyboardInterrupt):
        train(config, begun, device=CPU, progress=stop)
    environment = json.loads((begun / "environment.json").read_text())
    assert environment["teachers"] == [teacher.model_hash]
    other = trained(replace(CONFIG, epochs=1, seed=5, mirror=True), tmp_path / "other")
    for name in ("model.safetensors", "weights.json"):
        shutil.copyfile(other.folder / name, moved / name)
    with pytest.raises(
        ValueError, match=r"must be continued with the teachers that it was begun with, but the weights"
    ):
        train(config, begun, device=CPU, progress=no_progress, resume=True)
    for name in ("model.safetensors", "weights.json"):
        shutil.copyfile(teacher.folder / name, moved / name)
    assert train(config, begun, device=CPU, progress=no_progress, resume=True).finished


def test_a_taught_run_is_continued_with_the_same_labels(tmp_path, teacher):
    config = replace(CONFIG, teacher=str(teacher.folder))
    whole = trained(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "parts", device=CPU, progress=stop)
    parts = train(config, tmp_path / "parts", device=CPU, progress=no_progress, resume=True)
    assert (whole.folder / "model.safetensors").read_bytes() == (parts.folder / "model.safetensors").read_bytes()


def test_the_mirror_image_changes_the_answers_and_not_the_weights(tmp_path):
    plain, mirrored = (trained(replace(CONFIG, epochs=1, mirror=on), tmp_path / f"{on}") for on in (False, True))
    files = [(run.folder / "model.safetensors").read_bytes() for run in (plain, mirrored)]
    assert files[0] == files[1]
    x = to_unit(load("digits", "test").images[:100])
    network, both = plain.load_model(), open_run(mirrored.folder).load_model()
    assert isinstance(both, Mirrored)
    assert torch.allclose(both(x), (network(x) + network(x.flip(-1))) / 2, atol=1e-5)
    assert not torch.allclose(both(x), network(x), atol=1e-3)
    assert torch.equal(both.train()(x), network(x))


def test_the_log_has_the_accuracy_of_the_mean(tmp_path):
    config = replace(CONFIG, epochs=1, mirror=True, validation=200)
    run = trained(config, tmp_path / "run")
    _, held = split_validation(load("digits", "train"), config)
    expected = accuracy_under_noise(run.load_model(), held, 0.2, config.seed)
    assert run.metrics()[0]["accuracy_under_noise"] == expected
