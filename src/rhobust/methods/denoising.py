"""Training of a denoiser in front of a classifier (Salman et al., 2020)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from rhobust.methods.base import Loss
from rhobust.models.networks import Denoised
from rhobust.noise import Noise
from rhobust.settings import check_at_least, check_declared, check_positive


@dataclass(frozen=True)
class Denoising:
    """Train the denoiser D of a `Denoised` network with classifier F, whose weights stay unchanged.

    The loss is ||D(x + z) - x||^2 / d plus stability times the cross-entropy of F(D(x + z)) at the class of F(x), with
    z ~ N(0, sigma^2 I). Labels are not used: the classifier's own answers at clean images are the targets.
    """

    sigma: float = 0.25
    """Standard deviation of the noise."""
    stability: float = 1.0
    """Weight of the classifier's answers; 0 trains for the squared error alone."""

    def __post_init__(self) -> None:
        check_declared(self)
        check_positive(self, "sigma")
        check_at_least(0, self, "stability")

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, rng: Noise) -> Loss:
        inner = model.module if isinstance(model, DistributedDataParallel) else model
        if not isinstance(inner, Denoised):
            raise ValueError(f"the network must be a rhobust.models.Denoised, got a {type(inner).__name__}")
        images = inner.denoise(x + self.sigma * rng.normal(x, 1)[0])
        value = F.mse_loss(images, x)
        if self.stability:
            with torch.no_grad():
                target = inner.classifier(x).argmax(1)
            value = value + self.stability * F.cross_entropy(inner.classifier(images), target)
        return Loss(value, x.new_zeros(len(x)))
