"""TRADES (Zhang et al.) in the L2 ball."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rhobust.attacks.base import l2_step
from rhobust.attacks.gradient import ascend, compile_step
from rhobust.methods.base import Loss, repeatable, squared_distance
from rhobust.models.inference import frozen
from rhobust.noise import Noise
from rhobust.settings import check_at_least, check_declared, check_positive

_START = 1e-3
"""Standard deviation of the random start: at the input the divergence has zero gradient."""


@dataclass(frozen=True)
class TRADES:
    """TRADES: clean cross-entropy plus beta times the worst divergence KL(f(x) || f(x')) in an L2 ball.

    The paper states eps and steps of eps / 2, which is 2 eps / steps for 4 steps; it states neither their number nor
    beta; 6 is the value of Zhang et al. on CIFAR-10.
    """

    eps: float = 0.92
    """Radius of the L2 ball; 0.92 matches gamma 1.5 on CIFAR-10 with ResNet-18 in the paper."""
    beta: float = 6.0
    """Weight of the divergence: trades clean accuracy for robustness."""
    steps: int = 4
    """Attack steps."""
    relative_step: float = 2.0
    """Step size times the number of steps, in units of eps."""

    def __post_init__(self) -> None:
        check_declared(self)
        check_positive(self, "eps", "beta", "relative_step")
        check_at_least(1, self, "steps")

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, rng: Noise) -> Loss:
        with frozen(model) as network:
            worst = self.maximise(network, x, rng)

        def outer() -> Loss:
            # One forward pass for both halves, so that batch norm statistics are those of the mixture.
            clean, adversarial = model(torch.cat([x, worst])).chunk(2)
            value = F.cross_entropy(clean, y) + self.beta * divergence(clean, adversarial).mean()
            return Loss(value, squared_distance(worst, x))

        return repeatable(outer)

    def maximise(self, model: nn.Module, x: Tensor, rng: Noise) -> Tensor:
        """The maximiser of the divergence; it does not depend on the labels."""
        clean = model(x)
        return ascend(
            lambda point: divergence(clean, model(point)),
            x + _START * rng.normal(x, 1)[0],
            steps=self.steps,
            step=compile_step(model, l2_step(x, self.eps, self.relative_step * self.eps / self.steps)),
        )


def divergence(clean: Tensor, adversarial: Tensor) -> Tensor:
    """KL(clean || adversarial) between the softmax of two logits, one value per example; both get gradients."""
    log_clean, log_adversarial = clean.log_softmax(dim=1), adversarial.log_softmax(dim=1)
    return (log_clean.exp() * (log_clean - log_adversarial)).sum(dim=1)
