"""Stability training with noise (Li et al.)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rhobust.methods.base import Loss, repeatable
from rhobust.noise import Noise, noisy_copies
from rhobust.settings import check_declared, check_positive


@dataclass(frozen=True)
class STN:
    """Stability training: clean cross-entropy, plus the cross-entropy of noisy against clean predictions."""

    sigma: float = 0.1
    """Standard deviation of the noise."""
    weight: float = 2.0
    """Weight of the stability term; the paper does not state it."""

    def __post_init__(self) -> None:
        check_declared(self)
        check_positive(self, "sigma", "weight")

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, rng: Noise) -> Loss:
        # One forward pass for both halves, so that batch norm statistics are those of the mixture.
        both = torch.cat([x, noisy_copies(x, self.sigma, 1, rng)])

        def outer() -> Loss:
            clean, noisy = model(both).chunk(2)
            value = F.cross_entropy(clean, y) + self.weight * F.cross_entropy(noisy, clean.softmax(dim=1))
            return Loss(value, x.new_zeros(len(x)))

        return repeatable(outer)
