"""Copies that agree cost nothing but their entropy, and others their divergence from the mean answer."""

import pytest
import torch
from torch.nn import functional as F

from rhobust.methods import NAL
from rhobust.methods.base import disagreement
from rhobust.noise import BatchNoise, ExampleNoise, stream


def test_copies_that_agree_cost_half_of_their_entropy():
    logits = torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.5]])
    p = logits.softmax(dim=1)
    entropy = -(p * p.log()).sum(1).mean()
    assert disagreement(logits.repeat(3, 1), 3, 1e3).item() == pytest.approx(entropy.item() / 2, abs=1e-3)


def test_copies_that_differ_pay_their_divergence_from_the_mean():
    # Two inputs with two copies each, the first copies of both before the second.
    logits = torch.tensor([[2.0, 0.0, -1.0], [0.0, 3.0, 0.0], [0.0, 1.0, 0.5], [0.0, 3.0, 0.0]])
    p = logits[::2].softmax(dim=1)
    q = p.mean(0)
    divergence = (q * (q.log() - p.log())).sum(1).mean().item()
    found = disagreement(logits, 2, 3.0) - disagreement(logits, 2, 1.0)
    assert found.item() == pytest.approx(2 * divergence / 2, rel=1e-5), "the second input's copies agree"


def test_answers_without_doubt_have_finite_gradients():
    logits = torch.tensor([[1e3, 0.0], [0.0, 1e3]], requires_grad=True)
    value = disagreement(logits, 2, 10.0)
    (gradient,) = torch.autograd.grad(value, logits)
    assert value.isfinite()
    assert gradient.isfinite().all()


def test_nal_adds_what_the_draws_at_its_maximiser_disagree_by(network, batch):
    x, y = batch
    method = NAL(noise="shared", draws=3, agreement=5.0)
    shared = method.sigma * ExampleNoise(0, "n", range(6)).normal(x, 3)
    worst = method.maximise(network, x, y, BatchNoise(stream(1, "n")), shared)
    logits = network((worst + shared).flatten(0, 1))
    expected = F.cross_entropy(logits, y.repeat(3)) + disagreement(logits, 3, 5.0)
    value = method.loss(network, x, y, ExampleNoise(0, "n", range(6))).value
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)


def test_one_draw_cannot_agree():
    with pytest.raises(ValueError, match="draws must be >= 2 to agree, got 1"):
        NAL(draws=1, agreement=10.0)
    with pytest.raises(ValueError, match="agreement must be >= 0, got -1"):
        NAL(agreement=-1.0)
