"""MACER: maximising the certified radius of the smoothed classifier (Zhai et al., 2020)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rhobust.methods.base import Loss, class_of, repeatable
from rhobust.noise import Noise, noisy_copies
from rhobust.settings import check_at_least, check_declared, check_positive

_TINY = 1e-10
"""Added to a mean probability before its logarithm, as by the authors."""


@dataclass(frozen=True)
class MACER:
    """MACER: minus the log of the mean prediction, plus a hinge loss of the certified radius; no attack.

    With p and p' the two largest classes of the mean softmax of beta times the logits, the second term is
    weight sigma / 2 (gamma - (Phi^-1(p) - Phi^-1(p'))) for inputs that are right by a difference of at most gamma, and
    zero for all others. The defaults are the authors' for CIFAR-10 at sigma 0.25.
    """

    sigma: float = 0.25
    """Standard deviation of the noise."""
    draws: int = 16
    """Noise samples per input, the authors' k."""
    weight: float = 12.0
    """Weight of the hinge loss, the authors' lambda."""
    margin: float = 8.0
    """Difference of quantiles from which on an input has no hinge loss, the authors' gamma."""
    beta: float = 16.0
    """Inverse temperature of the softmax in the hinge loss."""

    def __post_init__(self) -> None:
        check_declared(self)
        check_positive(self, "sigma", "weight", "margin", "beta")
        check_at_least(1, self, "draws")

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, rng: Noise) -> Loss:
        copies = noisy_copies(x, self.sigma, self.draws, rng)

        def outer() -> Loss:
            logits = model(copies).float().unflatten(0, (self.draws, len(x)))
            logs = (logits.softmax(2).mean(0) + _TINY).log()
            natural = -(logs * y).sum(1) if y.dim() == 2 else -logs.gather(1, y[:, None]).squeeze(1)
            return Loss((natural + self.weight * self.hinge(logits, y)).mean(), x.new_zeros(len(x)))

        return repeatable(outer)

    def hinge(self, logits: Tensor, y: Tensor) -> Tensor:
        """The hinge loss of the certified radius of each input, `(n,)`, from logits `(draws, n, classes)`."""
        (first, second), (predicted, _) = (
            part.unbind(1) for part in (self.beta * logits).softmax(2).mean(0).topk(2, dim=1)
        )
        with torch.no_grad():
            # Infinite where a probability is 0 or 1: beyond every margin.
            difference = torch.special.ndtri(first) - torch.special.ndtri(second)
            counted = (predicted == class_of(y)) & (difference.abs() <= self.margin)
        # Uncounted inputs get a harmless value before the quantile, whose gradient would be infinite times zero.
        first, second = (torch.where(counted, part, 0.5) for part in (first, second))
        difference = torch.special.ndtri(first) - torch.special.ndtri(second)
        return self.sigma / 2 * torch.where(counted, self.margin - difference, 0)
