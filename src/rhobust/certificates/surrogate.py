"""The robust surrogate sup_x E l(x + z) - gamma ||x - x0||^2: its value by gradient ascent, and certified bounds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rhobust.bounds import (
    betting_upper,
    concavity_threshold,
    gap_bound,
    gradient_blocks,
    psi,
    squared_gradient_upper,
)
from rhobust.certificates.claim import BoundedLoss, sample_losses
from rhobust.certificates.spec import Smoothing, native_dtype
from rhobust.data import as_float, check_images, check_labels, class_numbers
from rhobust.methods import NAL, WRM
from rhobust.methods.base import squared_distance
from rhobust.models.inference import frozen, output_width
from rhobust.noise import ExampleNoise, Noise, normal_block, stream_key

Losses = Callable[[Tensor, Tensor], Tensor]

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Points between start and end of the ascent that are evaluated."""


@dataclass(frozen=True, slots=True)
class RobustSurrogate:
    """Result of the ascent at each input: an estimate, since the supremum may be larger and the mean is sampled."""

    phi: Tensor
    """E l(x + z) - gamma ||x - x0||^2 at the maximiser, `(n,)`."""
    maximiser: Tensor = field(repr=False)
    """The best point found, of the inputs' shape."""
    distance: Tensor
    """L2 distance of the maximiser from the input, `(n,)`."""


def robust_surrogate(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    gamma: float,
    *,
    sigma: float | None = None,
    steps: int = 15,
    draws: int = 4,
    loss: Losses | None = None,
    rng: Noise | None = None,
) -> RobustSurrogate:
    """Maximise E l(x + z) - gamma ||x - x0||^2 by damped gradient ascent on the cross-entropy.

    If the inner problem is not concave the ascent may overshoot, so the best of a few points between its start and
    its end is taken, and evaluated under fresh noise. Gradients are per example: an example's result does not depend on
    the batch if its noise does not. The paper's phi_gamma has the noise in its cost and is smaller by gamma d sigma^2,
    a constant that cancels in its certificate.

    Args:
        model: The base network, from inputs in [0, 1] to logits.
        x: Inputs, uint8 or float in [0, 1].
        y: Their labels.
        gamma: Penalty per unit of squared distance (dual variable).
        sigma: Noise of the smoothed loss, maximised as damped NAL does; None for WRM's surrogate of the base network.
        steps: Damped steps after the first, full one.
        draws: Noise samples per input, in each step and for the value.
        loss: The loss that is evaluated, from logits and labels to one number per row; default: cross-entropy.
        rng: Noise; default: streams named by the inputs' places.
    """
    x, y, _ = _checked(model, x, y)
    rng = rng or ExampleNoise(0, "surrogate", range(len(x)))
    evaluated_loss = loss or (lambda logits, labels: F.cross_entropy(logits, labels, reduction="none"))
    with frozen(model) as frozen_model:
        if sigma is None:
            end = WRM(gamma, steps).maximise(frozen_model, x, y)
        else:
            end = NAL(sigma, gamma, steps=steps + 1, draws=draws).maximise(frozen_model, x, y, rng)

        def value(point: Tensor, noise: Tensor) -> Tensor:
            copies = (point + noise).flatten(0, 1)
            losses = evaluated_loss(frozen_model(copies), torch.cat([y] * len(noise))).view(len(noise), len(y)).mean(0)
            return losses - gamma * squared_distance(point, x)

        def drawn() -> Tensor:
            return x.new_zeros(1, *x.shape) if sigma is None else sigma * rng.normal(x, draws)

        with torch.no_grad():
            search = drawn()
            reached = torch.stack([value(x + share * (end - x), search) for share in SHARES])
            if reached.isnan().any():
                raise ValueError("losses must be numbers, but the network gave NaN")
            share = reached.new_tensor(SHARES)[reached.argmax(0)].to(x.dtype)
            worst = x + share.view(-1, *[1] * (x.dim() - 1)) * (end - x)
            phi = value(worst, drawn())
    return RobustSurrogate(phi, worst, (worst - x).flatten(1).norm(dim=1))


def _checked(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, int]:
    """The inputs as floats, their labels, and the number of classes."""
    check_images(x)
    x, y = as_float(x), class_numbers(y, x)
    classes = output_width(model, x)
    check_labels(y, classes)
    return x, y, classes


def certified_surrogate(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    gamma: float,
    loss: BoundedLoss,
    *,
    sigma: float,
    alpha: float = 1e-3,
    draws: int = 1000,
    half: int = 500,
    steps: int = 15,
    indices: Sequence[int] | None = None,
    seed: int = 0,
) -> np.ndarray:
    """Upper confidence bounds of sup_x E l(x + z) - gamma ||x - x0||^2 at each input.

    Guarantee: each bound fails with probability at most alpha, for ideal Gaussian noise. It is M Psi(p, kappa) for the
    loss at the input, which holds for every gamma. In the concave regime, gamma > phi(1) M / sigma^2, alpha is shared
    with the gap certificate: the value at the end of an ascent, plus its squared gradient over twice the modulus of
    concavity; the smaller of the two is returned. The gap certificate helps for networks much flatter than the worst
    case, at a gamma well above the threshold; otherwise it costs noise samples and gains nothing.

    Args:
        model: The base network, from inputs in [0, 1] to logits.
        x: Inputs, uint8 or float in [0, 1].
        y: Their labels.
        gamma: Penalty per unit of squared distance (dual variable).
        loss: A loss with values in [0, bound].
        sigma: Standard deviation of the noise.
        alpha: Probability that one input's bound fails.
        draws: Noise samples that bound a smoothed loss.
        half: Noise samples per half block of the gradient's estimate; the number of blocks follows from alpha.
        steps: Steps of the ascent after the first one.
        indices: The inputs' names for the noise; default: their places.
        seed: Random seed.
    """
    x, y, classes = _checked(model, x, y)
    names = range(len(x)) if indices is None else indices
    bound = loss.bound
    dtype = native_dtype(x.device)
    smoothing = Smoothing(sigma, classes, noise="float", seed=seed, dtype=dtype)
    concave = gamma > concavity_threshold(bound, sigma)

    def upper(points: Tensor, purpose: str, level: float) -> np.ndarray:
        found = sample_losses(model, points, y, loss, smoothing, indices=names, draws=draws, purpose=purpose)
        return np.atleast_1d(betting_upper(found.values / bound, level))

    kappa = 2 * gamma * sigma**2 / bound
    direct = bound * np.atleast_1d(psi(upper(x, "surrogate:start", alpha / 2 if concave else alpha), kappa))
    if not concave:
        return direct
    noise = ExampleNoise(seed, "surrogate:ascent", names)
    worst = robust_surrogate(model, x, y, gamma, sigma=sigma, steps=steps, rng=noise).maximiser
    shift = (worst.double() - x.double()).flatten(1)
    value = bound * upper(worst, "surrogate:end", alpha / 4) - gamma * shift.square().sum(1).cpu().numpy()
    pull = 2 * gamma * shift.cpu()
    products = np.stack(
        [
            _products(model, point, label, pull[i], loss, int(names[i]), sigma, gradient_blocks(alpha / 4), half, seed)
            for i, (point, label) in enumerate(zip(worst, y, strict=True))
        ]
    )
    squared = squared_gradient_upper(products, half, x[0].numel(), alpha / 4, bound=bound, sigma=sigma)
    return np.minimum(direct, gap_bound(value, squared, gamma, bound=bound, sigma=sigma))


@torch.no_grad()
def _products(
    model: nn.Module,
    point: Tensor,
    label: Tensor,
    pull: Tensor,
    loss: BoundedLoss,
    index: int,
    sigma: float,
    blocks: int,
    half: int,
    seed: int,
) -> np.ndarray:
    """For each block, the inner product of two independent score-function estimates of the gradient."""
    found = []
    with frozen(model) as frozen_model:
        for block in range(blocks):
            estimates = []
            for side in range(2):
                key = stream_key(seed, "surrogate:gradient", index, block, side)
                z = normal_block(key, (half, *point.shape), point.device)
                values = loss(frozen_model(point + sigma * z), label.expand(half)).double()
                score = ((values - loss.bound / 2) @ z.flatten(1).double()) / (half * sigma)
                estimates.append(score.cpu() - pull)
            found.append(float(estimates[0] @ estimates[1]))
    return np.array(found)
