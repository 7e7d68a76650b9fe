"""Variants of NAL that were tried: user-defined methods, trained and attacked like those of the package."""

import math
import sys
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rhobust.attacks import ascend, base_loss, label_losses
from rhobust.methods import NAL, Loss, SmoothAdv, consistency_loss, divergence, penalised_step, squared_distance
from rhobust.models import StepRule, frozen
from rhobust.noise import DrawnNoise, Noise

PROBIT_LIMIT = 4.0
"""Psi's slope is clipped at so many standard deviations: a few noise samples do not resolve p beyond."""


@dataclass(frozen=True)
class NalRho:
    """NAL by its primal: maximise the mean loss of the batch within mean ||x - x0||^2 <= rho, without a penalty.

    The ball is one of distributions: inputs share the budget, and those with a steeper loss take more of it.
    """

    sigma: float = 0.1
    rho: float = 0.8464
    """Mean squared distance; 0.92^2 is the paper's."""
    steps: int = 4
    draws: int = 4
    relative_step: float = 2.0
    """Step size times steps, in units of sqrt(rho)."""

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, rng: Noise) -> Loss:
        with frozen(model) as frozen_model:
            worst = ascend(
                lambda point: noisy_losses(frozen_model, point, y, self.sigma, self.draws, rng),
                x,
                steps=self.steps,
                step=within_batch(x, self.rho, self.relative_step / self.steps),
            )
        return trained_at(model, worst, x, y, self.sigma, self.draws, rng)


@dataclass(frozen=True)
class NalMixed(NAL):
    """NAL whose weights also see noisy copies of the input itself."""

    share: float = 0.5
    """Share of the input itself in the loss."""

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, rng: Noise) -> Loss:
        clean, adversarial, labels, worst = self.both(model, x, y, rng)
        value = self.share * F.cross_entropy(clean, labels) + (1 - self.share) * F.cross_entropy(adversarial, labels)
        return Loss(value, squared_distance(worst, x))

    def both(self, model: nn.Module, x: Tensor, y: Tensor, rng: Noise) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Logits at the input and at the maximiser under the same noise, their labels, and the maximiser."""
        with frozen(model) as frozen_model:
            worst = self.maximise(frozen_model, x, y, rng)
        noise = self.sigma * rng.normal(x, self.draws)
        pairs = torch.cat([(x + noise).flatten(0, 1), (worst + noise).flatten(0, 1)])
        clean, adversarial = model(pairs).chunk(2)
        return clean, adversarial, torch.cat([y] * self.draws), worst


@dataclass(frozen=True)
class NalConsistent(NalMixed):
    """NAL with TRADES' loss: cross-entropy at the input, and beta times the divergence of the maximiser from it."""

    beta: float = 6.0

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, rng: Noise) -> Loss:
        clean, adversarial, labels, worst = self.both(model, x, y, rng)
        value = F.cross_entropy(clean, labels) + self.beta * divergence(clean, adversarial).mean()
        return Loss(value, squared_distance(worst, x))


@dataclass(frozen=True)
class NalMargin(NAL):
    """NAL with an inner ascent on the margin of the runner-up class instead of the cross-entropy.

    Where the network is confident, cross-entropy is flat and inputs are not perturbed; the margin keeps its slope.
    """

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, rng: Noise) -> Loss:
        labels = torch.cat([y] * self.draws)

        def margins(point: Tensor) -> Tensor:
            copies = (point + self.sigma * rng.normal(x, self.draws)).flatten(0, 1)
            return base_loss(frozen_model, copies, labels, kind="margin").view(self.draws, len(y)).mean(0)

        with frozen(model) as frozen_model:
            worst = ascend(margins, x, steps=self.steps, step=penalised_step(x, self.gamma, 0.5 / self.gamma))
        return trained_at(model, worst, x, y, self.sigma, self.draws, rng)


class Consistency(Protocol):
    """A method with consistency regularization (Jeong and Shin)."""

    @property
    def sigma(self) -> float: ...
    @property
    def agreement(self) -> float: ...
    @property
    def copies(self) -> int: ...


@dataclass(frozen=True)
class NalSteady(NAL):
    """NAL with consistency regularization on fresh noise samples, besides those of the inner ascent."""

    agreement: float = 10.0
    """Weight of the regularization."""
    copies: int = 2
    """Noisy copies of the maximiser that the weights see."""

    def __post_init__(self) -> None:
        # NAL needs two noise samples for its own regularization; here the copies are extra.
        if self.copies < 2:
            raise ValueError(f"copies must be >= 2 to agree, got {self.copies}")

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, rng: Noise) -> Loss:
        with frozen(model) as frozen_model:
            worst = self.maximise(frozen_model, x, y, rng)
        return Loss(regularised_loss(self, model, worst, y, rng), squared_distance(worst, x))


@dataclass(frozen=True)
class SmoothadvSteady(SmoothAdv):
    """SmoothAdv with the same regularization."""

    agreement: float = 10.0
    copies: int = 2

    def __post_init__(self) -> None:
        # SmoothAdv needs two noise samples for its own regularization; here the copies are extra.
        if self.copies < 2:
            raise ValueError(f"copies must be >= 2 to agree, got {self.copies}")

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, rng: Noise) -> Loss:
        drawn = DrawnNoise(rng.normal(x, self.draws))
        with frozen(model) as frozen_model:
            worst = self.maximise(frozen_model, x, y, drawn)
        return Loss(regularised_loss(self, model, worst, y, rng), squared_distance(worst, x))


@dataclass(frozen=True)
class GaussianSteady:
    """Smoothing with the same regularization: the method of Jeong and Shin."""

    sigma: float = 0.25
    agreement: float = 20.0
    """Its authors' weight at this noise."""
    copies: int = 2

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, rng: Noise) -> Loss:
        return Loss(regularised_loss(self, model, x, y, rng), x.new_zeros(len(x)))


@dataclass(frozen=True)
class NalFloored(NAL):
    """NAL on the floored cross-entropy -log((1 - floor) p + floor / classes), which is bounded."""

    floor: float = 0.05

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, rng: Noise) -> Loss:
        with frozen(model) as frozen_model:
            worst = ascend(
                lambda point: self.values(frozen_model, point, y, rng).mean(0),
                x,
                steps=self.steps,
                step=penalised_step(x, self.gamma, 0.5 / self.gamma),
            )
        return Loss(self.values(model, worst, y, rng).mean(), squared_distance(worst, x))

    def values(self, model: nn.Module, x: Tensor, y: Tensor, rng: Noise) -> Tensor:
        """The bounded loss of each noise sample, `(draws, n)`."""
        logits = model((x + self.sigma * rng.normal(x, self.draws)).flatten(0, 1))
        right = logits.softmax(dim=1).gather(1, torch.cat([y] * self.draws)[:, None])
        return -((1 - self.floor) * right + self.floor / logits.shape[1]).log().view(self.draws, len(y))


@dataclass(frozen=True)
class NalAnnealed(NAL):
    """NAL whose penalty decreases from `first` to gamma, geometrically, over so many updates.

    The network's batch norm counts the updates: on the device, so that a captured step counts too, and in the weights,
    so that an interrupted run continues with its penalty.
    """

    first: float = 5.0
    updates: int = 391 * 10

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, rng: Noise) -> Loss:
        counts = [buffer for name, buffer in model.named_buffers() if name.endswith("num_batches_tracked")]
        if not counts:
            raise ValueError("an annealed penalty needs a network whose batch norm counts updates, but it has none")
        count = counts[0]
        penalty = self.first * (self.gamma / self.first) ** (count / self.updates).clamp(max=1)
        with frozen(model) as frozen_model:
            worst = ascend(
                lambda point: noisy_losses(frozen_model, point, y, self.sigma, self.draws, rng),
                x,
                steps=self.steps,
                step=damped(x, penalty),
            )
        return trained_at(model, worst, x, y, self.sigma, self.draws, rng)


@dataclass(frozen=True)
class Psi:
    """Attack-free training: the mean of Psi(p, kappa) at the soft error p under noise, and a share of cross-entropy.

    Psi(p, kappa) = max over tau >= 0 of Phi(Phi^-1(p) + tau) - kappa tau^2 / 2 bounds the effect of a perturbation of
    length tau sigma, penalised by kappa / (2 sigma^2), on an error of p: the objective is the distributional
    certificate itself.
    """

    sigma: float = 0.25
    kappa: float = 0.3
    draws: int = 8
    share: float = 0.1
    """Share of cross-entropy, without which misclassified examples have no slope."""

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, rng: Noise) -> Loss:
        logits = model((x + self.sigma * rng.normal(x, self.draws)).flatten(0, 1))
        labels = torch.cat([y] * self.draws)
        right = logits.float().softmax(dim=1).gather(1, labels[:, None]).view(self.draws, len(y)).mean(0)
        value = psi(1 - right, self.kappa).mean() + self.share * F.cross_entropy(logits, labels)
        return Loss(value, torch.zeros_like(right))


def psi(p: Tensor, kappa: float, points: int = 256) -> Tensor:
    """Psi(p, kappa) on a grid of distances tau, with its gradient in p; at p = 0 and 1 that of the limit's."""
    u = torch.special.ndtri(p.clamp(1e-6, 1 - 1e-6)).clamp(-PROBIT_LIMIT, PROBIT_LIMIT)
    tau = torch.linspace(0, math.sqrt(2 / kappa), points, device=p.device)
    return (torch.special.ndtr(u[:, None] + tau) - kappa * tau.square() / 2).amax(1)


def regularised_loss(method: Consistency, model: nn.Module, x: Tensor, y: Tensor, rng: Noise) -> Tensor:
    """Cross-entropy of noisy copies with consistency regularization."""
    logits = model((x + method.sigma * rng.normal(x, method.copies)).flatten(0, 1))
    value = F.cross_entropy(logits, torch.cat([y] * method.copies))
    return value + consistency_loss(logits, method.copies, method.agreement)


def noisy_losses(model: nn.Module, x: Tensor, y: Tensor, sigma: float, draws: int, rng: Noise) -> Tensor:
    """Mean cross-entropy of each example over fresh noise, `(n,)`."""
    copies = (x + sigma * rng.normal(x, draws)).flatten(0, 1)
    return label_losses(model, copies, torch.cat([y] * draws)).view(draws, len(y)).mean(0)


def trained_at(model: nn.Module, worst: Tensor, x: Tensor, y: Tensor, sigma: float, draws: int, rng: Noise) -> Loss:
    """Cross-entropy of noisy copies of the maximiser."""
    copies = (worst + sigma * rng.normal(x, draws)).flatten(0, 1)
    return Loss(F.cross_entropy(model(copies), torch.cat([y] * draws)), squared_distance(worst, x))


def within_batch(centre: Tensor, rho: float, share: float) -> StepRule:
    """Steps of share sqrt(rho) along the batch's gradient, kept within mean ||x - centre||^2 <= rho and in [0, 1]."""

    def spread(offset: Tensor) -> Tensor:
        return offset.flatten(1).square().sum(1).mean().sqrt().clamp_min(1e-12)

    def step(point: Tensor, gradient: Tensor, _: int) -> Tensor:
        offset = point + share * rho**0.5 * gradient / spread(gradient) - centre
        offset = offset * (rho**0.5 / spread(offset)).clamp(max=1)
        return (centre + offset).clamp(0, 1)

    return step


def damped(centre: Tensor, penalty: Tensor) -> StepRule:
    """NAL's damped steps 1 / (2 penalty sqrt(k + 1)) for a penalty that is on the device."""

    def step(point: Tensor, gradient: Tensor, number: int) -> Tensor:
        return point + (gradient / (2 * penalty) - (point - centre)) / (number + 1) ** 0.5

    return step


METHODS = (
    *(GaussianSteady, NalAnnealed, NalConsistent, NalFloored, NalMargin, NalMixed, NalRho, NalSteady),
    *(Psi, SmoothadvSteady),
)
# Published configs name these methods `variants:NalRho` and so on, and a run folder's name depends on its config.
sys.modules["variants"] = sys.modules[__name__]
for _method in METHODS:
    _method.__module__ = "variants"
