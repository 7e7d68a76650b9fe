"""What every attack is called with, and what is refused before it begins."""

import math
from abc import ABC, abstractmethod

from torch import Tensor, nn

from rhobust.data import check_images, check_labels, class_numbers
from rhobust.noise import ExampleNoise, Noise

from rhobust.attacks.ascent import output_width


class Attack(ABC):
    """Moves each input within eps so that the model errs; stays in [0, 1]."""

    @property
    @abstractmethod
    def sees_noise(self) -> bool:
        """Whether the attack is one on the smoothed classifier, and needs its sigma."""

    @abstractmethod
    def moved(self, model: nn.Module, x: Tensor, y: Tensor, *, eps: float, sigma: float | None, rng: Noise) -> Tensor:
        """The attacked inputs; the arguments are those of a call, looked at and filled in."""

    def __call__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        *,
        eps: float,
        sigma: float | None = None,
        rng: Noise | None = None,
    ) -> Tensor:
        """The attacked inputs.

        Args:
            model: The base network, from inputs in [0, 1] to logits.
            x: Inputs, float in [0, 1], `(n, ...)`.
            y: True labels, `(n,)`.
            eps: Radius of the ball.
            sigma: Noise of the smoothed classifier under attack; None where there is none.
            rng: Noise for random starts and for expectations; streams named by the inputs' places where none is given.
        """
        if not 0 <= eps < math.inf:
            raise ValueError(f"eps must be >= 0 and finite, got {eps}")
        if sigma is not None and not 0 < sigma < math.inf:
            raise ValueError(f"sigma must be > 0 and finite, got {sigma}")
        check_images(x)
        if not x.is_floating_point():
            raise ValueError(
                f"x must be floating point to be attacked, got {x.dtype}: to_unit of rhobust.data makes it so"
            )
        y = class_numbers(y, x)
        check_labels(y, output_width(model, x))
        rng = rng or ExampleNoise(0, "attack", range(len(x)))
        return self.moved(model, x, y, eps=eps, sigma=sigma, rng=rng)
