"""Loss protocol of training methods, penalised step, best-iterate inner maximisation, consistency regularization."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rhobust.attacks.gradient import Objective, ascend
from rhobust.models.inference import StepRule
from rhobust.noise import Noise

ENTROPY = 0.5
"""Weight of the entropy of the mean prediction (Jeong and Shin, 2020)."""


class Loss(NamedTuple):
    """A method's loss of a batch."""

    value: Tensor
    """The scalar to minimise."""
    squared_distance: Tensor
    """Squared distance of each adversarial example from its input, `(n,)`; zeros without an inner maximisation."""


class RepeatableLoss(Loss):
    """A loss that can be computed again for other weights: at the same adversarial examples, under the same noise."""

    again: Callable[[], Loss]
    """The loss of the network's current weights."""


def repeatable(loss: Callable[[], Loss]) -> RepeatableLoss:
    """Compute a loss of the network's weights, and keep the function for weights that change.

    Args:
        loss: The loss, with the inner maximisation and all noise already done.
    """
    found = RepeatableLoss(*loss())
    found.again = loss
    return found


class Method(Protocol):
    """A frozen dataclass of hyper-parameters that turns a batch into a loss.

    A method that trains for smoothing has a field `sigma`; evaluation takes it as the smoothing noise.
    """

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, rng: Noise) -> Loss:
        """The loss of a batch; adversarial weight perturbation needs a `RepeatableLoss`.

        Args:
            model: The network in training mode, from inputs in [0, 1] to logits.
            x: Inputs, `(n, ...)`.
            y: Labels, `(n,)`, or probabilities of the classes, `(n, classes)`.
            rng: The only source of noise.
        """
        ...


def squared_distance(worst: Tensor, x: Tensor) -> Tensor:
    """Squared L2 distance of each adversarial example from its input, `(n,)`."""
    return (worst - x).flatten(1).square().sum(1)


def class_of(y: Tensor) -> Tensor:
    """The class of each label, `(n,)`; of probabilities the largest."""
    return y if y.dim() == 1 else y.argmax(1)


def penalised_step(centre: Tensor, gamma: float, size: float) -> StepRule:
    """Damped ascent on l(x) - gamma ||x - centre||^2 from the gradient of l: step k = 0, 1, ... is size / sqrt(k + 1).

    With size 1 / (2 gamma), the first step from the centre is grad / (2 gamma).
    """

    def step(point: Tensor, gradient: Tensor, number: int) -> Tensor:
        length = size / (number + 1) ** 0.5
        return torch.lerp(point, centre, 2 * gamma * length).add_(gradient, alpha=length)

    return step


def best_iterate(objective: Objective, x: Tensor, *, gamma: float, steps: int, step: StepRule) -> Tensor:
    """Of the iterates of an ascent, the input included, the one that maximises objective - gamma ||point - x||^2.

    The ascent ignores the penalty; the penalised objective then selects the best iterate. A loss in [0, 1] cannot pay
    for a distance beyond 1 / sqrt(gamma), but a loss that is flat at the input may rise further away, where a
    penalised gradient never leads. If no iterate is better, the input is returned.
    """
    points: list[Tensor] = []
    penalised: list[Tensor] = []

    def record(point: Tensor) -> Tensor:
        values = objective(point)
        points.append(point.detach())
        penalised.append(values.detach() - gamma * squared_distance(point.detach(), x))
        return values

    end = ascend(record, x, steps=steps, step=step)
    with torch.no_grad():
        record(end)
    best = torch.stack(penalised).argmax(0)
    return torch.stack(points)[best, torch.arange(len(x), device=x.device)]


def consistency_loss(logits: Tensor, copies: int, weight: float) -> Tensor:
    """Consistency regularization (Jeong and Shin, 2020) of the predictions of noisy copies.

    The mean over inputs of weight * mean_i KL(q || p_i) + ENTROPY * H(q), for softmax predictions p_i with mean q. The
    certified radius of a smoothed classifier grows with the fraction of copies that have the same prediction.

    Args:
        logits: `(copies * n, classes)`, the first copy of all inputs first.
        copies: Noisy copies per input.
        weight: Weight of the divergence.
    """
    logs = logits.float().log_softmax(dim=1).view(copies, len(logits) // copies, -1)
    mean = logs.exp().mean(0)
    entropy = -(mean * mean.clamp_min(1e-12).log()).sum(1)
    divergence = -(mean * logs).sum(2).mean(0) - entropy
    return (weight * divergence + ENTROPY * entropy).mean()


def noisy_loss(
    model: nn.Module, copies: Tensor, y: Tensor, *, draws: int, agreement: float, worst: Tensor, x: Tensor
) -> Loss:
    """The outer loss at noisy copies of adversarial examples: cross-entropy, and consistency where it has a weight.

    `copies` are `(draws * n, ...)`, the first copy of all adversarial examples first.
    """
    labels = torch.cat([y] * draws)

    def outer() -> Loss:
        logits = model(copies)
        value = F.cross_entropy(logits, labels)
        if agreement:
            value = value + consistency_loss(logits, draws, agreement)
        return Loss(value, squared_distance(worst, x))

    return repeatable(outer)
