"""PGD on the base network, EOT-PGD on the smoothed classifier, and the paper's protocol."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from rhobust.attacks.base import AttackMethod, Gradient
from rhobust.attacks.gradient import GradientAttack, Objective, base_loss, smoothed_loss
from rhobust.noise import Noise
from rhobust.settings import check_declared


@dataclass(frozen=True)
class PGD(GradientAttack):
    """PGD on the base network: it does not see the smoothing noise."""

    @property
    def attacks_smoothed(self) -> bool:
        return False

    def objective(self, model: nn.Module, y: Tensor, *, sigma: float | None, rng: Noise) -> Objective:
        return lambda point: base_loss(model, point, y, kind=self.loss)


@dataclass(frozen=True)
class EOT(GradientAttack):
    """PGD on the mean softmax over fresh noise draws at each step: it sees the smoothing noise."""

    draws: int = 16
    """Noise draws a gradient; fewer flatter a noise-trained model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.draws < 1:
            raise ValueError(f"draws must be >= 1, got {self.draws}")

    @property
    def attacks_smoothed(self) -> bool:
        return True

    def objective(self, model: nn.Module, y: Tensor, *, sigma: float | None, rng: Noise) -> Objective:
        if sigma is None:
            raise ValueError("sigma must be given to attack the smoothed classifier, got None")
        return lambda point: smoothed_loss(model, point, y, sigma=sigma, draws=self.draws, rng=rng, kind=self.loss)


Sees = Literal["base", "draw"]


@dataclass(frozen=True)
class PaperPGD(AttackMethod):
    """L2 PGD with steps of 2 eps / steps, as the paper states it; its readings are options.

    The paper gives the number of steps (20 or 100) and their size. It does not say whether the gradient is that of the
    base network or of a noisy input, nor whether it is normalised, nor whether noise is added before the answer: that
    is the evaluation's `scored` and `votes`. This attack is for comparison with printed numbers; it flatters a network
    that is smoothed.
    """

    kind: ClassVar[str] = "paper"

    steps: int = 20
    """Gradients taken: 20 in the paper, 100 in its supplement."""
    sees: Sees = "base"
    """The gradient at the input itself, or at the input with one fresh noise draw a step."""
    gradient: Gradient = "normalised"
    """Follow the gradient's direction, or the gradient as it is."""

    def __post_init__(self) -> None:
        check_declared(self)
        self.gradient_attack()  # checks the number of steps

    @property
    def attacks_smoothed(self) -> bool:
        """Whether noise enters the gradient."""
        return self.gradient_attack().attacks_smoothed

    def gradient_attack(self) -> GradientAttack:
        """The attack that this reading is."""
        if self.sees == "base":
            return PGD(**self._textbook())
        return EOT(**self._textbook(), draws=1)

    def _textbook(self) -> dict[str, Any]:
        """Steps of one size from the centre, once."""
        return {
            "steps": self.steps,
            "schedule": "constant",
            "gradient": self.gradient,
            "warm": False,
            "restarts": 0,
        }

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, *, eps: float, sigma: float | None, rng: Noise) -> Tensor:
        return self.gradient_attack().perturb(model, x, y, eps=eps, sigma=sigma, rng=rng)
