"""Pretrained networks by name: the published weights, checked, and nothing else."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import rhobust
from rhobust.evaluation import Target
from rhobust.models import PRETRAINED, Normalised, build_model, load_model, pretrained_weights
from rhobust.models.sources import known_network
from rhobust.progress import no_progress
from rhobust.training import open_run

FOLDER = Path(__file__).parents[2] / "results" / "pretrained"


def test_every_pretrained_network_has_a_folder_and_a_card():
    assert set(PRETRAINED) == {path.parent.name for path in FOLDER.glob("*/model.safetensors")}
    for name in PRETRAINED:
        assert pretrained_weights(name) == FOLDER / name / "model.safetensors"
        assert f"rhobust:{name}" in (FOLDER / name / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PRETRAINED)
def test_a_name_gives_the_network_of_its_folder(name):
    run = open_run(FOLDER / name)
    x = torch.rand(3, *run.shape, generator=torch.Generator().manual_seed(0))
    model = rhobust.load_model(f"rhobust:{name}")
    assert not model.training
    with torch.no_grad():
        assert torch.equal(model(x), run.load_model()(x))


@pytest.mark.parametrize("which", ["cifar10-nal-0.25", "cifar10-nal-taught-0.25", "cifar10-nal-distilled-0.25"])
def test_large_networks_are_kept_in_bf16(which):
    network = load_model(f"rhobust:{which}")
    for name, tensor in network.named_parameters():
        exact = torch.equal(tensor, tensor.bfloat16().float())
        assert exact or tensor.dim() == 1, name
    assert (FOLDER / which / "model.safetensors").stat().st_size < 23e6


def test_a_changed_file_is_refused(tmp_path, monkeypatch):
    shutil.copytree(FOLDER / "mnist-nal", tmp_path / "mnist-nal")
    monkeypatch.setenv("RHOBUST_PRETRAINED", str(tmp_path))
    path = tmp_path / "mnist-nal" / "model.safetensors"
    assert pretrained_weights("mnist-nal") == path
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="must be the published file, but its SHA-256 begins with"):
        load_model("rhobust:mnist-nal")


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("RHOBUST_PRETRAINED", str(tmp_path))
    with pytest.raises(ValueError, match=r"copy the folder results/pretrained/mnist-nal of the repository there"):
        load_model("rhobust:mnist-nal")
    with pytest.raises(
        ValueError,
        match=r"models must be one of cifar10-nal-0\.25, cifar10-nal-distilled-0\.25, cifar10-nal-taught-0\.25,"
        r" mnist-nal, got mnist-nil",
    ):
        load_model("rhobust:mnist-nil")


def test_fine_tuning_starts_from_it_with_its_own_normalisation_and_a_new_last_layer():
    def build(classes, pretrained):
        return build_model(
            "rhobust:mnist-nal",
            shape=(1, 28, 28),
            classes=classes,
            mean=[0.5],
            deviation=[0.5],
            activation="relu",
            seed=0,
            pretrained=pretrained,
        )

    x = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    model = load_model("rhobust:mnist-nal")
    with torch.no_grad():
        assert torch.equal(build(10, True).eval()(x), model(x))
        assert not torch.equal(build(10, False).eval()(x), model(x))
        assert build(7, True)(x).shape == (2, 7)
    started = build(7, True)
    assert isinstance(started, Normalised)
    assert isinstance(model, Normalised)
    assert started.constants() == model.constants()


@pytest.mark.parametrize("name", PRETRAINED)
def test_what_a_network_was_trained_for_is_known_by_its_name(name):
    run, known = open_run(FOLDER / name), known_network(f"rhobust:{name}")
    assert known is not None
    assert (known.sigma, known.shape, known.classes) == (run.config.sigma, run.shape, run.classes)
    assert known_network(f"rhobust:{name}", "mine.pt") is None
    assert known_network("timm:resnet18") is None


IMAGES = str(Path(__file__).parents[2] / "examples" / "mnist" / "mnist-1000.npz")


def test_a_target_remembers_noise_and_training_images(tmp_path):
    def target(**changes):
        return Target.from_weights("rhobust:mnist-nal", data=IMAGES, folder=tmp_path, device="cpu", **changes)

    run = open_run(FOLDER / "mnist-nal")
    other = target(sigma=0.5)
    assert other.sigma_warnings() == ["the network was trained with noise 0.25 and is smoothed with 0.5"]
    named = target()
    assert (named.sigma, named.trained_sigma, named.sigma_warnings()) == (run.config.sigma, run.config.sigma, [])
    assert named.trained_on is not None
    assert named.trained_on.to_bytes() == (FOLDER / "mnist-nal" / "training-images.bin").read_bytes()
    assert Target.from_run(tmp_path, device="cpu", trust=True).sigma == run.config.sigma
    weights = FOLDER / "mnist-nal" / "model.safetensors"  # a file says nothing of the name's noise
    with pytest.raises(
        ValueError, match=r"no training noise on record: pass sigma, or attack the base network by PGD\(\)"
    ):
        Target.from_weights(
            "rhobust:mnist-nal", weights, data=IMAGES, folder=tmp_path / "file", device="cpu"
        ).smoothing_sigma()


def test_the_weights_file_alone_is_enough(tmp_path, monkeypatch):
    (tmp_path / "mnist-nal").mkdir()
    shutil.copy(FOLDER / "mnist-nal" / "model.safetensors", tmp_path / "mnist-nal")
    monkeypatch.setenv("RHOBUST_PRETRAINED", str(tmp_path))
    target = Target.from_weights("rhobust:mnist-nal", data=IMAGES, folder=tmp_path / "out", device="cpu")
    assert (target.sigma, target.trained_on) == (0.25, None)


def test_evaluate_takes_the_noise_of_the_training(tmp_path, monkeypatch):
    monkeypatch.setitem(rhobust.evaluate.__wrapped__.__globals__, "assess", lambda target, **options: target)
    monkeypatch.setitem(rhobust.evaluate.__wrapped__.__globals__, "SIGMA", 0.125)

    def noise(folder, **changes):
        made = rhobust.evaluate("rhobust:mnist-nal", IMAGES, out=tmp_path / folder, progress=no_progress, **changes)
        return made.sigma, made.trained_sigma, made.trained_on is None

    assert noise("own") == (0.25, 0.25, False)
    assert noise("other", sigma=0.5) == (0.5, 0.25, False)
    assert noise("file", weights=FOLDER / "mnist-nal" / "model.safetensors") == (0.125, None, True)


def test_data_must_fit_what_the_network_was_trained_for(tmp_path):
    def classes(names, side=28):
        pixels, labels = np.zeros((4, side, side), np.uint8), np.arange(4) % len(names)
        np.savez(tmp_path / "data.npz", x_test=pixels, y_test=labels, classes=np.array(names))
        where = {"data": str(tmp_path / "data.npz"), "folder": tmp_path / "records", "device": "cpu"}
        return Target.from_weights("rhobust:mnist-nal", **where).data

    assert classes(["0", "1"]).labels.tolist() == [0, 1, 0, 1]
    found = classes(["7", "3"])  # by name, not by place
    assert (found.labels.tolist(), found.num_classes) == ([7, 3, 7, 3], 10)
    with pytest.raises(ValueError, match=r"must hold classes that rhobust:mnist-nal was trained for .*, got cat, dog"):
        classes(["cat", "dog"])
    with pytest.raises(ValueError, match="must hold images of shape 1x28x28, which rhobust:mnist-nal was trained for"):
        classes(["0", "1"], side=32)
    with pytest.raises(ValueError, match="must hold images of shape 1x28x28"):
        rhobust.evaluate("rhobust:mnist-nal", "digits", out=tmp_path / "page", progress=no_progress)
