"""Adversarial training (Madry et al.) in the L2 ball."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from rhobust.attacks import PGD
from rhobust.methods.base import Loss, repeatable, squared_distance
from rhobust.noise import Noise
from rhobust.settings import check_at_least, check_declared, check_positive


@dataclass(frozen=True)
class AdversarialTraining:
    """Adversarial training: cross-entropy at L2 PGD adversarial examples of the base network.

    The paper states eps only. Number and size of the steps of its PGD training are not given: 7 steps are from Madry et
    al. (CIFAR-10), and 2 eps / steps is the rule of the paper's attacks.
    """

    kind: ClassVar[str] = "pgd"

    eps: float = 0.92
    """Radius of the L2 ball; 0.92 matches gamma 1.5 on CIFAR-10 with ResNet-18 in the paper."""
    steps: int = 7
    """PGD steps."""
    relative_step: float = 2.0
    """Step size times the number of steps, in units of eps."""

    def __post_init__(self) -> None:
        check_declared(self)
        check_positive(self, "eps", "relative_step")
        check_at_least(1, self, "steps")

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, rng: Noise) -> Loss:
        attack = PGD(steps=self.steps, schedule="constant", relative_step=self.relative_step)
        worst = attack.ascend_from(model, x, y, eps=self.eps, sigma=None, rng=rng, start=x)
        return repeatable(lambda: Loss(F.cross_entropy(model(worst), y), squared_distance(worst, x)))
