"""Attacks of other packages run on SmoothedClassifier unchanged and are as strong as ours."""

import logging

import pytest
import torch
from torch import nn

from rhobust import SmoothedClassifier
from rhobust.attacks import EOT
from rhobust.certificates import Smoothing, count_votes
from rhobust.data import load, to_unit
from rhobust.noise import ExampleNoise

SIGMA, EPS, STEPS, IMAGES = 0.25, 0.75, 10, 60


@pytest.fixture
def smoothed(noise_trained):
    return SmoothedClassifier(noise_trained, SIGMA, 10, draws=8)


@pytest.fixture(scope="module")
def batch():
    digits = load("digits", "test")
    return to_unit(digits.images[:IMAGES]), digits.labels[:IMAGES]


def robust(network, x, y):
    votes = count_votes(
        network, x, Smoothing(SIGMA, 10, noise="float"), indices=range(len(x)), draws=100, purpose="vote"
    )
    return int((votes.argmax(1) == y).sum())


def as_strong_as_ours(network, adversarial, x, y):
    """Whether an attack of another package stays in its ball and is about as strong as ours with as many steps."""
    own = EOT(steps=STEPS, draws=8, schedule="constant", restarts=0)
    ours = robust(network, own(network, x, y, eps=EPS, sigma=SIGMA, rng=ExampleNoise(0, "own", range(len(x)))), y)
    assert (adversarial - x).flatten(1).norm(dim=1).max() <= EPS + 1e-5
    assert ours < 0.6 * robust(network, x, y)
    return abs(robust(network, adversarial, y) - ours) <= 4


def test_foolbox(smoothed, batch, foolbox, recwarn):
    x, y = batch
    model = foolbox.PyTorchModel(smoothed, bounds=(0, 1), device="cpu")
    assert not recwarn.list  # it says nothing about a model in training mode
    attack = foolbox.attacks.L2PGD(abs_stepsize=2 * EPS / STEPS, steps=STEPS, random_start=False)
    assert as_strong_as_ours(smoothed.model, attack.run(model, x, y, epsilon=EPS), x, y)


def test_torchattacks(smoothed, batch, torchattacks):
    x, y = batch
    attack = torchattacks.PGDL2(smoothed, eps=EPS, alpha=2 * EPS / STEPS, steps=STEPS, random_start=False)
    assert as_strong_as_ours(smoothed.model, attack(x, y), x, y)


def test_pyautoattack(smoothed, batch, autopgd, caplog):
    pyautoattack = pytest.importorskip("pyautoattack")
    x, y = batch
    apgd = autopgd.APGDAttack(smoothed, n_iter=STEPS, norm="L2", eps=EPS, seed=0, device="cpu")
    assert as_strong_as_ours(smoothed.model, apgd.perturb(x, y, best_loss=True), x, y)
    whole = pyautoattack.AutoAttack(smoothed, version="rand", norm="L2", eps=EPS, seed=0)
    whole.apgd = apgd
    with caplog.at_level(logging.WARNING):
        adversarial, _ = whole.run_standard_evaluation(x[:10], y[:10])
    assert not [record for record in caplog.records if "probability distribution" in record.message]
    assert robust(smoothed.model, adversarial, y[:10]) < robust(smoothed.model, x[:10], y[:10])


def test_a_sure_network_is_attacked_all_the_same(noise_trained, batch, foolbox):
    """Where softmax rounds to one it has no gradient left; its logarithm has."""

    class Sure(nn.Module):
        def forward(self, x):
            return 30 * noise_trained(x)

    x, y = batch
    x = x.clone().requires_grad_()
    sure = SmoothedClassifier(Sure().eval(), 0.01, 10, draws=4)
    logits = sure(x)
    right = logits.argmax(1) == y
    (of_log,) = torch.autograd.grad(nn.functional.cross_entropy(logits, y, reduction="sum"), x, retain_graph=True)
    (of_mean,) = torch.autograd.grad(nn.functional.cross_entropy(logits.exp(), y, reduction="sum"), x)
    lost = of_mean.flatten(1).norm(dim=1) == 0
    assert (lost & right).sum() > 10
    model = foolbox.PyTorchModel(sure, bounds=(0, 1), device="cpu")
    attack = foolbox.attacks.L2PGD(abs_stepsize=0.3, steps=STEPS, random_start=False)
    adversarial = attack.run(model, x.detach(), y, epsilon=1.5)
    assert (noise_trained(adversarial).argmax(1) != y)[lost & right & (of_log.flatten(1).norm(dim=1) > 0)].all()
