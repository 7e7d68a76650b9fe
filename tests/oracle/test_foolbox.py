"""Our PGD against foolbox's, an implementation that shares no line with it."""

import pytest

from oracle.networks import trained
from rhobust.attacks import PGD
from rhobust.data import load, to_unit
from rhobust.methods import ERM
from rhobust.noise import ExampleNoise


@pytest.fixture(scope="module")
def plain():
    """A network after a pass over digits, and test images that it mostly gets right."""
    network, test = trained(ERM(), load("digits", "train"), size=100), load("digits", "test")
    # Double precision: the comparison is of the algorithms, not of the order in which two programs add.
    return network.double(), to_unit(test.images[:40]).double(), test.labels[:40]


def plain_pgd(steps, norm="l2"):
    """PGD as foolbox has it: steps of one size from the centre, once."""
    return PGD(steps=steps, norm=norm, schedule="constant", restarts=0)


@pytest.mark.parametrize("eps", [0.1, 0.5, 0.92, 2.0])
@pytest.mark.parametrize("steps", [4, 20])
def test_l2_pgd_is_foolboxs(eps, steps, plain, foolbox):
    network, x, y = plain
    ours = plain_pgd(steps)(network, x, y, eps=eps, sigma=None, rng=ExampleNoise(0, "unused", range(40)))
    attack = foolbox.attacks.L2PGD(abs_stepsize=2 * eps / steps, steps=steps, random_start=False)
    theirs = attack.run(foolbox.PyTorchModel(network, bounds=(0, 1)), x, y, epsilon=eps)
    assert (ours - theirs).abs().max() < 1e-6
    assert (ours - x).flatten(1).norm(dim=1).min() > 0.5 * eps


@pytest.mark.parametrize("eps", [0.02, 0.1])
def test_linf_pgd_is_foolboxs(eps, plain, foolbox):
    network, x, y = plain
    ours = plain_pgd(10, "linf")(network, x, y, eps=eps, sigma=None, rng=ExampleNoise(0, "unused", range(40)))
    attack = foolbox.attacks.LinfPGD(abs_stepsize=2 * eps / 10, steps=10, random_start=False)
    theirs = attack.run(foolbox.PyTorchModel(network, bounds=(0, 1)), x, y, epsilon=eps)
    assert (ours - theirs).abs().max() < 1e-6
