"""Base class of attacks, norm balls, projections and step rules."""

import math
from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn

from rhobust.data import check_images, check_labels, class_numbers
from rhobust.models.inference import StepRule, output_width
from rhobust.noise import ExampleNoise, Noise
from rhobust.settings import check_positive_number
from rhobust.user_code import UserCode

Norm = Literal["l2", "linf"]
"""Norm of the perturbation."""
Gradient = Literal["normalised", "raw"]
"""Direction of a step: the normalised gradient (L-infinity: its sign), or the gradient itself."""
MIN_BATCH = 32
"""Smallest batch of a forward pass: a CPU uses other kernels below it, so results would depend on the batch size."""


class AttackMethod(ABC):
    """An attack: perturbs each input within a ball of radius eps, inside [0, 1], to cause a misclassification."""

    @property
    @abstractmethod
    def attacks_smoothed(self) -> bool:
        """Whether the smoothed classifier is attacked; its sigma is then required."""

    @abstractmethod
    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, *, eps: float, sigma: float | None, rng: Noise) -> Tensor:
        """The adversarial examples; arguments as in `__call__`, validated and with defaults filled in."""

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
        """The adversarial examples.

        Args:
            model: The base network, from inputs in [0, 1] to logits.
            x: Inputs, float in [0, 1], `(n, ...)`.
            y: True labels, `(n,)`.
            eps: Radius of the ball.
            sigma: Noise of the attacked smoothed classifier; None for an attack on the base network.
            rng: Noise for random starts and expectations; default: streams named by the inputs' positions.
        """
        if not 0 <= eps < math.inf:
            raise ValueError(f"eps must be >= 0 and finite, got {eps}")
        if sigma is not None:
            check_positive_number("sigma", sigma)
        check_images(x)
        if not x.is_floating_point():
            raise ValueError(
                f"x must be floating point to be attacked, got {x.dtype}: to_unit of rhobust.data converts it"
            )
        y = class_numbers(y, x)
        check_labels(y, output_width(model, x))
        rng = rng or ExampleNoise(0, "attack", range(len(x)))
        with UserCode("the attack raised", x):
            return self.perturb(model, x, y, eps=eps, sigma=sigma, rng=rng)


def norms(x: Tensor) -> Tensor:
    """The L2 norm of each example, shaped to broadcast against it."""
    return torch.linalg.vector_norm(x, dim=tuple(range(1, x.dim())), keepdim=True)


def normalise(gradient: Tensor) -> Tensor:
    """Each example's gradient divided by its L2 norm; a zero gradient stays zero."""
    return gradient / norms(gradient).clamp_min(torch.finfo(gradient.dtype).tiny)


def distances(perturbed: Tensor, x: Tensor, norm: Norm) -> Tensor:
    """The norm of each perturbation, `(n,)`."""
    return norms(perturbed - x).flatten() if norm == "l2" else (perturbed - x).flatten(1).abs().amax(1)


def project_l2(x: Tensor, centre: Tensor, eps: float) -> Tensor:
    """The nearest point of the L2 ball of radius eps around each centre."""
    offset = x - centre
    return torch.addcdiv(centre, offset, norms(offset).clamp_min(max(eps, torch.finfo(x.dtype).tiny)), value=eps)


def project_linf(x: Tensor, centre: Tensor, eps: float) -> Tensor:
    """The nearest point of the L-infinity ball of radius eps around each centre."""
    return centre + (x - centre).clamp(-eps, eps)


def random_point(x: Tensor, eps: float, norm: Norm, rng: Noise) -> Tensor:
    """A point uniform in the ball of radius eps around each example, clamped to [0, 1]."""
    # Named streams are normal; their distribution function makes them uniform.
    direction, level = rng.normal(x, 2)
    uniform = 0.5 * (1 + (level / 2**0.5).erf())
    if norm == "linf":
        return (x + eps * (2 * uniform - 1)).clamp(0, 1)
    dimension = x[0].numel()
    radius = uniform.flatten(1)[:, 0].view(-1, *[1] * (x.dim() - 1)) ** (1 / dimension)
    return (x + eps * radius * normalise(direction)).clamp(0, 1)


def projected_step(norm: Norm, gradient: Gradient, centre: Tensor, eps: float, size: float) -> StepRule:
    """Step along the gradient, projected on the ball of radius eps around each centre and on [0, 1]."""
    if gradient == "normalised":
        return l2_step(centre, eps, size) if norm == "l2" else linf_step(centre, eps, size)
    project = project_l2 if norm == "l2" else project_linf
    return lambda point, slope, _: project(point + size * slope, centre, eps).clamp(0, 1)


def l2_step(centre: Tensor, eps: float, size: float) -> StepRule:
    """Step of length `size` along the normalised gradient, projected on the L2 ball and on [0, 1]."""

    def step(point: Tensor, gradient: Tensor, _: int) -> Tensor:
        length = norms(gradient).clamp_min(torch.finfo(gradient.dtype).tiny)
        return project_l2(torch.addcdiv(point, gradient, length, value=size), centre, eps).clamp_(0, 1)

    return step


def linf_step(centre: Tensor, eps: float, size: float) -> StepRule:
    """Step of length `size` along the gradient's sign, projected on the L-infinity ball and on [0, 1]."""
    return lambda point, gradient, _: project_linf(point + size * gradient.sign(), centre, eps).clamp(0, 1)


def pad_batch(x: Tensor) -> Tensor:
    """The rows of x, followed by copies of the first up to `MIN_BATCH` rows."""
    return torch.cat([x, x[:1].expand(MIN_BATCH - len(x), *x.shape[1:])]) if len(x) < MIN_BATCH else x
