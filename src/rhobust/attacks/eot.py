"""PGD on the smoothed classifier: expectation over transformation."""

from dataclasses import dataclass

from torch import Tensor, nn

from rhobust.noise import Noise

from rhobust.attacks.ascent import Objective
from rhobust.attacks.climb import Climb
from rhobust.attacks.losses import smoothed_loss


@dataclass(frozen=True)
class Eot(Climb):
    """PGD on the mean softmax over fresh noise draws at each step: it sees the smoothing noise."""

    draws: int = 16
    """Noise draws a gradient; fewer flatter a noise-trained model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.draws < 1:
            raise ValueError(f"draws must be >= 1, got {self.draws}")

    @property
    def sees_noise(self) -> bool:
        return True

    def objective(self, model: nn.Module, y: Tensor, *, sigma: float | None, rng: Noise) -> Objective:
        if sigma is None:
            raise ValueError("sigma must be given to attack the smoothed classifier, got None")
        return lambda point: smoothed_loss(model, point, y, sigma=sigma, draws=self.draws, rng=rng, kind=self.loss)
