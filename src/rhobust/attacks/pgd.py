"""Projected gradient descent on the base network."""

from dataclasses import dataclass

from torch import Tensor, nn

from rhobust.noise import Noise

from rhobust.attacks.ascent import Objective
from rhobust.attacks.climb import Climb
from rhobust.attacks.losses import base_loss


@dataclass(frozen=True)
class Pgd(Climb):
    """PGD on the base network: it does not see the smoothing noise."""

    @property
    def sees_noise(self) -> bool:
        return False

    def objective(self, model: nn.Module, y: Tensor, *, sigma: float | None, rng: Noise) -> Objective:
        return lambda point: base_loss(model, point, y, kind=self.loss)
