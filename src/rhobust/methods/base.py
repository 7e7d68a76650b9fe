"""What training methods share: loss protocol, penalised step, best iterate, consistency regularization."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from rhobust.attacks.gradient import Objective, ascend
from rhobust.models.inference import StepRule
from rhobust.noise import Noise


class Loss(NamedTuple):
    """What a method returns for a batch."""

    value: Tensor
    """The scalar to minimise."""
    squared_distance: Tensor
    """How far the inner maximiser moved each input, squared, `(n,)`; zeros where there is none."""


class Method(Protocol):
    """A frozen dataclass of hyper-parameters that turns a batch into a loss.

    A method that trains for smoothing has a field `sigma`; evaluation takes it as the smoothing noise.
    """

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, rng: Noise) -> Loss:
        """The loss of a batch.

        Args:
            model: The network in training mode, from inputs in [0, 1] to logits.
            x: Inputs, `(n, ...)`.
            y: Labels, `(n,)`, or probabilities of the classes, `(n, classes)`.
            rng: The only source of noise.
        """
        ...


def squared_distance(worst: Tensor, x: Tensor) -> Tensor:
    """How far each input was moved, squared, `(n,)`."""
    return (worst - x).flatten(1).square().sum(1)


def penalised_step(centre: Tensor, gamma: float, size: float) -> StepRule:
    """Damped ascent on l(x) - gamma ||x - centre||^2 from the gradient of l: step k = 0, 1, ... is size / sqrt(k + 1).

    With size 1 / (2 gamma), the first step from the centre is grad / (2 gamma).
    """

    def step(point: Tensor, gradient: Tensor, number: int) -> Tensor:
        length = size / (number + 1) ** 0.5
        return torch.lerp(point, centre, 2 * gamma * length).add_(gradient, alpha=length)

    return step


def best_iterate(objective: Objective, x: Tensor, *, gamma: float, steps: int, step: StepRule) -> Tensor:
    """Of the points that an ascent visits, the input first, the one with the most objective less gamma ||point - x||^2.

    A loss within [0, 1] is worth no move beyond 1 / sqrt(gamma), but short of it a gradient says little: a loss that is
    flat at the input may rise further on. So the way leads out whatever the price, and the price chooses where on it
    to stay. Where no point is worth its price the input stays as it is.

    Args:
        objective: The loss of each example under the same noise at every call, or points could not be compared.
        x: Inputs.
        gamma: Price of moving by one unit of squared distance.
        steps: Gradients taken.
        step: The step rule of the ascent; it ignores the penalty.
    """
    points: list[Tensor] = []
    worth: list[Tensor] = []

    def seen(point: Tensor) -> Tensor:
        values = objective(point)
        points.append(point.detach())
        worth.append(values.detach() - gamma * squared_distance(point.detach(), x))
        return values

    end = ascend(seen, x, steps=steps, step=step)
    with torch.no_grad():
        seen(end)
    best = torch.stack(worth).argmax(0)
    return torch.stack(points)[best, torch.arange(len(x), device=x.device)]


ENTROPY = 0.5
"""Weight of the mean answer's entropy, its authors' at every noise."""


def disagreement(logits: Tensor, copies: int, weight: float) -> Tensor:
    """Mean over inputs of weight * mean_i KL(q || p_i) + ENTROPY * H(q), for softmax answers p_i with mean q.

    A smoothed classifier's radius grows with the share of copies that agree, which cross-entropy alone leaves open.

    Args:
        logits: `(copies * n, classes)`, the first copy of all inputs first.
        copies: Noisy copies an input.
        weight: That of the divergence.
    """
    logs = logits.float().log_softmax(dim=1).view(copies, len(logits) // copies, -1)
    mean = logs.exp().mean(0)
    entropy = -(mean * mean.clamp_min(1e-12).log()).sum(1)
    divergence = -(mean * logs).sum(2).mean(0) - entropy
    return (weight * divergence + ENTROPY * entropy).mean()
