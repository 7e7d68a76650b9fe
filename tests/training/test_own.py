"""A method of the user's own that cannot train is refused in one line."""

import math
from dataclasses import dataclass

import pytest
import torch

from rhobust.methods import Gaussian, Loss
from rhobust.progress import no_progress
from rhobust.training import TrainConfig, train


@dataclass(frozen=True)
class Own:
    """A method of the user's own that returns what it is told to."""

    returns: str
    note: object = None

    def loss(self, model, x, y, rng):
        values = torch.nn.functional.cross_entropy(model(x), y, reduction="none")
        return {
            "a tensor": values.mean(),
            "a value an image": Loss(values, x.new_zeros(len(x))),
            "no gradient": Loss(values.mean().detach(), x.new_zeros(len(x))),
        }[self.returns]


@dataclass(frozen=True)
class Silent:
    """A method without a loss."""


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (Own("a tensor"), "a method's loss must return a rhobust.methods.Loss, got a Tensor"),
        (Own("a value an image"), r"a loss's value must be a scalar that .*, got the shape \(100,\)"),
        (Own("no gradient"), "a loss's value must be a scalar that .*, got one without a gradient"),
        (Silent(), r"method must be .* with a function loss\(model, x, y, rng\), got Silent\(\)"),
        (Gaussian, r"method must be a dataclass's object .*, got <class 'rhobust\.methods\.gaussian\.Gaussian'>"),
        (Own("a tensor", note=math.sqrt), "method must hold what JSON can, for config.json, but Object of type"),
    ],
)
def test_a_method_of_ones_own_that_cannot_train_is_one_line(method, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        train(
            TrainConfig(method, "digits", "cnn-small", epochs=1, batch_size=100),
            tmp_path / "own",
            device="cpu",
            progress=no_progress,
        )
