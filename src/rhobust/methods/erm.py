"""Standard training, without a defence."""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from rhobust.methods.base import Loss, repeatable
from rhobust.noise import Noise


@dataclass(frozen=True)
class ERM:
    """Empirical risk minimisation: cross-entropy on clean inputs."""

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, rng: Noise) -> Loss:
        return repeatable(lambda: Loss(F.cross_entropy(model(x), y), x.new_zeros(len(x))))
