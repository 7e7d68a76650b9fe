"""Our PGD against foolbox's, an implementation that shares no line with it."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from rhobust.attacks import Pgd
from rhobust.data import load, to_unit
from rhobust.models import build_model
from rhobust.noise import ExampleNoise


@pytest.fixture
def foolbox():
    """Foolbox, with the global generators lent to it and given back."""
    numpy_state = np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        yield pytest.importorskip("foolbox")
    np.random.set_state(numpy_state)  # noqa: NPY002


@pytest.fixture(scope="module")
def trained():
    """A network after a few steps on digits, and test images that it mostly gets right."""
    train, test = load("digits", "train"), load("digits", "test")
    network = build_model(
        "cnn-small", shape=(1, 8, 8), classes=10, mean=[0.3], deviation=[0.37], activation="elu", seed=0
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for images, labels in zip(train.images.split(100), train.labels.split(100), strict=True):
        optimizer.zero_grad()
        F.cross_entropy(network(to_unit(images)), labels).backward()
        optimizer.step()
    # Double precision: the comparison is of the algorithms, not of the order in which two programs add.
    return network.double().eval(), to_unit(test.images[:40]).double(), test.labels[:40]


def textbook(steps, norm="l2"):
    """PGD as foolbox has it: steps of one size from the centre, once."""
    return Pgd(steps=steps, norm=norm, schedule="constant", restarts=0)


@pytest.mark.parametrize("eps", [0.1, 0.5, 0.92, 2.0])
@pytest.mark.parametrize("steps", [4, 20])
def test_l2_pgd_is_foolboxs(eps, steps, trained, foolbox):
    network, x, y = trained
    ours = textbook(steps)(network, x, y, eps=eps, sigma=None, rng=ExampleNoise(0, "unused", range(40)))
    attack = foolbox.attacks.L2PGD(abs_stepsize=2 * eps / steps, steps=steps, random_start=False)
    theirs = attack.run(foolbox.PyTorchModel(network, bounds=(0, 1)), x, y, epsilon=eps)
    assert (ours - theirs).abs().max() < 1e-6
    assert (ours - x).flatten(1).norm(dim=1).min() > 0.5 * eps


@pytest.mark.parametrize("eps", [0.02, 0.1])
def test_linf_pgd_is_foolboxs(eps, trained, foolbox):
    network, x, y = trained
    ours = textbook(10, "linf")(network, x, y, eps=eps, sigma=None, rng=ExampleNoise(0, "unused", range(40)))
    attack = foolbox.attacks.LinfPGD(abs_stepsize=2 * eps / 10, steps=10, random_start=False)
    theirs = attack.run(foolbox.PyTorchModel(network, bounds=(0, 1)), x, y, epsilon=eps)
    assert (ours - theirs).abs().max() < 1e-6
