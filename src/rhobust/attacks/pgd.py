"""PGD on the base network, EOT-PGD on the smoothed classifier, and the attack of the paper's experiments."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from rhobust.attacks.base import AttackMethod, Gradient
from rhobust.attacks.gradient import GradientAttack, Objective, base_loss, smoothed_logits
from rhobust.noise import Noise
from rhobust.settings import check_at_least, check_declared

Sees = Literal["base", "draw"]


@dataclass(frozen=True)
class PGD(GradientAttack):
    """PGD on the base network; it ignores the smoothing noise."""

    @property
    def attacks_smoothed(self) -> bool:
        return False

    def objective(self, model: nn.Module, y: Tensor, *, sigma: float | None, rng: Noise) -> Objective:
        return lambda point: base_loss(model, point, y, kind=self.loss)

    def scores(self, model: nn.Module, x: Tensor, *, sigma: float | None, rng: Noise) -> Tensor:
        return model(x)


@dataclass(frozen=True)
class EOT(GradientAttack):
    """EOT-PGD, a white-box adaptive attack on the smoothed classifier: PGD on the mean softmax over fresh noise."""

    draws: int = 16
    """Noise samples per gradient; with few, a network trained under noise seems more robust than it is."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, self, "draws")

    @property
    def attacks_smoothed(self) -> bool:
        return True

    def scores(self, model: nn.Module, x: Tensor, *, sigma: float | None, rng: Noise) -> Tensor:
        if sigma is None:
            raise ValueError("sigma must be given to attack the smoothed classifier, got None")
        return smoothed_logits(model, x, sigma=sigma, draws=self.draws, rng=rng)


@dataclass(frozen=True)
class PaperPGD(AttackMethod):
    """L2 PGD with constant steps of 2 eps / steps, as described in the paper.

    The paper gives the number of steps (20 or 100) and their size. It does not say whether the gradient is taken at the
    input or at a noisy input, whether it is normalised, or whether noise is added before classification; the first two
    are options here, the third is the evaluation's predictor. This attack is for comparison with the paper's numbers;
    it overestimates the robustness of smoothed networks.
    """

    kind: ClassVar[str] = "paper"

    steps: int = 20
    """Gradients: 20 in the paper, 100 in its supplement."""
    sees: Sees = "base"
    """base: gradient at the input; draw: at the input plus one fresh noise sample per step."""
    gradient: Gradient = "normalised"
    """Direction: the normalised gradient, or the raw gradient."""

    def __post_init__(self) -> None:
        check_declared(self)
        self.gradient_attack()  # checks the number of steps

    @property
    def attacks_smoothed(self) -> bool:
        """Whether noise enters the gradient."""
        return self.gradient_attack().attacks_smoothed

    def gradient_attack(self) -> GradientAttack:
        """The equivalent PGD or EOT-PGD."""
        options: dict[str, Any] = {
            "steps": self.steps,
            "schedule": "constant",
            "gradient": self.gradient,
            "warm": False,
            "restarts": 0,
        }
        return PGD(**options) if self.sees == "base" else EOT(**options, draws=1)

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, *, eps: float, sigma: float | None, rng: Noise) -> Tensor:
        return self.gradient_attack().perturb(model, x, y, eps=eps, sigma=sigma, rng=rng)
