"""Gaussian data augmentation (Cohen et al.)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rhobust.methods.base import Loss
from rhobust.noise import Noise, noisy_copies
from rhobust.settings import check_declared


@dataclass(frozen=True)
class Gaussian:
    """Cross-entropy on inputs with fresh Gaussian noise."""

    sigma: float = 0.1
    """Standard deviation of the noise."""
    draws: int = 1
    """Noise samples per input."""

    def __post_init__(self) -> None:
        check_declared(self)
        if not self.sigma > 0:
            raise ValueError(f"sigma must be > 0, got {self.sigma}")
        if self.draws < 1:
            raise ValueError(f"draws must be >= 1, got {self.draws}")

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, rng: Noise) -> Loss:
        copies = noisy_copies(x, self.sigma, self.draws, rng)
        return Loss(F.cross_entropy(model(copies), torch.cat([y] * self.draws)), x.new_zeros(len(x)))
