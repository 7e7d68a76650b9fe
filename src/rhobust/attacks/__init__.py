"""Attacks: frozen dataclasses of their hyper-parameters that move inputs within a ball.

A new attack is one file with such a dataclass and one more name in `AnyAttack`.
"""

from typing import Protocol

from torch import Tensor, nn

from rhobust.noise import Noise

from .autoattack import Autoattack as Autoattack
from .climb import Climb as Climb
from .eot import Eot as Eot
from .paper import Paper as Paper
from .pgd import Pgd as Pgd

AnyAttack = Pgd | Eot | Paper | Autoattack
"""Every attack: the command line, the records and the tests read this union."""


class Attack(Protocol):
    """Moves each input within eps so that the model errs; stays in [0, 1]."""

    @property
    def sees_noise(self) -> bool:
        """Whether the attack is one on the smoothed classifier, and needs its sigma."""
        ...

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
        ...
