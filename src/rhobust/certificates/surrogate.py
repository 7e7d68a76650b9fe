"""The robust surrogate sup_x E l(x + z) - gamma ||x - x0||^2: its value by gradient ascent, and certified bounds.

Also that of WRM (Sinha et al., 2018): worst-case cross-entropy of a smooth base network, without noise.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rhobust.bounds import betting_upper, concavity_threshold, gap_bound, gradient_blocks, psi, squared_gradient_upper
from rhobust.certificates.losses import BoundedLoss, sample_losses
from rhobust.certificates.spec import Smoothing, native_dtype
from rhobust.data import as_float, check_images, check_labels, class_numbers
from rhobust.methods import NAL, WRM
from rhobust.methods.base import squared_distance
from rhobust.models.fused import ConvNorm
from rhobust.models.inference import frozen, output_width
from rhobust.models.networks import Normalised
from rhobust.noise import ExampleNoise, Noise, normal_block, stream_key
from rhobust.user_code import UserCode

Losses = Callable[[Tensor, Tensor], Tensor]

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Points between start and end of the ascent that are evaluated."""
SLACK = 1 + 1e-9
"""Norms are computed in float64 and raised by this much."""


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


def loss_smoothness(model: nn.Module, shape: tuple[int, int, int]) -> float:
    """A Lipschitz constant of the input gradient of the cross-entropy, for networks with smooth activations.

    Layer by layer, a map with Lipschitz constant l and gradient Lipschitz constant s behind one with (L, S) gives
    l L and l S + s L^2. A dense layer has its spectral norm, a convolution at most that of the circular one on a larger
    torus (zero padding restricts it, a stride drops rows of it), ELU has (1, 1). The cross-entropy of logits has a
    gradient of norm at most sqrt(2) and a Hessian of norm at most 1/2.

    Args:
        model: A network of this package's `cnn` kind: a sequence of convolutions, dense layers and ELUs.
        shape: Channels, height and width of an input.

    Raises:
        ValueError: The network has a non-smooth layer (ReLU, max pooling) or one whose norms are not known here.
    """
    lipschitz, smooth = 1.0, 0.0
    current = torch.zeros(1, *shape, dtype=torch.float64)
    with torch.no_grad(), frozen(model):
        for layer in _layers(model):
            norm, bend = _norms(layer, current)
            lipschitz, smooth = norm * lipschitz, norm * smooth + bend * lipschitz**2
            current = _double(layer)(current)
    return (math.sqrt(2) * smooth + 0.5 * lipschitz**2) * SLACK


def _layers(model: nn.Module) -> list[nn.Module]:
    """The layers of a sequence, in order."""
    if isinstance(model, Normalised):
        return [_NormaliserLayer(model), *_layers(model.network)]
    if isinstance(model, nn.Sequential):
        return [layer for child in model for layer in _layers(child)]
    if isinstance(model, ConvNorm) and model.activation is not None:
        linear = copy.deepcopy(model)
        linear.activation = None
        return [linear, model.activation]
    return [model]


class _NormaliserLayer(nn.Module):
    """The normaliser of a network."""

    def __init__(self, model: Normalised) -> None:
        super().__init__()
        self.mean, self.deviation = model.mean, model.deviation

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean.double().cpu()) / self.deviation.double().cpu()


def _double(layer: nn.Module) -> nn.Module:
    return copy.deepcopy(layer).double().cpu().eval()


def _norms(layer: nn.Module, x: Tensor) -> tuple[float, float]:
    """Lipschitz constants of a layer and of its gradient, at inputs of the shape of x."""
    if isinstance(layer, _NormaliserLayer):
        return float((1 / layer.deviation.double()).max()), 0.0
    if isinstance(layer, nn.Flatten | nn.Identity | nn.Dropout):
        return 1.0, 0.0
    if isinstance(layer, nn.Linear):
        return float(torch.linalg.matrix_norm(layer.weight.double().cpu(), 2)) * SLACK, 0.0
    if isinstance(layer, ConvNorm):
        return _convolution_norm(copy.deepcopy(layer).double().folded()[0], x, layer.conv), 0.0
    if isinstance(layer, nn.Conv2d) and layer.groups == 1 and layer.padding_mode == "zeros":
        return _convolution_norm(layer.weight, x, layer), 0.0
    if isinstance(layer, nn.ELU) and layer.alpha == 1.0:
        return 1.0, 1.0
    name = type(layer).__name__
    reason = " is not smooth" if isinstance(layer, nn.ReLU | nn.MaxPool2d) else "'s norms are not known"
    raise ValueError(f"the network must be smooth for WRM's certificate, but its {name}{reason}")


def _convolution_norm(weight: Tensor, x: Tensor, like: nn.Conv2d) -> float:
    """The largest singular value over all frequencies of a torus that holds the padded input and one kernel more."""
    assert isinstance(like.padding, tuple)
    reach = [(k - 1) * d + 1 for k, d in zip(like.kernel_size, like.dilation, strict=True)]
    size = [n + 2 * p + k - 1 for n, p, k in zip(x.shape[2:], like.padding, reach, strict=True)]
    kernel = weight.double().cpu()
    spread = kernel.new_zeros(*kernel.shape[:2], *reach)
    spread[:, :, :: like.dilation[0], :: like.dilation[1]] = kernel
    transfer = torch.fft.rfft2(spread, s=size).permute(2, 3, 0, 1)
    return float(torch.linalg.matrix_norm(transfer, 2).max()) * SLACK


def wrm_surrogate(
    model: nn.Module, x: Tensor, y: Tensor, gamma: float, *, smoothness: float, steps: int = 15
) -> np.ndarray:
    """Upper bounds of sup_x l(x) - gamma ||x - x0||^2 for the base network's cross-entropy, without noise.

    For 2 gamma > L the objective is strongly concave with modulus 2 gamma - L, so the value at any point, plus the
    squared gradient over twice the modulus, bounds it. gamma rho plus the mean of these bounds the mean loss under
    every distribution within W2 distance sqrt(rho) of the inputs. Computed in float64, without a bound of its rounding.

    Args:
        model: The base network, smooth, from inputs in [0, 1] to logits.
        x: Inputs, uint8 or float in [0, 1].
        y: Their labels.
        gamma: Penalty per unit of squared distance (dual variable).
        smoothness: L, as `loss_smoothness` gives it.
        steps: Damped steps of the ascent after the first one.
    """
    check_images(x)
    x, y = as_float(x), class_numbers(y, x)
    modulus = 2 * gamma - smoothness
    if not modulus > 0:
        raise ValueError(f"gamma must exceed half the smoothness, {smoothness / 2:.6g}, got {gamma:.6g}")
    with UserCode("the network must have a copy in float64, but making it raised"):
        network = copy.deepcopy(model).double()
    start = x.double()
    with frozen(network) as frozen_model:
        point = WRM(gamma, steps).maximise(frozen_model, start, y).requires_grad_()
        value = F.cross_entropy(frozen_model(point), y, reduction="none") - gamma * squared_distance(point, start)
        with UserCode("the network's gradient raised", point):
            (gradient,) = torch.autograd.grad(value.sum(), point)
    return (value + gradient.flatten(1).square().sum(1) / (2 * modulus)).detach().cpu().numpy()
