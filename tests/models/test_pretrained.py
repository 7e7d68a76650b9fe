"""Pretrained networks by name: the published weights, checked, and nothing else."""

import shutil
from pathlib import Path

import pytest
import torch

import rhobust
from rhobust.models import PRETRAINED, Normalised, build_model, load_model, pretrained_weights
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
