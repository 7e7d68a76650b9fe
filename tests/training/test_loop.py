import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from typing import get_args

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.overrides import TorchFunctionMode

from rhobust.data import load
from rhobust.methods import ERM, NAL, AnyMethod, Gaussian, Loss
from rhobust.models import build_model, fill_weights
from rhobust.noise import stream
from rhobust.progress import no_progress
from rhobust.records import read_rows
from rhobust.training import (
    Run,
    TrainConfig,
    clean_accuracy,
    config_to_json,
    open_run,
    robust_accuracy,
    train,
    train_command,
)
from rhobust.training.distributed import ProcessGroup
from rhobust.training.loop import split_validation
from rhobust.training.run import weights_metadata
from rhobust.training.step import learning_rate
from rhobust.training.trainer import Trainer

CPU = torch.device("cpu")
CONFIG = TrainConfig(Gaussian(sigma=0.2), data="digits", model="cnn-small", epochs=3, batch_size=100, lr=2e-3)


def weights(run):
    return run.load_model(CPU).state_dict()


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train(CONFIG, tmp_path_factory.mktemp("run") / "gaussian", device=CPU, progress=no_progress)


def test_a_run_folder_holds_what_it_should(trained):
    assert {path.name for path in trained.folder.iterdir()} == {
        "config.json",
        "environment.json",
        "metrics.jsonl",
        "model.safetensors",
        "training-images.bin",
        "weights.json",
    }
    metrics = trained.metrics()
    assert [row["epoch"] for row in metrics] == [1, 2, 3]
    assert metrics[-1]["loss"] < metrics[0]["loss"]
    assert metrics[-1]["accuracy"] > 0.5
    environment = json.loads((trained.folder / "environment.json").read_text())
    assert environment["torch"] == torch.__version__
    assert open_run(trained.folder).config == CONFIG


def test_the_loaded_network_is_the_trained_one(trained):
    from rhobust.data import load

    model = trained.load_model(CPU)
    assert not model.training
    assert clean_accuracy(model, load("digits", "train")) == pytest.approx(trained.metrics()[-1]["accuracy"], abs=1e-9)


def test_the_same_seed_gives_the_same_weights_and_another_gives_others(trained, tmp_path):
    again = train(CONFIG, tmp_path / "again", device=CPU, progress=no_progress)
    assert same(weights(trained), weights(again))
    assert again.model_hash == trained.model_hash
    other = train(replace(CONFIG, seed=1), tmp_path / "other", device=CPU, progress=no_progress)
    assert not same(weights(trained), weights(other))


def test_a_finished_run_is_returned_as_it_is(trained):
    before = trained.folder.joinpath("model.safetensors").stat().st_mtime_ns
    assert train(CONFIG, trained.folder, device=CPU, progress=no_progress).model_hash == trained.model_hash
    assert trained.folder.joinpath("model.safetensors").stat().st_mtime_ns == before


def test_a_folder_with_another_config_is_refused(trained):
    with pytest.raises(ValueError, match="it differs in lr, seed: choose another folder"):
        train(replace(CONFIG, seed=4, lr=0.5), trained.folder, device=CPU, progress=no_progress)


def test_a_run_killed_by_sigkill_resumes_to_the_same_weights(trained, tmp_path):
    out = tmp_path / "killed"
    code = (
        "import sys, torch, pathlib; sys.path.insert(0, sys.argv[2]); import test_loop; "
        "from rhobust.training import train; from rhobust.progress import no_progress; "
        "out, device = pathlib.Path(sys.argv[1]), torch.device('cpu'); "
        "train(test_loop.CONFIG, out, device=device, resume=True, progress=no_progress)"
    )
    command = [sys.executable, "-c", code, str(out), os.path.dirname(__file__)]  # noqa: PTH120
    process = subprocess.Popen(command)
    deadline = time.monotonic() + 60
    while not (out / "resume.pt").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (out / "model.safetensors").exists(), "the run must be killed before its end for this test to mean much"
    with pytest.raises(ValueError, match="set resume to continue"):
        train(CONFIG, out, device=CPU, progress=no_progress)
    resumed = train(CONFIG, out, device=CPU, resume=True, progress=no_progress)
    assert same(weights(trained), weights(resumed))
    assert [row["loss"] for row in resumed.metrics()] == [row["loss"] for row in trained.metrics()]


def test_validation_images_are_held_out(tmp_path):
    run = train(
        replace(CONFIG, method=ERM(), validation=900, epochs=2), tmp_path / "v", device=CPU, progress=no_progress
    )
    assert run.metrics()[-1]["accuracy_on"] == "validation"
    with pytest.raises(ValueError, match="validation must leave images"):
        train(replace(CONFIG, validation=1000), tmp_path / "w", device=CPU, progress=no_progress)


def test_nal_logs_the_distance_of_its_maximiser(tmp_path):
    config = replace(CONFIG, method=NAL(sigma=0.2, gamma=2.0, draws=2, steps=2), epochs=1, batch_size=250)
    assert 0.005 < train(config, tmp_path / "nal", device=CPU, progress=no_progress).metrics()[0]["distance_rms"] < 1.0


@dataclass(frozen=True)
class Exploding:
    """A user's own method, without touching the package: its loss overflows in the second epoch's worth of steps."""

    sigma: float = 0.1

    def loss(self, model, x, y, rng):
        return Loss(model(x).sum() * float("inf"), x.new_zeros(len(x)))


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    with pytest.raises(FloatingPointError, match="in epoch 1, step 1; nothing was saved yet"):
        train(replace(CONFIG, method=Exploding()), tmp_path / "x", device=CPU, progress=no_progress)
    assert not (tmp_path / "x" / "model.safetensors").exists()


def test_schedules():
    expected = {
        "constant": [0.4, 0.4, 0.4],
        "step": [0.4, 0.04, 0.004],
        "cosine": [0.4, 0.2, 0.4 * 0.14644660940673],
        "onecycle": [0.4 / 300, 0.4 * 0.811744900929367, 0.4 * 0.283058130441221],
    }
    for schedule, rates in expected.items():
        config = replace(CONFIG, schedule=schedule, lr=0.4)
        assert [learning_rate(config, done, 1000) for done in (0, 500, 750)] == pytest.approx(rates)
    config = replace(CONFIG, schedule="onecycle", lr=0.4)
    assert [learning_rate(config, done, 1000) for done in (149, 299, 300)] == pytest.approx([0.2, 0.4, 0.4])
    assert learning_rate(config, 0, 1) == 0.4, "a single update is not lost"
    assert all(0 < learning_rate(config, done, 3) <= 0.4 for done in range(3))


def test_the_schedule_goes_by_the_share_of_all_steps(tmp_path, monkeypatch):
    seen = []

    def noted(config, *place):
        seen.append(place)
        return learning_rate(config, *place)

    monkeypatch.setattr("rhobust.training.trainer.learning_rate", noted)
    train(replace(CONFIG, epochs=2, batch_size=300), tmp_path / "run", device=CPU, progress=no_progress)
    assert seen == [(step, 8) for step in range(8)]


def test_damage_in_a_run_folder_is_one_line(trained, tmp_path):
    for name, message in {
        "config.json": "config.json must be",
        "model.safetensors": "must be as it was written, but its hash is not the one in weights.json",
    }.items():
        folder = tmp_path / name
        folder.mkdir()
        for path in trained.folder.iterdir():
            content = path.read_bytes()
            (folder / path.name).write_bytes(content[: len(content) // 2] if path.name == name else content)
        with pytest.raises(ValueError, match=message) as caught:
            open_run(folder).load_model(CPU)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="there is no such folder"):
        open_run(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="must be a run folder, but it holds no"):
        open_run(tmp_path / "empty")


def test_a_pickle_is_refused(trained, tmp_path):
    folder = tmp_path / "pickled"
    folder.mkdir()
    for path in trained.folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    torch.save({"weights": torch.zeros(1)}, folder / "model.safetensors")
    (folder / "weights.json").unlink()
    with pytest.raises(ValueError, match=r"must be a safetensors file, but torch.save wrote it.*save_file"):
        open_run(folder).load_model(CPU)
    with pytest.raises(ValueError, match="must be a regular file, but it is a folder"):
        weights_metadata(folder)


def test_weights_of_other_names_are_named(trained, tmp_path):
    weights = load_file(trained.folder / "model.safetensors")
    model = trained.load_model(CPU)
    save_file({f"{name}.old": tensor for name, tensor in weights.items()}, tmp_path / "renamed.safetensors")
    more = f"and {len(weights) - 1} more"
    with pytest.raises(ValueError, match=rf"but it lacks deviation {more}, and has deviation\.old {more}$"):
        fill_weights(model, tmp_path / "renamed.safetensors")
    del weights["mean"]
    save_file(weights, tmp_path / "short.safetensors")
    with pytest.raises(ValueError, match="but it lacks mean, and has nothing else: take the network without"):
        fill_weights(model, tmp_path / "short.safetensors")


def test_metrics_are_json_lines(trained):
    assert read_rows(trained.folder / "metrics.jsonl") == trained.metrics()


@pytest.mark.parametrize("method", get_args(AnyMethod))
def test_every_method_trains_through_the_loop(method, tmp_path):
    small = {"steps": 2} if "steps" in method.__dataclass_fields__ else {}
    config = replace(CONFIG, method=method(**small), epochs=2, batch_size=250)
    metrics = train(config, tmp_path / "run", device=CPU, progress=no_progress).metrics()
    assert metrics[1]["loss"] < metrics[0]["loss"]


def test_the_running_mean_of_the_weights_is_kept(tmp_path):
    one = replace(CONFIG, epochs=1, batch_size=1000)
    configs = {"one": one, "two": replace(one, epochs=2), "mean": replace(one, epochs=2, average=0.9)}
    found = {
        name: weights(train(config, tmp_path / name, device=CPU, progress=no_progress))
        for name, config in configs.items()
    }
    start = build_model(
        "cnn-small", shape=(1, 8, 8), classes=10, mean=[0.0], deviation=[1.0], activation="relu", seed=0
    ).state_dict()
    # An epoch is one step; the mean is measured after each, and training goes on with the weights themselves.
    for key in (key for key in start if key.startswith("network")):
        expected = 0.81 * start[key] + 0.09 * found["one"][key] + 0.1 * found["two"][key]
        assert torch.allclose(found["mean"][key], expected, atol=1e-6)


def test_an_interrupted_run_keeps_its_mean_and_its_best_epoch(tmp_path):
    config = replace(CONFIG, epochs=4, lr=0.05, average=0.5, validation=300, keep="best-clean")

    def interrupt(step):
        if step.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "cut", device=CPU, progress=interrupt)
    resumed = train(config, tmp_path / "cut", device=CPU, resume=True, progress=no_progress)
    whole = train(config, tmp_path / "whole", device=CPU, progress=no_progress)
    assert same(weights(resumed), weights(whole))
    assert [row["accuracy"] for row in resumed.metrics()] == [row["accuracy"] for row in whole.metrics()]


def test_no_image_that_is_measured_on_was_trained_on():
    data = load("digits", "train")
    numbered = replace(data, labels=torch.arange(len(data)), classes=tuple(map(str, range(len(data)))))
    parts = split_validation(numbered, replace(CONFIG, validation=300, keep="best-clean"))
    assert [part.split for part in parts] == ["train", "validation"]
    fitting, measured = (set(part.labels.tolist()) for part in parts)
    assert len(measured) == 300
    assert fitting | measured == set(range(len(data)))
    assert not fitting & measured


@pytest.mark.parametrize("validation", [0, 300])
def test_the_seed_decides_which_images_are_measured_on(validation, monkeypatch):
    monkeypatch.setattr("rhobust.training.loop.MEASURED", 300)
    data = load("digits", "train")
    first, again, other = (
        split_validation(data, replace(CONFIG, validation=validation, seed=seed))[1].images for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_an_epoch_is_measured_with_the_weights_that_would_be_saved(tmp_path):
    # After one step a mean of 0.999 is almost the network at the start, independent of the step.
    config = replace(CONFIG, epochs=1, batch_size=1000, lr=0.5, average=0.999, validation=300)
    run = train(config, tmp_path / "mean", device=CPU, progress=no_progress)
    (row,) = run.metrics()
    _, held_out = split_validation(load("digits", "train"), config)
    assert row["accuracy"] == pytest.approx(clean_accuracy(run.load_model(CPU), held_out))


def test_the_logged_loss_is_that_of_an_image(tmp_path):
    # Before anything is learnt: an even guess among ten classes, for every batch size.
    for batch_size in (50, 300):
        config = replace(CONFIG, epochs=1, lr=1e-9, batch_size=batch_size)
        (row,) = train(config, tmp_path / str(batch_size), device=CPU, progress=no_progress).metrics()
        assert row["loss"] == pytest.approx(math.log(10), rel=0.3)


def test_every_epoch_has_an_order_of_its_own(tmp_path):
    data = load("digits", "train").select(torch.arange(60))
    trainer = Trainer.start(Run(tmp_path, replace(CONFIG, augment=False)), data, data, CPU, ProcessGroup())
    first, second, again = (next(trainer.batches(epoch))[0] for epoch in (1, 2, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


class NoWaiting(TorchFunctionMode):
    """Refuses what would wait for a GPU: a tensor of Python's numbers, and a number of a tensor."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        assert getattr(func, "__name__", "") not in ("tensor", "as_tensor", "item", "tolist", "cpu", "nonzero")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("options", [{}, {"cutmix": 0.5}, {"label_smoothing": 0.1}], ids=str)
def test_no_batch_but_the_first_waits_for_the_steps_before_it(options, tmp_path):
    data = replace(load("digits", "train").select(torch.arange(30)), crop=1, flip=True)
    config = replace(CONFIG, batch_size=8, **options)
    trainer = Trainer.start(Run(tmp_path, config), data, data, CPU, ProcessGroup())
    batches = trainer.batches(1)
    next(batches)
    with NoWaiting():
        shares = [share for _, _, share in batches]
    assert [(share.item(), share.dtype) for share in shares] == [(1.0, torch.float32)] * 3
    with NoWaiting(), pytest.raises(AssertionError):
        torch.tensor(1.0)


def test_crops_are_named_by_the_epoch(tmp_path):
    image = replace(load("digits", "train").select(torch.arange(1)), crop=2)
    trainer = Trainer.start(Run(tmp_path, CONFIG), image, image, CPU, ProcessGroup())
    first, again = ([next(trainer.batches(epoch))[0] for epoch in range(1, 7)] for _ in range(2))
    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))
    assert len({tuple(x.flatten().tolist()) for x in first}) > 2


def test_a_smoothed_label_is_spread_evenly_over_all_classes(tmp_path):
    data = load("digits", "train").select(torch.arange(20))
    hard, soft = (
        next(Trainer.start(Run(tmp_path, config), data, data, CPU, ProcessGroup()).batches(1))[1]
        for config in (CONFIG, replace(CONFIG, label_smoothing=0.2))
    )
    assert torch.allclose(soft, torch.full((20, 10), 0.02).scatter(1, hard[:, None], 0.82))


def test_mixed_labels_are_smoothed_and_named_by_the_epoch(tmp_path):
    data = load("digits", "train").select(torch.arange(100))
    config = replace(CONFIG, cutmix=1.0, label_smoothing=0.2)
    trainer = Trainer.start(Run(tmp_path, config), data, data, CPU, ProcessGroup())
    (x, y, _), (again, _, _), (other, _, _) = (next(trainer.batches(epoch)) for epoch in (1, 1, 2))
    assert torch.equal(x, again)
    assert not torch.equal(x, other)
    assert torch.allclose(y.sum(1), torch.ones(100))
    assert y.min().item() == pytest.approx(0.02)
    assert ((y > 0.021).sum(1) == 2).float().mean() > 0.5


FACTORY = """
from torch import nn

def make():
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
"""


def test_averaged_weights_are_saved_with_their_own_batch_norm_statistics(tmp_path, monkeypatch):
    (tmp_path / "with_norm.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(tmp_path)
    config = replace(
        CONFIG,
        model="with_norm:make",
        average=0.98,
        lr=0.05,
        schedule="constant",
        epochs=1,
        batch_size=50,
        augment=False,
    )
    run = train(config, tmp_path / "mean", device=CPU, progress=no_progress)
    last = train(replace(config, average=0.0), tmp_path / "last", device=CPU, progress=no_progress)
    # The average is only looked at: the weights in training do not depend on it.
    assert [row["loss"] for row in run.metrics()] == [row["loss"] for row in last.metrics()]
    model = run.load_model(CPU, model="with_norm:make")
    saved = model[1].running_mean.clone()
    images = load("digits", "train").images / 255
    noisy = images + 0.2 * torch.randn(images.shape, generator=stream(0, "test"))
    expected = model[0](noisy).mean((0, 2, 3))
    scale = model[1].running_var.sqrt()
    assert ((saved - expected) / scale).abs().max() < 0.02
    assert clean_accuracy(model, load("digits", "train")) == pytest.approx(run.metrics()[-1]["accuracy"], abs=1e-9)


def test_of_epochs_that_are_equally_good_the_first_is_kept(tmp_path):
    fitting = load("digits", "train").select(torch.arange(100))
    run = Run(tmp_path, replace(CONFIG, validation=1, keep="best-clean"))
    trainer = Trainer.start(run, fitting, fitting, CPU, ProcessGroup())
    assert trainer.is_best({"accuracy": 0.0})
    trainer.metrics = [{"accuracy": 0.5}, {"accuracy": 0.4}]
    assert [trainer.is_best({"accuracy": found}) for found in (0.45, 0.5, 0.6)] == [False, False, True]


def test_the_rule_decides_which_epoch_is_kept(tmp_path):
    config = replace(CONFIG, method=ERM(), validation=300, epochs=4, lr=0.05, keep="best-clean")
    run = train(config, tmp_path / "best", device=CPU, progress=no_progress)
    best = max(row["accuracy"] for row in run.metrics())
    order = torch.randperm(1000, generator=stream(0, "validation"))
    held_out = load("digits", "train").select(order[:300])
    assert clean_accuracy(run.load_model(), held_out) == best


def test_accuracy_under_attack_is_measured_on_request(tmp_path):
    config = replace(CONFIG, epochs=1, measure_eps=0.5, validation=100, keep="best-robust")
    row = train(config, tmp_path / "robust", device=CPU, progress=no_progress).metrics()[0]
    assert 0 <= row["robust_accuracy"] <= row["accuracy"] + 0.1


def test_a_method_with_noise_is_measured_under_noise(half_space, grey_images):
    assert robust_accuracy(half_space, grey_images, 1e-6, None, 0) == 1
    assert 0.5 < robust_accuracy(half_space, grey_images, 1e-6, 2.0, 0) < 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keep": "best-clean"}, "validation must be > 0"),
        ({"keep": "best-robust", "validation": 5}, "measure_eps must be given"),
        ({"clip": 0.0}, "clip must be > 0"),
        ({"label_smoothing": 1.0}, r"label_smoothing must be in \[0, 1\)"),
        ({"average": -0.1}, r"average must be in \[0, 1\)"),
        ({"weight_perturbation": -0.1}, r"weight_perturbation must be in \[0, 1\)"),
        ({"cutmix": 1.5}, r"cutmix must be in \[0, 1\]"),
        ({"teacher_weight": 1.5}, r"teacher_weight must be in \[0, 1\]"),
        ({"attack_after": -1}, "attack_after must be >= 0"),
    ],
)
def test_bad_options_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **change)


def test_clipping_bounds_the_step(tmp_path):
    config = replace(CONFIG, method=ERM(), optimizer="sgd", epochs=1, batch_size=1000, clip=1e-3)
    config = replace(config, lr=1.0, schedule="constant")
    run = train(config, tmp_path / "clipped", device=CPU, progress=no_progress)
    start = build_model(
        "cnn-small", shape=(1, 8, 8), classes=10, mean=[0.0], deviation=[1.0], activation="relu", seed=0
    ).state_dict()
    update = torch.cat([(weights(run)[key] - start[key]).flatten() for key in start if key.startswith("network")])
    # Nesterov's first step is 1.9 times the gradient.
    assert update.norm().item() == pytest.approx(1.9e-3, rel=1e-3)


def test_own_data_is_cropped_and_flipped_where_asked_for(tmp_path):
    plain = replace(CONFIG, epochs=1)
    changed = replace(plain, crop_padding=1, flip=True)
    assert not {"crop_padding", "flip"} & set(config_to_json(plain))
    assert config_to_json(changed).items() >= {"crop_padding": 1, "flip": True}.items()
    assert train_command(changed).endswith("--crop-padding 1 --flip")
    one, two = (train(config, tmp_path / name, device=CPU) for config, name in ((plain, "one"), (changed, "two")))
    assert not same(weights(one), weights(two))
    with pytest.raises(ValueError, match="crop_padding must be less than the image's side 8, got 8"):
        train(replace(plain, crop_padding=8), tmp_path / "three", device=CPU)
    with pytest.raises(ValueError, match="augment must be True"):
        replace(plain, augment=False, flip=True)
