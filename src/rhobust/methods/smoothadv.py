"""Adversarial training of the smoothed classifier (Salman et al.)."""

from dataclasses import dataclass, field

from torch import Tensor, nn

from rhobust.attacks.base import l2_step
from rhobust.attacks.gradient import ascend, compile_step, smoothed_loss
from rhobust.methods.base import Loss, noisy_loss
from rhobust.models.inference import frozen
from rhobust.noise import DrawnNoise, Noise, noisy_copies
from rhobust.settings import OMIT_IF_DEFAULT, check_at_least, check_declared, check_positive


@dataclass(frozen=True)
class SmoothAdv:
    """SmoothAdv: cross-entropy on noisy copies of L2 adversarial examples of the smoothed classifier.

    The same noise samples are used in all steps of the attack and for the weights. The paper states sigma, eps and
    steps of eps / 2, which is 2 eps / steps for 4 steps; it states neither their number nor that of the noise samples,
    for which NAL's 4 is the default.
    """

    sigma: float = 0.1
    """Standard deviation of the noise."""
    eps: float = 0.92
    """Radius of the L2 ball; 0.92 matches gamma 1.5 on CIFAR-10 with ResNet-18 in the paper."""
    steps: int = 4
    """Attack steps; 0: no attack."""
    draws: int = 4
    """Noise samples per input."""
    relative_step: float = 2.0
    """Step size times the number of steps, in units of eps."""
    agreement: float = field(default=0.0, metadata=OMIT_IF_DEFAULT)
    """Weight of consistency regularization (Jeong and Shin) of the noisy copies."""

    def __post_init__(self) -> None:
        check_declared(self)
        check_positive(self, "sigma", "eps", "relative_step")
        check_at_least(1, self, "draws")
        check_at_least(0, self, "steps", "agreement")
        if self.agreement and self.draws < 2:
            raise ValueError(f"draws must be >= 2 for consistency regularization, got {self.draws}")

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, rng: Noise) -> Loss:
        drawn = DrawnNoise(rng.normal(x, self.draws))
        worst = x
        if self.steps:
            with frozen(model) as network:
                worst = self.maximise(network, x, y, drawn)
        copies = noisy_copies(worst, self.sigma, self.draws, drawn)
        return noisy_loss(model, copies, y, draws=self.draws, agreement=self.agreement, worst=worst, x=x)

    def maximise(self, model: nn.Module, x: Tensor, y: Tensor, rng: Noise) -> Tensor:
        """The adversarial examples of the smoothed classifier."""
        return ascend(
            lambda point: smoothed_loss(model, point, y, sigma=self.sigma, draws=self.draws, rng=rng),
            x,
            steps=self.steps,
            step=compile_step(model, l2_step(x, self.eps, self.relative_step * self.eps / self.steps)),
        )
