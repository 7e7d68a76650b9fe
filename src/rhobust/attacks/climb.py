"""What gradient attacks share: an ascent within a ball from one start or several."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import Tensor, nn

from rhobust.declared import check_declared
from rhobust.noise import Noise

from rhobust.attacks.ascent import Objective, ascend, beside, frozen
from rhobust.attacks.attack import Attack
from rhobust.attacks.ball import Gradient, Norm, random_point, steps_within
from rhobust.attacks.losses import OTHER, LossKind

Schedule = Literal["falling", "constant"]
"""How the size of the steps goes: falling with the square of the steps that are left, or one size."""


@dataclass(frozen=True)
class Climb(Attack):
    """An attack that climbs a loss by projected gradient steps.

    Restarts climb the two losses in turn: cross-entropy and margin break different examples, so two ascents find more
    than one of twice as many steps. Long first steps look around in the ball and the last ones settle; small steps of
    one size climb the nearest hill only, and flatter a network that was trained against them.
    """

    steps: int = 20
    """Gradients taken."""
    norm: Norm = "l2"
    """The ball: L2 or L-infinity."""
    schedule: Schedule = "falling"
    """Steps that fall from relative_step eps to almost nothing, or constant ones of relative_step eps / steps."""
    relative_step: float = 2.0
    """The size of steps in units of eps: the paper's constant 2 eps / steps is 2."""
    gradient: Gradient = "normalised"
    """Follow the gradient's direction (in L-infinity its sign) or the gradient as it is."""
    loss: LossKind = "cross-entropy"
    """What is climbed first; every second start climbs the other."""
    random_start: bool = False
    """Begin at a random point of the ball instead of its centre."""
    warm: bool = True
    """In a sweep over nested radii, begin where the smaller one ended, so that the steps add up; without it, anew."""
    restarts: int = 1
    """Further starts at random points of the ball; in a sweep over radii only for what still stands."""

    def __post_init__(self) -> None:
        check_declared(self)
        if self.steps < 1:
            raise ValueError(f"steps must be >= 1, got {self.steps}")
        if not self.relative_step > 0:
            raise ValueError(f"relative_step must be > 0, got {self.relative_step}")
        if self.restarts < 0:
            raise ValueError(f"restarts must be >= 0, got {self.restarts}")

    @abstractmethod
    def objective(self, model: nn.Module, y: Tensor, *, sigma: float | None, rng: Noise) -> Objective:
        """The loss that is climbed, of a network in evaluation mode."""

    def climb(
        self, model: nn.Module, x: Tensor, y: Tensor, *, eps: float, sigma: float | None, rng: Noise, start: Tensor
    ) -> Tensor:
        """One ascent from a start in the ball around x; arguments are not checked."""
        sizes = [self.size(eps, number) for number in range(self.steps)]
        with frozen(model) as lent:
            moves = [beside(lent, steps_within(self.norm, self.gradient, x, eps, size)) for size in sizes]
            return ascend(
                self.objective(lent, y, sigma=sigma, rng=rng),
                start,
                steps=self.steps,
                move=lambda point, slope, number: moves[number](point, slope, number),
            )

    def size(self, eps: float, number: int) -> float:
        """The size of a step: relative_step eps (1 - number / steps)^2, or relative_step eps / steps."""
        share = (1 - number / self.steps) ** 2 if self.schedule == "falling" else 1 / self.steps
        return self.relative_step * eps * share

    def attempt(self, number: int) -> Self:
        """The ascent of a start: every second one climbs the other loss."""
        return replace(self, loss=OTHER[self.loss]) if number % 2 else self

    def start(self, x: Tensor, eps: float, rng: Noise, attempt: int) -> Tensor:
        """Where an attempt begins on its own: the first at the centre unless told otherwise, the others at random."""
        return random_point(x, eps, self.norm, rng) if self.random_start or attempt > 0 else x

    def moved(self, model: nn.Module, x: Tensor, y: Tensor, *, eps: float, sigma: float | None, rng: Noise) -> Tensor:
        """The end of the ascent; of several starts the end with the largest margin for each example."""
        ends = [
            self.attempt(number).climb(
                model, x, y, eps=eps, sigma=sigma, rng=rng, start=self.start(x, eps, rng, number)
            )
            for number in range(1 + self.restarts)
        ]
        if len(ends) == 1:
            return ends[0]
        with frozen(model) as lent, torch.no_grad():
            margin = replace(self, loss="margin").objective(lent, y, sigma=sigma, rng=rng)
            worst = torch.stack([margin(end) for end in ends]).argmax(0)
        return torch.stack(ends)[worst, torch.arange(len(x), device=x.device)]
