"""Inner loops on the evaluation copy that adds up gradients over noisy copies take the steps of the plain network."""

import copy
from functools import partial
from typing import get_args

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rhobust.attacks import EOT, PGD, AutoAttack
from rhobust.attacks.gradient import label_losses
from rhobust.methods import NAL, TRADES, AnyMethod, SmoothAdv, SmoothMix
from rhobust.models.folding import EvalCopy, for_noisy_copies
from rhobust.models.fused import ConvNorm
from rhobust.models.inference import CompiledCopy, WithEvalCopy
from rhobust.models.networks import Normalised
from rhobust.noise import BatchNoise, ExampleNoise, stream

IMAGES, CLASSES = 5, 4  # no multiple of the noise samples

METHODS = [
    *(method() for method in get_args(AnyMethod) if method is not TRADES),
    NAL(inner="paper", draws=3),
    NAL(noise="shared", draws=3),
    NAL(inner="search", gamma=0.05, draws=3),
    NAL(step_size=0.2, draws=1),
    SmoothAdv(draws=3, agreement=1.0),
    SmoothMix(one_step=True, draws=3),
]
# TRADES begins where its gradient is nearly zero: there how a fold rounds decides the direction.
ATTACKS = [
    EOT(steps=4, draws=3),
    EOT(steps=3, draws=3, targets=2, restarts=2),
    EOT(steps=3, draws=3, loss="margin", norm="linf", gradient="raw"),
    EOT(steps=3, draws=1),
    PGD(steps=3, restarts=1),
]


@pytest.fixture
def network():
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = ConvNorm(3, 8, 3, activation=nn.ReLU()), ConvNorm(8, 8, 3, 2, activation=nn.ReLU())
        model = Normalised(nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, CLASSES)), [0.4] * 3, [0.3] * 3)
    for layer in layers:
        layer.norm.running_mean.copy_(torch.randn(8, generator=generator) / 5)
    return model.double()


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(IMAGES, 3, 8, 8, generator=generator, dtype=torch.float64)
    return x, torch.arange(IMAGES) % CLASSES


def with_copy(network, asked, off=0):
    """The network with its evaluation copy, as a compiled step makes it, and the noisy copies that it is asked for."""
    network = copy.deepcopy(network)  # a method moves its running statistics
    source = EvalCopy(network, torch.float64)

    def make(copies=1):
        asked.append(copies)
        copied = for_noisy_copies(source.network, copies + (off if copies > 1 else 0))
        return CompiledCopy(copied, partial(label_losses, copied), lambda step: step, make if copies == 1 else None)

    return WithEvalCopy(network, make)


class Double:
    """Noise in double precision."""

    def __init__(self):
        self.inner = BatchNoise(stream(0, "noise"))

    def normal(self, x, draws):
        return self.inner.normal(x, draws).double()


@pytest.mark.parametrize("soft", [False, True], ids=["classes", "probabilities"])
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_a_method_finds_the_same_adversarial_examples(method, soft, network, batch):
    x, y = batch
    if soft:
        y = F.one_hot(y, CLASSES) * 0.7 + 0.3 / CLASSES
    asked = []
    found, plain = (method.loss(one, x, y, Double()) for one in (with_copy(network, asked), network))
    assert torch.allclose(found.squared_distance, plain.squared_distance, rtol=1e-6, atol=1e-9)
    assert torch.allclose(found.value, plain.value, rtol=1e-6)
    noisy = getattr(method, "steps", 0) and isinstance(method, NAL | SmoothAdv | SmoothMix) and method.draws > 1
    assert set(asked) == ({1, method.draws} if noisy else {1} if asked else set())


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_an_attack_finds_the_same_adversarial_examples(attack, network, batch):
    asked = []
    found, plain = (
        attack.perturb(one, *batch, eps=0.5, sigma=0.25, rng=ExampleNoise(0, "noise", range(IMAGES)))
        for one in (with_copy(network, asked), network.eval())
    )
    assert torch.allclose(found, plain, atol=1e-6)
    assert not torch.allclose(found, batch[0], atol=0.01)
    assert set(asked) == {1, getattr(attack, "draws", 1)}


def test_autoattack_of_the_smoothed_classifier_finds_the_same_adversarial_examples(network, batch):
    pytest.importorskip("pyautoattack")
    attack, asked = AutoAttack(version="rand", steps=3, draws=3), []
    found, plain = (
        attack.perturb(one, *batch, eps=0.5, sigma=0.25, rng=ExampleNoise(0, "noise", range(IMAGES)))
        for one in (with_copy(network, asked), network.eval())
    )
    assert torch.allclose(found, plain, atol=1e-5)
    assert attack.draws in asked


def test_gradients_added_up_over_other_images_would_show(network, batch):
    """The checks above see it if copies of different images are taken for those of one."""
    x, y = (torch.cat([part, part[:1]]) for part in batch)  # six rows: three copies of each are six of three images
    found, plain = (NAL(draws=3).loss(one, x, y, Double()) for one in (with_copy(network, [], 3), network))
    assert not torch.allclose(found.squared_distance, plain.squared_distance, rtol=1e-3)
