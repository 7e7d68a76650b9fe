"""Warm starts in a sweep over nested radii."""

import pytest
import torch

from rhobust.attacks import PGD, GradientAttack
from rhobust.evaluation import Target
from rhobust.evaluation.sweep import Predictor, Sweep


@pytest.mark.parametrize("warm", [True, False])
def test_a_sweep_goes_on_where_the_smaller_radius_ended(warm, half_space, grey_images, tmp_path, monkeypatch):
    seen = []

    def spy(self, model, x, y, *, eps, sigma, rng, start):
        end = ascent(self, model, x, y, eps=eps, sigma=sigma, rng=rng, start=start)
        seen.append((eps, self.loss, x, start, end))
        return end

    ascent = GradientAttack.ascend_from
    monkeypatch.setattr(GradientAttack, "ascend_from", spy)
    target = Target(half_space, grey_images, sigma=None, name="half-space", folder=tmp_path, model_hash="0" * 16)
    block = list(range(40))
    Sweep(target, PGD(steps=2, warm=warm, restarts=2), [Predictor(target, "base", 1)], block, 0).over((0.1, 0.2))
    assert [(eps, loss) for eps, loss, *_ in seen] == [
        *((0.1, "cross-entropy"), (0.1, "margin"), (0.1, "cross-entropy")),
        *((0.2, "cross-entropy"), (0.2, "margin"), (0.2, "cross-entropy")),
    ]
    (first, second, other), (third, fourth, another) = seen[:3], seen[3:]

    def ends(of, x):
        """The ends of an ascent for the examples that are still in the batch."""
        return torch.stack([of[4][(of[2] == image).flatten(1).all(1)][0] for image in x])

    assert torch.equal(third[3], ends(first, third[2]) if warm else third[2])
    assert torch.equal(first[3], first[2])
    assert torch.equal(fourth[3], ends(second, fourth[2])) == warm
    assert not torch.equal(another[3], ends(other, another[2])), "further starts are new ones"
