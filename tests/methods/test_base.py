"""Consistency regularization and best-iterate maximisation."""

import pytest
import torch

from rhobust.attacks.base import l2_step
from rhobust.methods.base import best_iterate, consistency_loss


def test_equal_predictions_cost_half_of_their_entropy():
    logits = torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.5]])
    p = logits.softmax(dim=1)
    entropy = -(p * p.log()).sum(1).mean()
    assert consistency_loss(logits.repeat(3, 1), 3, 1e3).item() == pytest.approx(entropy.item() / 2, abs=1e-3)


def test_different_predictions_cost_their_divergence_from_the_mean():
    # Two inputs with two copies each, the first copies of both before the second.
    logits = torch.tensor([[2.0, 0.0, -1.0], [0.0, 3.0, 0.0], [0.0, 1.0, 0.5], [0.0, 3.0, 0.0]])
    p = logits[::2].softmax(dim=1)
    q = p.mean(0)
    divergence = (q * (q.log() - p.log())).sum(1).mean().item()
    found = consistency_loss(logits, 2, 3.0) - consistency_loss(logits, 2, 1.0)
    assert found.item() == pytest.approx(2 * divergence / 2, rel=1e-5), "the second input has equal predictions"


def test_extreme_logits_have_finite_gradients():
    logits = torch.tensor([[1e3, 0.0], [0.0, 1e3]], requires_grad=True)
    value = consistency_loss(logits, 2, 10.0)
    (gradient,) = torch.autograd.grad(value, logits)
    assert value.isfinite()
    assert gradient.isfinite().all()


def test_the_last_iterate_is_a_candidate():
    x = torch.zeros(1, 1, dtype=torch.float64)
    seen = []

    def objective(point):
        seen.append(point.item())
        return point.sum(1)

    found = best_iterate(objective, x, gamma=0.1, steps=3, step=l2_step(x, 0.9, 0.3))
    assert seen == pytest.approx([0, 0.3, 0.6, 0.9])
    assert found.item() == pytest.approx(0.9)
