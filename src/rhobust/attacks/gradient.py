"""Gradient attacks: one ascent loop with per-example gradients, its losses, step rules and projections."""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rhobust.attacks.base import AttackMethod, Gradient, Norm, projected_step, random_point
from rhobust.models.inference import CompiledCopy, StepRule, frozen
from rhobust.noise import Noise, noisy_copies
from rhobust.settings import check_declared

Objective = Callable[[Tensor], Tensor]
"""From inputs `(n, ...)` to one value an example, `(n,)`."""


def ascend(objective: Objective, start: Tensor, *, steps: int, step: StepRule) -> Tensor:
    """Follow the gradient of a per-example objective for a number of steps.

    The values are summed, never averaged, over the batch: an example's path does not depend on the batch size.

    Args:
        objective: The value of each example.
        start: Where to begin, `(n, ...)`.
        steps: How many gradients to take.
        step: The step rule, projection included.
    """
    x = start.detach()
    for number in range(steps):
        x.requires_grad_()
        with torch.enable_grad():
            values = objective(x)
        (gradient,) = torch.autograd.grad(values, x, torch.ones_like(values))
        x = step(x.detach(), gradient, number).detach()
    return x


def label_losses(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of each example at its label, `(n,)`."""
    if isinstance(network, CompiledCopy):
        return network.losses(x, y)
    return F.cross_entropy(network(x), y, reduction="none")


def compile_step(network: nn.Module, step: StepRule) -> StepRule:
    """A step rule of many small operations, in one piece where the network that lends itself can fuse it."""
    return network.fuse(step) if isinstance(network, CompiledCopy) else step


_LANES = 32
"""Numbers that a CPU takes through exp and log at once; what does not fill them goes another way, a last digit off."""


def smoothed_logits(model: nn.Module, x: Tensor, *, sigma: float, draws: int, rng: Noise) -> Tensor:
    """The logarithm of the mean softmax over fresh noise draws, `(n, classes)`.

    These are logits: their softmax is the mean softmax itself, and their cross-entropy is -log of the label's mean.
    """
    log_probability = model(noisy_copies(x, sigma, draws, rng)).log_softmax(dim=1).unflatten(0, (draws, len(x)))
    # Filled up, an example's value does not depend on how many stand beside it.
    spare = -len(x) % _LANES if x.device.type == "cpu" else 0
    return F.pad(log_probability, (0, 0, 0, spare)).logsumexp(dim=0)[: len(x)] - math.log(draws)


LossKind = Literal["cross-entropy", "margin"]
"""Minus the label's log-probability, or the best other class's log-probability minus the label's."""

OTHER: dict[LossKind, LossKind] = {"cross-entropy": "margin", "margin": "cross-entropy"}


def base_loss(model: nn.Module, x: Tensor, y: Tensor, *, kind: LossKind = "cross-entropy") -> Tensor:
    """The loss of the base network at each input."""
    return label_losses(model, x, y) if kind == "cross-entropy" else _loss(model(x), y, kind)


def smoothed_loss(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    sigma: float,
    draws: int,
    rng: Noise,
    kind: LossKind = "cross-entropy",
) -> Tensor:
    """The loss of the mean softmax over noise draws at each input; its cross-entropy is -log of the label's mean."""
    return _loss(smoothed_logits(model, x, sigma=sigma, draws=draws, rng=rng), y, kind)


def _loss(scores: Tensor, y: Tensor, kind: LossKind) -> Tensor:
    if kind == "cross-entropy":
        return F.cross_entropy(scores, y, reduction="none")
    return scores.scatter(1, y[:, None], -torch.inf).amax(1) - scores.gather(1, y[:, None]).squeeze(1)


Schedule = Literal["falling", "constant"]
"""How the size of the steps goes: falling with the square of the steps that are left, or one size."""


@dataclass(frozen=True)
class GradientAttack(AttackMethod):
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

    def ascend_from(
        self, model: nn.Module, x: Tensor, y: Tensor, *, eps: float, sigma: float | None, rng: Noise, start: Tensor
    ) -> Tensor:
        """One ascent from a start in the ball around x; arguments are not checked."""
        sizes = [self.size(eps, number) for number in range(self.steps)]
        with frozen(model) as network:
            rules = [compile_step(network, projected_step(self.norm, self.gradient, x, eps, size)) for size in sizes]
            return ascend(
                self.objective(network, y, sigma=sigma, rng=rng),
                start,
                steps=self.steps,
                step=lambda point, slope, number: rules[number](point, slope, number),
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

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, *, eps: float, sigma: float | None, rng: Noise) -> Tensor:
        """The end of the ascent; of several starts the end with the largest margin for each example."""
        ends = [
            self.attempt(number).ascend_from(
                model, x, y, eps=eps, sigma=sigma, rng=rng, start=self.start(x, eps, rng, number)
            )
            for number in range(1 + self.restarts)
        ]
        if len(ends) == 1:
            return ends[0]
        with frozen(model) as network, torch.no_grad():
            margin = replace(self, loss="margin").objective(network, y, sigma=sigma, rng=rng)
            worst = torch.stack([margin(end) for end in ends]).argmax(0)
        return torch.stack(ends)[worst, torch.arange(len(x), device=x.device)]
