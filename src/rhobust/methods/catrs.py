"""CAT-RS: confidence-aware training of smoothed classifiers (Jeong, Kim and Shin, 2023)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rhobust.attacks.base import normalise, project_l2
from rhobust.attacks.gradient import ascend
from rhobust.methods.base import Loss, class_of, repeatable
from rhobust.models.inference import frozen
from rhobust.noise import Noise
from rhobust.settings import check_at_least, check_declared, check_positive


@dataclass(frozen=True)
class CATRS:
    """CAT-RS: learn as many noisy copies of an input as the network is confident of, and the worst noise of sure ones.

    With p the fraction of an input's M noisy copies that are classified right, K is binomial (M, p), but at least 1.
    The first term is 1 / M times the sum of the K smallest cross-entropies: an input that is hard under noise need not
    be right for all of it. The second, of inputs with K = M only, is weight times the largest divergence KL(q || F)
    among copies whose noise was attacked within eps, its mean and its root mean square restored after each step; q is
    the mean prediction. The authors' code takes q from a network trained before with Gaussian noise, here it is the
    network's own, without a gradient. The defaults are theirs for CIFAR-10 at sigma 0.25.
    """

    sigma: float = 0.25
    """Standard deviation of the noise."""
    draws: int = 4
    """Noise samples per input, the authors' M."""
    weight: float = 0.5
    """Weight of the worst noise, the authors' lambda; 1 for sigma 0.5, and 2 for sigma 1."""
    eps: float = 1.0
    """L2 radius within which each noise sample is attacked."""
    steps: int = 4
    """Attack steps, of length 2 eps / steps."""

    def __post_init__(self) -> None:
        check_declared(self)
        check_positive(self, "sigma", "weight", "eps")
        check_at_least(1, self, "draws", "steps")

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, rng: Noise) -> Loss:
        noise = self.sigma * rng.normal(x, self.draws)
        # Named streams are normal; their distribution function makes them uniform.
        levels = torch.special.ndtr(rng.normal(x, self.draws).flatten(2)[:, :, 0])
        copies = (x + noise).flatten(0, 1)
        with frozen(model) as network:
            with torch.no_grad():
                mean = network(copies).float().softmax(1).unflatten(0, (self.draws, len(x))).mean(0)
            worst = self.maximise(network, x, noise, mean)
        both = torch.cat([copies, (x + worst).flatten(0, 1)])
        labels, places = torch.cat([y] * self.draws), torch.arange(self.draws, device=x.device)[:, None]

        def outer() -> Loss:
            # One forward pass for both halves, so that batch norm statistics are those of the mixture.
            plain, attacked = model(both).float().chunk(2)
            crosses = F.cross_entropy(plain, labels, reduction="none").unflatten(0, (self.draws, len(x)))
            right = (plain.argmax(1) == class_of(labels)).float().unflatten(0, (self.draws, len(x))).mean(0)
            learned = (levels < right).sum(0).clamp_min(1)
            low = (crosses.sort(0).values * (places < learned)).mean(0)
            high = self.divergences(attacked, mean).amax(0)
            value = (low + self.weight * (learned == self.draws) * high).mean()
            return Loss(value, (worst - noise).flatten(2).square().sum(2).mean(0))

        return repeatable(outer)

    def divergences(self, logits: Tensor, mean: Tensor) -> Tensor:
        """KL(mean || prediction) of each copy, `(draws, n)`."""
        logs = logits.float().log_softmax(1).unflatten(0, (self.draws, len(mean)))
        return F.kl_div(logs, mean.expand_as(logs), reduction="none").sum(2)

    def maximise(self, model: nn.Module, x: Tensor, noise: Tensor, mean: Tensor) -> Tensor:
        """The worst noise near each sample, `(draws, n, ...)`."""
        start, size = noise.flatten(0, 1), 2 * self.eps / self.steps
        repeated = x.repeat(self.draws, *[1] * (x.dim() - 1))

        def step(point: Tensor, gradient: Tensor, _: int) -> Tensor:
            return _like(project_l2(point + size * normalise(gradient), start, self.eps), start)

        end = ascend(
            lambda point: self.divergences(model(repeated + point), mean).flatten(), start, steps=self.steps, step=step
        )
        return end.unflatten(0, noise.shape[:2])


def _like(noise: Tensor, original: Tensor) -> Tensor:
    """The noise with the old mean and root mean square, restored in the order in which the authors do it."""
    axes = tuple(range(1, noise.dim()))
    centred = (noise - noise.mean(axes, keepdim=True)) / noise.square().mean(axes, keepdim=True).sqrt()
    return original.mean(axes, keepdim=True) + centred * original.square().mean(axes, keepdim=True).sqrt()
