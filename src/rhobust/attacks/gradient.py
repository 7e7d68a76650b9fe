"""Gradient attacks: the ascent loop with per-example gradients, the losses, and the base class of PGD and EOT-PGD."""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rhobust.attacks.base import AttackMethod, Gradient, Norm, projected_step, random_point
from rhobust.models.inference import CompiledCopy, StepRule, autotuned, for_noisy_copies, frozen
from rhobust.noise import Noise, noisy_copies
from rhobust.settings import OMIT_IF_DEFAULT, check_at_least, check_declared, check_positive
from rhobust.user_code import UserCode

Objective = Callable[[Tensor], Tensor]
"""From inputs `(n, ...)` to one value per example, `(n,)`."""
LossKind = Literal["cross-entropy", "margin"]
"""Minus the label's log-probability, or the log-probability of the runner-up class minus the label's."""
OTHER: dict[LossKind, LossKind] = {"cross-entropy": "margin", "margin": "cross-entropy"}
FEW = 4
"""Algorithms of cuDNN that are tried for each convolution of a compiled attack: all would take half a minute."""
Schedule = Literal["falling", "constant"]
"""Step sizes: decreasing with the square of the remaining steps, or constant."""
_LANES = 32
"""Width of a CPU's vectorised exp and log; the remainder of a batch is computed differently in the last digit."""


def ascend(objective: Objective, start: Tensor, *, steps: int, step: StepRule) -> Tensor:
    """Gradient ascent on a per-example objective.

    The values are summed, not averaged, over the batch, so an example's path does not depend on the batch size.

    Args:
        objective: The value of each example.
        start: Initial points, `(n, ...)`.
        steps: Number of gradients.
        step: The step rule, projection included.
    """
    x = start.detach()
    for number in range(steps):
        x.requires_grad_()
        with torch.enable_grad(), UserCode("the network's loss raised", x):
            values = objective(x)
        with UserCode("the network's gradient raised", x):
            (gradient,) = torch.autograd.grad(values, x, torch.ones_like(values))
        x = step(x.detach(), gradient, number).detach()
    return x


def compile_step(network: nn.Module, step: StepRule) -> StepRule:
    """Compile the step rule if the network is a compiled copy; otherwise return it unchanged."""
    return network.fuse(step) if isinstance(network, CompiledCopy) else step


def label_losses(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of each example at its label, `(n,)`."""
    if isinstance(network, CompiledCopy):
        return network.losses(x, y)
    return F.cross_entropy(network(x), y, reduction="none")


def smoothed_logits(model: nn.Module, x: Tensor, *, sigma: float, draws: int, rng: Noise) -> Tensor:
    """The logarithm of the mean softmax over fresh noise samples, `(n, classes)`.

    These are logits: their softmax is the mean softmax, and their cross-entropy is -log of the label's mean.
    """
    logits = for_noisy_copies(model, draws)(noisy_copies(x, sigma, draws, rng))
    log_probability = logits.log_softmax(dim=1).unflatten(0, (draws, len(x)))
    # The gradient of a class that the network masks by -inf would be NaN, not zero.
    log_probability = log_probability.clamp_min(torch.finfo(log_probability.dtype).min / 2)
    # Padding makes an example's value independent of the batch size.
    spare = -len(x) % _LANES if x.device.type == "cpu" else 0
    return F.pad(log_probability, (0, 0, 0, spare)).logsumexp(dim=0)[: len(x)] - math.log(draws)


def base_loss(model: nn.Module, x: Tensor, y: Tensor, *, kind: LossKind = "cross-entropy") -> Tensor:
    """The loss of the base network at each input."""
    return label_losses(model, x, y) if kind == "cross-entropy" else _loss(model(x), y, kind)


def smoothed_loss(
    model: nn.Module, x: Tensor, y: Tensor, *, sigma: float, draws: int, rng: Noise, kind: LossKind = "cross-entropy"
) -> Tensor:
    """The loss of the mean softmax over noise samples at each input; its cross-entropy is -log of the label's mean."""
    return _loss(smoothed_logits(model, x, sigma=sigma, draws=draws, rng=rng), y, kind)


def _loss(scores: Tensor, y: Tensor, kind: LossKind) -> Tensor:
    return F.cross_entropy(scores, y, reduction="none") if kind == "cross-entropy" else margin(scores, y)


def margin(scores: Tensor, y: Tensor) -> Tensor:
    """The largest score of another class minus the label's, `(n,)`; positive if misclassified."""
    return scores.scatter(1, y[:, None], -torch.inf).amax(1) - scores.gather(1, y[:, None]).squeeze(1)


@dataclass(frozen=True)
class GradientAttack(AttackMethod):
    """Projected gradient ascent on a loss, with restarts.

    Restarts alternate between cross-entropy and margin: the two losses find different adversarial examples, so two
    ascents find more than one of twice as many steps. Decreasing step sizes explore the ball first and converge at the
    end; small constant steps find the nearest local maximum only and overestimate the robustness of a network trained
    against them.
    """

    steps: int = 20
    """Gradients per ascent."""
    norm: Norm = "l2"
    """Norm of the ball: L2 or L-infinity."""
    schedule: Schedule = "falling"
    """Step sizes: falling from relative_step * eps to nearly zero, or constant relative_step * eps / steps."""
    relative_step: float = 2.0
    """Step size in units of eps; the paper's constant 2 eps / steps is 2."""
    gradient: Gradient = "normalised"
    """Direction: the normalised gradient (L-infinity: its sign), or the raw gradient."""
    loss: LossKind = "cross-entropy"
    """Loss of the first ascent; every second restart uses the other one."""
    random_start: bool = False
    """Start at a random point of the ball instead of its centre."""
    warm: bool = True
    """False: start each radius of a sweep anew, not at the end point of the next smaller radius."""
    restarts: int = 1
    """Additional ascents from random points of the ball; in a sweep over radii for the still robust examples only."""
    targets: int = field(default=0, metadata=OMIT_IF_DEFAULT)
    """Additional targeted ascents from the centre, each against one of the runner-up classes there; 3 break more at
    large radii."""

    def __post_init__(self) -> None:
        check_declared(self)
        check_at_least(1, self, "steps")
        check_positive(self, "relative_step")
        check_at_least(0, self, "restarts", "targets")

    @property
    def attempts(self) -> int:
        """Ascents per input and radius."""
        return 1 + self.restarts + self.targets

    def rank(self, attempt: int) -> int:
        """Of a targeted ascent which runner-up class it is against, 1 for the first; 0 for the other ascents."""
        return max(0, attempt - self.restarts) if self.targets else 0

    @abstractmethod
    def scores(self, model: nn.Module, x: Tensor, *, sigma: float | None, rng: Noise) -> Tensor:
        """The logits of the attacked classifier, for a network in evaluation mode."""

    def objective(self, model: nn.Module, y: Tensor, *, sigma: float | None, rng: Noise) -> Objective:
        """The maximised loss, for a network in evaluation mode."""
        return lambda point: _loss(self.scores(model, point, sigma=sigma, rng=rng), y, self.loss)

    def targeted(
        self, model: nn.Module, x: Tensor, y: Tensor, rank: int, *, sigma: float | None, rng: Noise
    ) -> Objective:
        """The log-probability of a runner-up class at x minus the label's, for a network in evaluation mode."""
        with torch.no_grad():
            others = self.scores(model, x, sigma=sigma, rng=rng).scatter(1, y[:, None], -torch.inf)
        wanted = others.topk(min(rank, others.shape[1] - 1), dim=1).indices[:, -1:]

        def gap(point: Tensor) -> Tensor:
            scores = self.scores(model, point, sigma=sigma, rng=rng)
            return (scores.gather(1, wanted) - scores.gather(1, y[:, None])).squeeze(1)

        return gap

    def ascend_from(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        *,
        eps: float,
        sigma: float | None,
        rng: Noise,
        start: Tensor,
        rank: int = 0,
    ) -> Tensor:
        """One ascent from a start in the ball around x, targeted if it has a rank; arguments are not checked."""
        sizes = [self.size(eps, number) for number in range(self.steps)]
        with frozen(model) as network, autotuned(isinstance(network, CompiledCopy), most=FEW):
            rules = [compile_step(network, projected_step(self.norm, self.gradient, x, eps, size)) for size in sizes]
            objective = (
                self.targeted(network, x, y, rank, sigma=sigma, rng=rng)
                if rank
                else self.objective(network, y, sigma=sigma, rng=rng)
            )
            return ascend(
                objective,
                start,
                steps=self.steps,
                step=lambda point, slope, number: rules[number](point, slope, number),
            )

    def size(self, eps: float, number: int) -> float:
        """The size of a step: relative_step eps (1 - number / steps)^2, or relative_step eps / steps."""
        factor = (1 - number / self.steps) ** 2 if self.schedule == "falling" else 1 / self.steps
        return self.relative_step * eps * factor

    def attempt(self, number: int) -> Self:
        """The attack of a restart: every second one uses the other loss."""
        return replace(self, loss=OTHER[self.loss]) if number % 2 else self

    def start(self, x: Tensor, eps: float, rng: Noise, attempt: int) -> Tensor:
        """The initial point: the centre for the first unless `random_start`, and for targeted ones; else random."""
        if self.rank(attempt) or (attempt == 0 and not self.random_start):
            return x
        return random_point(x, eps, self.norm, rng)

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, *, eps: float, sigma: float | None, rng: Noise) -> Tensor:
        """The end of the ascent; of several attempts the end with the largest margin per example."""
        ends = []
        for number in range(self.attempts):
            start, rank = self.start(x, eps, rng, number), self.rank(number)
            attack = self.attempt(number)
            ends.append(attack.ascend_from(model, x, y, eps=eps, sigma=sigma, rng=rng, start=start, rank=rank))
        if len(ends) == 1:
            return ends[0]
        with frozen(model) as network, torch.no_grad():
            margins = replace(self, loss="margin").objective(network, y, sigma=sigma, rng=rng)
            worst = torch.stack([margins(end) for end in ends]).argmax(0)
        return torch.stack(ends)[worst, torch.arange(len(x), device=x.device)]
