"""Projected gradient descent on the base network."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from rhobust.noise import Noise

from .ascent import ascend, frozen, l2_move, label_losses, linf_move, unit


@dataclass(frozen=True)
class Pgd:
    """PGD on the base network: it does not see the smoothing noise."""

    steps: int = 20
    """Gradients taken."""
    norm: Literal["l2", "linf"] = "l2"
    """The ball: L2 (normalised gradient) or L-infinity (its sign)."""
    relative_step: float = 2.0
    """Step size times steps, in units of eps: the paper's 2 eps / steps is 2."""
    random_start: bool = False
    """Begin at a random point of the ball instead of its centre."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be >= 1, got {self.steps}")
        if not self.relative_step > 0:
            raise ValueError(f"relative_step must be > 0, got {self.relative_step}")

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, *, eps: float, sigma: float | None, rng: Noise
    ) -> Tensor:
        size = self.relative_step * eps / self.steps

        move = l2_move(x, eps, size) if self.norm == "l2" else linf_move(x, eps, size)
        with frozen(model) as lent:
            start = random_point(x, eps, self.norm, rng) if self.random_start else x
            return ascend(
                lambda point: label_losses(lent, point, y),
                start,
                steps=self.steps,
                move=move,
            )


def random_point(x: Tensor, eps: float, norm: Literal["l2", "linf"], rng: Noise) -> Tensor:
    """A point uniform in the ball of radius eps around each example, clamped to [0, 1]."""
    # Only normal draws are named streams; their distribution function turns them into uniform ones.
    direction, level = rng.normal(x, 2)
    uniform = _normal_cdf(level)
    if norm == "linf":
        return (x + eps * (2 * uniform - 1)).clamp(0, 1)
    dimension = x[0].numel()
    radius = uniform.flatten(1)[:, 0].view(-1, *[1] * (x.dim() - 1)) ** (1 / dimension)
    return (x + eps * radius * unit(direction)).clamp(0, 1)


def _normal_cdf(z: Tensor) -> Tensor:
    return 0.5 * (1 + (z / 2**0.5).erf())
