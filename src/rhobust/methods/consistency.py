"""Consistency regularization of smoothed classifiers (Jeong and Shin, 2020)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rhobust.methods.base import Loss, consistency_loss, repeatable
from rhobust.noise import Noise, noisy_copies
from rhobust.settings import check_at_least, check_declared, check_positive


@dataclass(frozen=True)
class Consistency:
    """Cross-entropy on noisy copies, plus weight KL(q || p_i) + 0.5 H(q) of their predictions p_i with mean q.

    The defaults are the authors' for CIFAR-10 at sigma 0.25.
    """

    sigma: float = 0.25
    """Standard deviation of the noise."""
    draws: int = 2
    """Noise samples per input, the authors' m."""
    weight: float = 20.0
    """Weight of the divergence, the authors' lambda; 10 for sigma 0.5 and 1.0."""

    def __post_init__(self) -> None:
        check_declared(self)
        check_positive(self, "sigma", "weight")
        check_at_least(2, self, "draws")

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, rng: Noise) -> Loss:
        copies, labels = noisy_copies(x, self.sigma, self.draws, rng), torch.cat([y] * self.draws)

        def outer() -> Loss:
            logits = model(copies)
            value = F.cross_entropy(logits, labels) + consistency_loss(logits, self.draws, self.weight)
            return Loss(value, x.new_zeros(len(x)))

        return repeatable(outer)
