"""Fine-tuning: training starts from somebody's weights."""

import shlex
import sys

import pytest
import torch
from torch import nn

import rhobust
from rhobust.cli import parse
from rhobust.commands.train import Train
from rhobust.methods import ERM, Gaussian
from rhobust.models import Normalised
from rhobust.training import TrainConfig, train

TINY = {"data": "digits", "epochs": 1, "batch_size": 256, "schedule": "constant"}


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A user's network on normalised digits, its code in a file and its weights of torch.save."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "net_to_tune.py").write_text(
        "from torch import nn\n"
        "def make(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))\n"
    )
    digits = rhobust.load("digits", "train")
    x, y = (digits.images.float() / 255 - 0.5) / 0.25, digits.labels
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    torch.save({"model": {f"module.{name}": t for name, t in network.state_dict().items()}}, folder / "tuned.pt")
    path = list(sys.path)
    yield network, f"{folder / 'net_to_tune.py'}:make", str(folder / "tuned.pt")
    sys.path[:] = path
    sys.modules.pop("net_to_tune", None)


def tuned(own, tmp_path, method, **changes):
    _, name, weights = own
    config = TrainConfig(method, init=name, weights=weights, mean=(0.5,), std=(0.25,), **{**TINY, **changes})
    return train(config, tmp_path / "run", device="cpu")


def test_training_starts_from_the_given_weights(own, tmp_path):
    run = tuned(own, tmp_path, ERM(), lr=1e-12, augment=False)
    assert run.metrics()[0]["accuracy"] > 0.95
    loaded = run.load_model(trust=True)
    assert isinstance(loaded, Normalised)
    assert loaded.constants() == ([0.5], [0.25])
    for name, tensor in own[0].state_dict().items():
        assert torch.allclose(loaded.network.state_dict()[name], tensor, atol=1e-6)
    with pytest.raises(ValueError, match="would run"):
        run.load_model()


def test_fine_tuning_under_noise_raises_the_accuracy_under_noise(own, tmp_path):
    run = tuned(own, tmp_path, Gaussian(sigma=0.5), lr=2e-3, epochs=6)
    under = [row["accuracy_under_noise"] for row in run.metrics()]
    assert under[-1] > under[0]
    assert "accuracy_under_noise" not in tuned(own, tmp_path / "clean", ERM(), lr=1e-3).metrics()[0]


def test_a_network_of_this_package_goes_on_from_its_own_weights(tmp_path):
    first = train(TrainConfig(ERM(), model="cnn-small", lr=5e-3, **TINY), tmp_path / "first", device="cpu")
    weights = str(first.folder / "model.safetensors")
    second = train(
        TrainConfig(ERM(), init="cnn-small", weights=weights, lr=1e-12, augment=False, **TINY),
        tmp_path / "second",
        device="cpu",
    )
    ours, theirs = (run.load_model().state_dict() for run in (second, first))
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-5) for name in ours)


def test_the_command_trains_the_same(own):
    _, name, weights = own
    config = TrainConfig(Gaussian(sigma=0.5), init=name, weights=weights, mean=(0.5,), std=(0.25,), **TINY)
    from rhobust.training.config import train_command

    words = shlex.split(train_command(config))
    assert parse(Train, "train", words[2:]).config == config


def test_mistakes():
    with pytest.raises(ValueError, match=r"model, or init .* must be given, got neither"):
        TrainConfig(ERM(), data="digits")
    with pytest.raises(ValueError, match="got 'cnn' and 'cnn-small'"):
        TrainConfig(ERM(), data="digits", model="cnn", init="cnn-small", weights="w")
    with pytest.raises(ValueError, match="weights must be given to fine-tune cnn"):
        TrainConfig(ERM(), data="digits", init="cnn")
    with pytest.raises(ValueError, match="weights must be given with init"):
        TrainConfig(ERM(), data="digits", model="cnn", weights="w")
    with pytest.raises(ValueError, match="mean and std must be given together"):
        TrainConfig(ERM(), data="digits", model="cnn", mean=(0.5,))
