"""PGD on the smoothed classifier: expectation over transformation."""

import math
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from rhobust.noise import Noise, noisy_copies

from .ascent import ascend, frozen, l2_move


@dataclass(frozen=True)
class Eot:
    """PGD on -log of the mean softmax over fresh noise draws at each step: it sees the smoothing noise."""

    steps: int = 20
    """Gradients taken."""
    draws: int = 16
    """Noise draws a gradient; fewer flatter a noise-trained model."""
    relative_step: float = 2.0
    """Step size times steps, in units of eps."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be >= 1, got {self.steps}")
        if self.draws < 1:
            raise ValueError(f"draws must be >= 1, got {self.draws}")
        if not self.relative_step > 0:
            raise ValueError(f"relative_step must be > 0, got {self.relative_step}")

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, *, eps: float, sigma: float | None, rng: Noise
    ) -> Tensor:
        if sigma is None:
            raise ValueError("sigma must be given to attack the smoothed classifier, got None")
        with frozen(model) as lent:
            return ascend(
                lambda point: smoothed_loss(lent, point, y, sigma=sigma, draws=self.draws, rng=rng),
                x,
                steps=self.steps,
                move=l2_move(x, eps, self.relative_step * eps / self.steps),
            )


def smoothed_loss(model: nn.Module, x: Tensor, y: Tensor, *, sigma: float, draws: int, rng: Noise) -> Tensor:
    """-log of the mean softmax probability of the label over noise draws, one value an example."""
    log_probability = model(noisy_copies(x, sigma, draws, rng)).log_softmax(dim=1).unflatten(0, (draws, len(x)))
    # The mean softmax is a distribution: cross-entropy's own softmax leaves its logarithm as it is.
    return F.cross_entropy(log_probability.logsumexp(dim=0) - math.log(draws), y, reduction="none")
