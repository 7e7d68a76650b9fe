"""SmoothMix: mixing inputs with adversarial examples of the smoothed classifier (Jeong et al., 2021)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rhobust.attacks.base import normalise
from rhobust.attacks.gradient import ascend, smoothed_loss
from rhobust.methods.base import Loss, class_of, repeatable, squared_distance
from rhobust.models.inference import frozen
from rhobust.noise import DrawnNoise, Noise, noisy_copies
from rhobust.settings import check_at_least, check_declared, check_positive


@dataclass(frozen=True)
class SmoothMix:
    """SmoothMix: cross-entropy on noisy copies, plus a divergence at mixtures with adversarial examples.

    For an input x with the mean prediction q, its adversarial example x' and lambda uniform in [0, 1/2], noisy copies
    of (1 - lambda) x + lambda x' are to predict (1 - lambda) q + lambda u, where u is uniform over the classes. Inputs
    that q gets wrong have no such term. The attack has no ball: its steps have a fixed length, inside [0, 1]. All
    noise samples are shared. The authors raise the weight over the first ten epochs; here it is constant. The defaults
    are theirs for CIFAR-10 at sigma 0.25.
    """

    sigma: float = 0.25
    """Standard deviation of the noise."""
    steps: int = 4
    """Attack steps, the authors' T."""
    step_size: float = 0.5
    """Length of an attack step, the authors' alpha; 1 for sigma 0.5, and 2 for sigma 1."""
    draws: int = 2
    """Noise samples per input, the authors' m."""
    weight: float = 5.0
    """Weight of the divergence, the authors' eta."""
    one_step: bool = False
    """Take the adversarial example after the first step in place of x, as the authors' second variant."""

    def __post_init__(self) -> None:
        check_declared(self)
        check_positive(self, "sigma", "step_size", "weight")
        check_at_least(1, self, "steps", "draws")

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, rng: Noise) -> Loss:
        drawn = DrawnNoise(rng.normal(x, self.draws))
        # Named streams are normal; their distribution function makes them uniform.
        level = rng.normal(x, 1)[0].flatten(1)[:, :1]
        fraction = 0.25 * (1 + (level / 2**0.5).erf())
        with frozen(model) as network:
            near = self.maximise(network, x, y, drawn, 1) if self.one_step else x
            worst = self.maximise(network, x, y, drawn, self.steps)
        mixed = torch.lerp(near, worst, fraction.view(-1, *[1] * (x.dim() - 1)))
        # One forward pass for both halves, so that batch norm statistics are those of the mixture.
        copies = torch.cat([noisy_copies(point, self.sigma, self.draws, drawn) for point in (near, mixed)])

        def outer() -> Loss:
            clean, between = model(copies).float().chunk(2)
            mean = clean.softmax(1).unflatten(0, (self.draws, len(x))).mean(0)
            target = (1 - fraction) * mean + fraction / mean.shape[1]
            right = (mean.argmax(1) == class_of(y)).float()
            targets = torch.cat([target] * self.draws)
            divergence = F.kl_div(between.log_softmax(1), targets, reduction="none").sum(1)
            value = F.cross_entropy(clean, torch.cat([y] * self.draws))
            value = value + self.weight * (torch.cat([right] * self.draws) * divergence).mean()
            return Loss(value, squared_distance(worst, x))

        return repeatable(outer)

    def maximise(self, model: nn.Module, x: Tensor, y: Tensor, rng: Noise, steps: int) -> Tensor:
        """The adversarial examples of the smoothed classifier, at most steps * step_size away."""
        return ascend(
            lambda point: smoothed_loss(model, point, y, sigma=self.sigma, draws=self.draws, rng=rng),
            x,
            steps=steps,
            step=lambda point, gradient, _: (point + self.step_size * normalise(gradient)).clamp(0, 1),
        )
