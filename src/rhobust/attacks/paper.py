"""The paper's attack, with what it leaves unsaid as options."""

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from rhobust.declared import check_declared
from rhobust.noise import Noise

from rhobust.attacks.attack import Attack
from rhobust.attacks.ball import Gradient
from rhobust.attacks.climb import Climb
from rhobust.attacks.eot import Eot
from rhobust.attacks.pgd import Pgd

Sees = Literal["base", "draw"]


@dataclass(frozen=True)
class Paper(Attack):
    """L2 PGD with steps of 2 eps / steps, as the paper states it; its readings are options.

    The paper gives the number of steps (20 or 100) and their size. It does not say whether the gradient is that of the
    base network or of a noisy input, nor whether it is normalised, nor whether noise is added before the answer: that
    is the evaluation's `scored` and `votes`. This attack is for comparison with printed numbers; it flatters a network
    that is smoothed.
    """

    steps: int = 20
    """Gradients taken: 20 in the paper, 100 in its supplement."""
    sees: Sees = "base"
    """The gradient at the input itself, or at the input with one fresh noise draw a step."""
    gradient: Gradient = "normalised"
    """Follow the gradient's direction, or the gradient as it is."""

    def __post_init__(self) -> None:
        check_declared(self)
        self.climber()  # checks the number of steps

    @property
    def sees_noise(self) -> bool:
        """Whether noise enters the gradient."""
        return self.climber().sees_noise

    def climber(self) -> Climb:
        """The attack that this reading is."""
        if self.sees == "base":
            return Pgd(**self._textbook())
        return Eot(**self._textbook(), draws=1)

    def _textbook(self) -> dict[str, Any]:
        """Steps of one size from the centre, once."""
        return {
            "steps": self.steps,
            "schedule": "constant",
            "gradient": self.gradient,
            "warm": False,
            "restarts": 0,
        }

    def moved(self, model: nn.Module, x: Tensor, y: Tensor, *, eps: float, sigma: float | None, rng: Noise) -> Tensor:
        return self.climber().moved(model, x, y, eps=eps, sigma=sigma, rng=rng)
