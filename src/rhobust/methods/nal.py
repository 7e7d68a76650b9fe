"""Noisy adversarial learning: Algorithm 1 of the paper, the damped inner solver, and best-iterate maximisation."""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from rhobust.attacks.base import l2_step
from rhobust.attacks.gradient import ascend, compile_step, label_losses
from rhobust.methods.base import Loss, best_iterate, noisy_loss, penalised_step
from rhobust.models.inference import for_noisy_copies, frozen
from rhobust.noise import Noise
from rhobust.settings import OMIT_IF_DEFAULT, check_at_least, check_declared, check_positive


@dataclass(frozen=True)
class NAL:
    """Noisy adversarial learning: train on the maximiser of E l(x + z) - gamma ||x - x0||^2 under noise."""

    sigma: float = 0.1
    """Standard deviation of the noise z."""
    gamma: float = 0.5
    """Penalty per unit of squared distance; smaller is more robust."""
    steps: int = 4
    """Inner steps, the paper's K; 0: no attack."""
    draws: int = 4
    """Noise samples per input, the paper's r."""
    inner: Literal["damped", "paper", "search"] = "damped"
    """Inner solver. damped: exact cost gradient 2 (x - x0), steps 1 / (2 gamma sqrt(k + 1)).
    paper: Algorithm 1 verbatim, sampled cost gradient and constant steps.
    search: the soft error 1 - p as the loss, best iterate of an ascent of length 1 / sqrt(gamma)."""
    noise: Literal["fresh", "shared"] = "fresh"
    """fresh: new noise at each inner step and for the weights; shared: the same samples for all."""
    step_size: float | None = None
    """First inner step size, the paper's eta1; default: 0.5 / gamma."""
    agreement: float = field(default=0.0, metadata=OMIT_IF_DEFAULT)
    """Weight of consistency regularization (Jeong and Shin); 10 certifies more at larger radii and less at 0."""

    def __post_init__(self) -> None:
        check_declared(self)
        check_positive(self, "sigma", "gamma", "step_size")
        check_at_least(1, self, "draws")
        if self.step_size is not None and self.inner == "search":
            raise ValueError(f"step_size must be None for the inner solver search, got {self.step_size}")
        check_at_least(0, self, "steps", "agreement")
        if self.agreement and self.draws < 2:
            raise ValueError(f"draws must be >= 2 for consistency regularization, got {self.draws}")

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, rng: Noise) -> Loss:
        shared = self.sigma * rng.normal(x, self.draws) if self.noise == "shared" else None
        worst = x
        if self.steps:
            with frozen(model) as network:
                worst = self.maximise(network, x, y, rng, shared)
        noise = self.sigma * rng.normal(x, self.draws) if shared is None else shared
        copies = (worst + noise).flatten(0, 1)
        return noisy_loss(model, copies, y, draws=self.draws, agreement=self.agreement, worst=worst, x=x)

    def maximise(self, model: nn.Module, x: Tensor, y: Tensor, rng: Noise, shared: Tensor | None = None) -> Tensor:
        """The inner maximiser x_K of Algorithm 1, lines 3 to 6, from x_0 = x; for "search" that of the soft error."""
        labels = torch.cat([y] * self.draws)
        noise, network = shared, for_noisy_copies(model, self.draws)

        def sample() -> Tensor:
            return self.sigma * rng.normal(x, self.draws) if shared is None else shared

        def losses(point: Tensor, z: Tensor) -> Tensor:
            return label_losses(network, (point + z).flatten(0, 1), labels).view(self.draws, len(y))

        if self.inner == "search":
            # Iterates are compared with each other under the same noise.
            held, reach = sample(), self.gamma**-0.5
            return best_iterate(
                lambda point: 1 - losses(point, held).neg().exp().mean(0),
                x,
                gamma=self.gamma,
                steps=self.steps,
                step=compile_step(model, l2_step(x, reach, reach / self.steps)),
            )

        eta = 0.5 / self.gamma if self.step_size is None else self.step_size

        def objective(point: Tensor) -> Tensor:
            nonlocal noise
            noise = sample()
            return losses(point, noise).mean(0)

        def paper_step(point: Tensor, gradient: Tensor, _: int) -> Tensor:
            assert noise is not None
            return point + eta * (gradient - 2 * self.gamma * (point + noise.mean(0) - x))

        # E ||x + z - x0||^2 has the exact gradient 2 (x - x0): sampling z, as in the paper, only adds variance.
        step = penalised_step(x, self.gamma, eta) if self.inner == "damped" else paper_step
        return ascend(objective, x, steps=self.steps, step=step)
