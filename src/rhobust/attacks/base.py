"""Base class of attacks, and the balls they search."""

import math
from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn

from rhobust.data import check_images, check_labels, class_numbers
from rhobust.models.inference import StepRule, output_width
from rhobust.noise import ExampleNoise, Noise

Norm = Literal["l2", "linf"]
"""How far an input is moved: by L2 or by L-infinity distance."""
Gradient = Literal["normalised", "raw"]
"""What a step follows: the direction of the gradient (in L-infinity its sign), or the gradient as it is."""


def projected_step(norm: Norm, gradient: Gradient, centre: Tensor, eps: float, size: float) -> StepRule:
    """Steps along the gradient, within the ball of radius eps around each centre and in [0, 1]."""
    if gradient == "normalised":
        return l2_step(centre, eps, size) if norm == "l2" else linf_step(centre, eps, size)
    project = project_l2 if norm == "l2" else project_linf
    return lambda point, slope, _: project(point + size * slope, centre, eps).clamp(0, 1)


def random_point(x: Tensor, eps: float, norm: Norm, rng: Noise) -> Tensor:
    """A point uniform in the ball of radius eps around each example, clamped to [0, 1]."""
    # Only normal draws are named streams; their distribution function turns them into uniform ones.
    direction, level = rng.normal(x, 2)
    uniform = 0.5 * (1 + (level / 2**0.5).erf())
    if norm == "linf":
        return (x + eps * (2 * uniform - 1)).clamp(0, 1)
    dimension = x[0].numel()
    radius = uniform.flatten(1)[:, 0].view(-1, *[1] * (x.dim() - 1)) ** (1 / dimension)
    return (x + eps * radius * unit(direction)).clamp(0, 1)


def distances(moved: Tensor, x: Tensor, norm: Norm) -> Tensor:
    """How far each example was moved, `(n,)`."""
    return norms(moved - x).flatten() if norm == "l2" else (moved - x).flatten(1).abs().amax(1)


FLOOR = 32
"""Rows of a forward pass at least: below, a CPU's kernels change with the batch, and so would a result."""


def pad_batch(x: Tensor) -> Tensor:
    """The rows of x, and copies of the first up to `FLOOR` rows."""
    return torch.cat([x, x[:1].expand(FLOOR - len(x), *x.shape[1:])]) if len(x) < FLOOR else x


class AttackMethod(ABC):
    """Moves each input within eps so that the model errs; stays in [0, 1]."""

    @property
    @abstractmethod
    def attacks_smoothed(self) -> bool:
        """Whether the attack is one on the smoothed classifier, and needs its sigma."""

    @abstractmethod
    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, *, eps: float, sigma: float | None, rng: Noise) -> Tensor:
        """The attacked inputs; the arguments are those of a call, looked at and filled in."""

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
        if not 0 <= eps < math.inf:
            raise ValueError(f"eps must be >= 0 and finite, got {eps}")
        if sigma is not None and not 0 < sigma < math.inf:
            raise ValueError(f"sigma must be > 0 and finite, got {sigma}")
        check_images(x)
        if not x.is_floating_point():
            raise ValueError(
                f"x must be floating point to be attacked, got {x.dtype}: to_unit of rhobust.data makes it so"
            )
        y = class_numbers(y, x)
        check_labels(y, output_width(model, x))
        rng = rng or ExampleNoise(0, "attack", range(len(x)))
        return self.perturb(model, x, y, eps=eps, sigma=sigma, rng=rng)


def norms(x: Tensor) -> Tensor:
    """The L2 norm of each example, shaped to multiply it."""
    return torch.linalg.vector_norm(x, dim=tuple(range(1, x.dim())), keepdim=True)


def unit(gradient: Tensor) -> Tensor:
    """Each example's gradient over its L2 norm; a zero gradient stays zero."""
    return gradient / norms(gradient).clamp_min(torch.finfo(gradient.dtype).tiny)


def project_l2(x: Tensor, centre: Tensor, eps: float) -> Tensor:
    """The nearest point of the L2 ball of radius eps around each centre."""
    offset = x - centre
    return torch.addcdiv(centre, offset, norms(offset).clamp_min(max(eps, torch.finfo(x.dtype).tiny)), value=eps)


def project_linf(x: Tensor, centre: Tensor, eps: float) -> Tensor:
    """The nearest point of the L-infinity ball of radius eps around each centre."""
    return centre + (x - centre).clamp(-eps, eps)


def l2_step(centre: Tensor, eps: float, size: float) -> StepRule:
    """Steps of one length along the normalised gradient, within the L2 ball around each centre and in [0, 1]."""

    def step(point: Tensor, gradient: Tensor, _: int) -> Tensor:
        length = norms(gradient).clamp_min(torch.finfo(gradient.dtype).tiny)
        return project_l2(torch.addcdiv(point, gradient, length, value=size), centre, eps).clamp_(0, 1)

    return step


def linf_step(centre: Tensor, eps: float, size: float) -> StepRule:
    """Steps of one length along the gradient's sign, within the L-infinity ball around each centre and in [0, 1]."""
    return lambda point, gradient, _: project_linf(point + size * gradient.sign(), centre, eps).clamp(0, 1)
