"""Ascents on a faster copy: nearly the same gradients, and answers of the network itself."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rhobust.attacks import EOT, PGD
from rhobust.attacks.gradient import smoothed_loss
from rhobust.data import to_unit
from rhobust.evaluation import Attack, run, sweep
from rhobust.evaluation.sweep import Predictor
from rhobust.evaluation.target_cache import compiled_copy, fast_copy
from rhobust.models import build_model
from rhobust.models.inference import WithEvalCopy, frozen
from rhobust.noise import ExampleNoise
from rhobust.progress import no_progress

RADII = (0.0, 0.25, 0.5, 1.0)


@pytest.mark.parametrize("name", ["resnet18", "cnn-small"])
def test_the_copy_has_nearly_the_same_gradients(target, name):
    options = {"mean": [0.5], "deviation": [0.25], "activation": "relu", "seed": 0}
    model = build_model(name, shape=(1, 8, 8), classes=3, **options).eval()
    larger = replace(target.data, images=target.data.images.repeat(1, 1, 2, 2))
    copied = fast_copy(replace(target, model=model, data=larger))
    x, y = torch.rand(8, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])

    def gradient(network):
        point = x.clone().requires_grad_()
        with frozen(network) as frozen_model:
            logits = frozen_model(point)
            assert logits.dtype == torch.float32
            return torch.autograd.grad(F.cross_entropy(logits, y, reduction="sum"), point)[0].flatten(1)

    assert F.cosine_similarity(gradient(copied), gradient(model)).min() > 0.98
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


@pytest.mark.filterwarnings("default")  # torch warns about its own parts while it compiles
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_compiled_copy_has_nearly_the_gradients_of_the_smoothed_classifier(device, target, monkeypatch):
    if device == "cpu":
        monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    options = {"mean": [0.5], "deviation": [0.25], "activation": "relu", "seed": 0}
    model = build_model("resnet18", shape=(1, 8, 8), classes=3, **options).eval().to(device)
    larger = replace(target.data, images=target.data.images.repeat(1, 1, 2, 2))
    copied = compiled_copy(replace(target, model=model, data=larger, device=device))
    x = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0)).to(device)
    y = torch.tensor([0, 1, 2, 0, 1, 2], device=device)

    def gradient(network):
        point, noise = x.clone().requires_grad_(), ExampleNoise(0, "test", range(6))
        with frozen(network) as frozen_model:
            losses = smoothed_loss(frozen_model, point, y, sigma=0.25, draws=4, rng=noise)
            return torch.autograd.grad(losses.sum(), point)[0].flatten(1)

    found = gradient(WithEvalCopy(model, lambda: copied))
    assert F.cosine_similarity(found, gradient(model)).min() > 0.98
    # Added up before the first layer, and not after it, as for images without noise.
    layers = [copied.network.plain.network, copied.noisy(4).network.plain.network]
    assert [network.network[0].copies for network in layers] == [1, 4]


@pytest.mark.parametrize("attack", [PGD(steps=10), EOT(steps=10, draws=8)])
def test_what_breaks_is_what_lies_within_the_radius(target, half_space, grey_images, attack):
    distance = half_space(to_unit(grey_images.images))[:, 1].abs()
    record = run(Attack(attack=attack, radii=RADII, votes=400, fast=True), target, progress=no_progress)
    assert record.settings["climbed"] == "bfloat16"
    # Under noise the copy votes, too; without noise the network itself answers.
    assert record.settings["dtype"] == ("bfloat16" if attack.attacks_smoothed else "float32")
    for row in record.rows:
        true = distance[row["index"]].item()
        if abs(true - row["radius"]) > 0.04:
            assert row["broken"] == (true < row["radius"]), row
    plain = run(Attack(attack=attack, radii=RADII, votes=400), target, progress=no_progress)
    assert "climbed" not in plain.settings
    assert plain.settings["dtype"] == "float32"
    assert plain.path != record.path


def test_in_a_transfer_attack_the_copy_of_the_target_votes(target, wrapped):
    class Opposite(nn.Module):
        def forward(self, x):
            return -target.model(x)

    evaluation = Attack(attack=EOT(steps=1, draws=2), radii=(0.0,), votes=20, probe=False, fast=True)
    plain, moved = (
        run(evaluation, crafted, progress=no_progress) for crafted in (target, target.with_source(wrapped(Opposite())))
    )
    # Nothing moves at radius 0, so the source is of no account.
    assert [row["prediction"] for row in moved.rows] == [row["prediction"] for row in plain.rows]


def test_votes_are_those_of_the_copy(target, monkeypatch):
    """A copy that always answers class 1 breaks exactly the examples of the other class, whatever the network says."""

    class One(nn.Module):
        def forward(self, x):
            return torch.tensor([0.0, 1.0]).expand(len(x), 2)

    monkeypatch.setattr(sweep, "fast_copy", lambda _: One())
    judge = Predictor(target, "smoothed", 10, fast=True)
    x, labels = to_unit(target.data.images[:6]), [0, 1, 0, 1, 1, 0]
    verdicts = judge.predict(x, labels, list(range(6)), 0, "test")
    assert [verdict["broken"] for verdict in verdicts] == [label == 0 for label in labels]
    assert judge.dtype == "bfloat16"
