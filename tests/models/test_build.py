import sys

import numpy as np
import pytest
import torch
from torch import nn

from rhobust.models import MODELS, Normalised, build_model

COUNTS = {
    ("cnn", (1, 28, 28), 10): 710_218,
    ("cnn", (3, 32, 32), 10): 722_250,
    ("cnn-small", (1, 8, 8), 10): 19_178,
    ("resnet18", (3, 32, 32), 10): 11_173_962,
    ("resnet18", (3, 64, 64), 200): 11_271_432,
    ("vgg16", (3, 32, 32), 10): 14_728_266,
    ("wrn-28-10", (3, 32, 32), 10): 36_479_194,
}


def build(name, shape=(1, 8, 8), classes=10, activation="relu", seed=0):
    mean, deviation = [0.4] * shape[0], [0.2] * shape[0]
    return build_model(
        name, shape=shape, classes=classes, mean=mean, deviation=deviation, activation=activation, seed=seed
    )


@pytest.mark.parametrize(("name", "shape", "classes"), COUNTS)
@pytest.mark.parametrize("activation", ["relu", "elu"])
def test_parameter_counts_and_output(name, shape, classes, activation):
    model = build(name, shape, classes, activation).eval()
    assert sum(parameter.numel() for parameter in model.parameters()) == COUNTS[name, shape, classes]
    kind = {"relu": nn.ReLU, "elu": nn.ELU}
    assert any(isinstance(module, kind[activation]) for module in model.modules())
    assert not any(isinstance(module, kind["elu" if activation == "relu" else "relu"]) for module in model.modules())
    with torch.no_grad():
        assert model(torch.zeros(2, *shape)).shape == (2, classes)


def test_wrm_feature_map_is_one_pixel():
    model = build("cnn", (1, 28, 28)).network
    with torch.no_grad():
        assert model[:6](torch.zeros(1, 1, 28, 28)).shape == (1, 128, 1, 1)


def test_the_seed_alone_decides_the_weights():
    weights = [build("cnn-small", seed=seed).state_dict() for seed in (0, 0, 1)]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    assert not torch.equal(weights[0]["network.0.weight"], weights[2]["network.0.weight"])


def test_the_normalisation_is_saved_with_the_weights():
    model = build("cnn-small").eval()
    assert {"mean", "deviation"} <= set(model.state_dict())
    x = torch.full((1, 1, 8, 8), 0.4)
    with torch.no_grad():
        assert torch.allclose(model(x), model.network(torch.zeros_like(x)), atol=1e-6)


@pytest.mark.parametrize(("name", "shape"), [("cnn", (1, 8, 8)), ("vgg16", (3, 28, 28)), ("resnet18", (1, 4, 4))])
def test_images_too_small_are_refused(name, shape):
    with pytest.raises(ValueError, match="images must be at least"):
        build(name, shape)


def test_an_unknown_name_lists_the_choices():
    with pytest.raises(ValueError, match="model must be one of cnn, cnn-small, resnet18, vgg16, wrn-28-10"):
        build("resnet50")
    assert set(MODELS) == {"cnn", "cnn-small", "resnet18", "vgg16", "wrn-28-10"}


def test_the_users_own_factory(tmp_path, monkeypatch):
    (tmp_path / "mine_factory.py").write_text(
        "from torch import nn\n"
        "def plain(): return nn.Linear(4, 3)\n"
        "def sized(num_classes): return nn.Linear(4, num_classes)\n"
        "def wrong(): return 3\n"
        "def asks(path): return nn.Linear(4, 3)\n"
        "number = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert build("mine_factory:plain").out_features == 3
    assert build("mine_factory:sized", classes=7).out_features == 7
    one, two = (build("mine_factory:plain", seed=4).weight for _ in range(2))
    assert torch.equal(one, two)
    with pytest.raises(ValueError, match="must return a torch"):
        build("mine_factory:wrong")
    with pytest.raises(ValueError, match="must define a function or class absent"):
        build("mine_factory:absent")
    with pytest.raises(ValueError, match="must define a function or class number"):
        build("mine_factory:number")
    with pytest.raises(ValueError, match=r"must build a network, but TypeError: asks\(\) missing 1 required"):
        build("mine_factory:asks")
    (tmp_path / "mine_broken.py").write_text("def make(:\n")
    for module, reason in (("no_such_module_anywhere", "No module"), ("./mine_factory", ""), ("mine_broken", "Syntax")):
        with pytest.raises(ValueError, match=f"must be importable, but .*{reason}"):
            build(f"{module}:f")
    with pytest.raises(ValueError, match="must have the form"):
        build("mine_factory:")


def test_a_normaliser_takes_arrays_and_refuses_to_divide_by_zero():
    given = torch.tensor([0.4]), np.array([0.2])
    assert Normalised(nn.Identity(), *given)(torch.full((1, 1, 1, 1), 0.6)).item() == pytest.approx(1.0)
    for mean, deviation in [([0.4], [0.0]), ([0.4], [float("nan")]), ([0.4, 0.4], [0.2])]:
        with pytest.raises(ValueError, match="mean and deviation must hold one number per channel, deviations > 0"):
            Normalised(nn.Identity(), mean, deviation)


def test_an_unknown_activation_is_refused():
    with pytest.raises(ValueError, match="activation must be one of relu, elu, got 'gelu'"):
        build("cnn-small", activation="gelu")


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_a_normalisation_is_of_one_number_or_of_one_per_channel(channels):
    x = torch.rand(2, channels, 4, 4, generator=torch.Generator().manual_seed(0))
    for given in (1, channels):
        plain = (x - 0.5) / 0.25
        assert torch.equal(Normalised(nn.Identity(), [0.5] * given, [0.25] * given)(x), plain)
    if channels > 1:
        with pytest.raises(ValueError, match=f"mean and std must have 1 or {channels} numbers, one per channel, got 5"):
            Normalised(nn.Identity(), [0.5] * 5, [0.25] * 5)(x)
