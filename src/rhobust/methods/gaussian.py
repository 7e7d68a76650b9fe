"""Gaussian data augmentation (Cohen et al.)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rhobust.methods.base import Loss, repeatable
from rhobust.noise import Noise, noisy_copies
from rhobust.settings import check_at_least, check_declared, check_positive


@dataclass(frozen=True)
class Gaussian:
    """Cross-entropy on inputs with fresh Gaussian noise."""

    sigma: float = 0.1
    """Standard deviation of the noise."""
    draws: int = 1
    """Noise samples per input."""

    def __post_init__(self) -> None:
        check_declared(self)
        check_positive(self, "sigma")
        check_at_least(1, self, "draws")

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, rng: Noise) -> Loss:
        copies = noisy_copies(x, self.sigma, self.draws, rng)
        labels = torch.cat([y] * self.draws)
        return repeatable(lambda: Loss(F.cross_entropy(model(copies), labels), x.new_zeros(len(x))))
