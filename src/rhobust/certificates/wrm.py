"""WRM's certificate (Sinha et al., 2018): worst-case cross-entropy of a smooth base network, without noise."""

import copy
import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rhobust.data import as_float, check_images, class_numbers
from rhobust.foreign import Foreign
from rhobust.methods import WRM
from rhobust.methods.base import squared_distance
from rhobust.models.build import Normalised
from rhobust.models.fused import ConvNorm
from rhobust.models.inference import frozen

SLACK = 1 + 1e-9
"""Norms are computed in float64 and raised by this much."""


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
    with Foreign("the network must have a copy in float64, but making it raised"):
        network = copy.deepcopy(model).double()
    start = x.double()
    with frozen(network) as frozen_model:
        point = WRM(gamma, steps).maximise(frozen_model, start, y).requires_grad_()
        value = F.cross_entropy(frozen_model(point), y, reduction="none") - gamma * squared_distance(point, start)
        with Foreign("the network's gradient raised", point):
            (gradient,) = torch.autograd.grad(value.sum(), point)
    return (value + gradient.flatten(1).square().sum(1) / (2 * modulus)).detach().cpu().numpy()
