"""The reference implementation computes what the methods compute: the benchmark compares like with like."""

import copy

import pytest
import torch

from benchmarks.reference import reference_loss, reference_network
from rhobust.methods import NAL, TRADES, WRM, AdversarialTraining, SmoothAdv
from rhobust.models import build_model
from rhobust.noise import ExampleNoise

SMALL = (
    NAL(steps=2, draws=1),
    AdversarialTraining(steps=2),
    SmoothAdv(steps=2, draws=1),
    TRADES(steps=2),
    WRM(steps=2),
)


@pytest.mark.parametrize("method", SMALL, ids=repr)
def test_the_reference_computes_the_same_loss(method):
    model = build_model(
        "cnn-small", shape=(1, 8, 8), classes=4, mean=[0.5], deviation=[0.3], activation="elu", seed=1
    ).train()
    x = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(5))
    y = torch.arange(6) % 4
    ours = method.loss(model, x, y, ExampleNoise(0, "noise", range(6))).value
    plain = reference_network(copy.deepcopy(model))
    theirs = reference_loss(method, plain, x, y, ExampleNoise(0, "noise", range(6)))
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-4)


def test_the_reference_network_is_the_same_function():
    model = build_model(
        "resnet18", shape=(3, 16, 16), classes=4, mean=[0.5] * 3, deviation=[0.3] * 3, activation="relu", seed=1
    ).eval()
    x = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(5))
    plain = reference_network(copy.deepcopy(model))
    assert not {"ConvNorm", "InputConv", "WholeConv"} & {type(module).__name__ for module in plain.modules()}
    assert torch.allclose(plain(x), model(x), atol=1e-4)
