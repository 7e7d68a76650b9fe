"""Distributionally robust training of the base network (Sinha et al.)."""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from rhobust.attacks.gradient import ascend, label_losses
from rhobust.methods.base import Loss, penalised_step, repeatable, squared_distance
from rhobust.models.inference import frozen
from rhobust.noise import Noise
from rhobust.settings import check_at_least, check_declared, check_positive


@dataclass(frozen=True)
class WRM:
    """WRM: train on the maximiser of l(x) - gamma ||x - x0||^2, without noise; its theory needs ELU, not ReLU."""

    gamma: float = 1.5
    """Penalty per unit of squared distance; smaller is more robust."""
    steps: int = 15
    """Damped inner steps after the first full step, as counted by Sinha et al."""

    def __post_init__(self) -> None:
        check_declared(self)
        check_positive(self, "gamma")
        check_at_least(1, self, "steps")

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, rng: Noise) -> Loss:
        with frozen(model) as network:
            worst = self.maximise(network, x, y)
        return repeatable(lambda: Loss(F.cross_entropy(model(worst), y), squared_distance(worst, x)))

    def maximise(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """The inner maximiser: x0 + grad / (2 gamma), then x += (grad / (2 gamma) - (x - x0)) / sqrt(t + 2), t from 0.

        Nothing is clipped or projected.
        """
        return ascend(
            lambda point: label_losses(model, point, y),
            x,
            steps=self.steps + 1,
            step=penalised_step(x, self.gamma, 0.5 / self.gamma),
        )
