"""Layers that are faster than the plain ones, and the same functions."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_LANES = 16
"""Input channels that a GPU's convolution kernels come in; an image's three fall through to a slow one."""


class InputConv(nn.Conv2d):
    """The convolution that an image enters.

    Inner loops need the gradient in the image. On a CPU the library's transposed convolution for few input channels
    and a stride is five times slower than the same thing as a matrix product over patches.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, padding: int = 0) -> None:
        super().__init__(inputs, outputs, kernel, stride, padding)
        self.geometry = kernel, stride, padding

    def forward(self, input: Tensor) -> Tensor:
        if input.device.type != "cpu" or not input.requires_grad:
            return super().forward(input)
        kernel, stride, padding = self.geometry
        patches = F.unfold(input, kernel, padding=padding, stride=stride).transpose(1, 2)
        flat = F.linear(patches, self.weight.flatten(1), self.bias)
        height = (input.shape[2] + 2 * padding - kernel) // stride + 1
        return flat.unflatten(1, (height, -1)).permute(0, 3, 1, 2)


class ConvNorm(nn.Module):
    """A convolution, its batch norm and what follows: a shortcut to add, an activation.

    Inner loops, attacks and certificates run in evaluation mode, where batch norm is a fixed scale and shift of each
    channel. Scaling the weights instead of every activation gives the same function.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        stride: int = 1,
        *,
        bias: bool = False,
        activation: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=bias)
        self.norm = nn.BatchNorm2d(outputs)
        self.activation = activation

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        if self.training:
            y = self.norm(_convolve(x, self.conv.weight, self.conv.bias, self.conv))
        else:
            y = _convolve(x, *self.folded(), self.conv)
        return _finish(y, shortcut, self.activation)

    def folded(self) -> tuple[Tensor, Tensor]:
        """Weights and bias of the one convolution that this is in evaluation mode."""
        mean, variance = self.norm.running_mean, self.norm.running_var
        assert mean is not None
        assert variance is not None
        scale = self.norm.weight * torch.rsqrt(variance + self.norm.eps)
        shift = self.norm.bias - mean * scale
        if self.conv.bias is not None:
            shift = shift + self.conv.bias * scale
        return self.conv.weight * scale[:, None, None, None], shift


class Folded(nn.Module):
    """A ConvNorm's evaluation mode with weights of its own, to be refreshed from it."""

    weight: Tensor
    bias: Tensor

    def __init__(self, source: ConvNorm, dtype: torch.dtype) -> None:
        super().__init__()
        self.stride, self.padding = source.conv.stride, source.conv.padding
        self.activation = source.activation
        with torch.no_grad():
            weight, bias = source.folded()
        self.register_buffer("weight", weight.to(dtype, memory_format=torch.channels_last))
        self.register_buffer("bias", bias.to(dtype))

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        if isinstance(self.activation, nn.ReLU):
            x, weight = _widen(x.to(self.weight.dtype), self.weight)
            return convolve_relu(x, weight, self.bias, shortcut, list(self.stride), list(self.padding))
        return _finish(_convolve(x, self.weight, self.bias, self), shortcut, self.activation)


@torch.library.custom_op("rhobust::convolve_relu", mutates_args=())
def convolve_relu(
    x: Tensor, weight: Tensor, bias: Tensor, shortcut: Tensor | None, stride: list[int], padding: list[int]
) -> Tensor:
    """relu(convolution + bias + shortcut), channels last; gradients in x and shortcut alone.

    On a GPU one kernel does it all: the activations are written once instead of twice.
    """
    x = x.contiguous(memory_format=torch.channels_last)
    if not x.is_cuda:
        y = F.conv2d(x, weight, bias, stride, padding)
        return (y if shortcut is None else y + shortcut).relu().contiguous(memory_format=torch.channels_last)
    if shortcut is None:
        return torch.cudnn_convolution_relu(x, weight, bias, stride, padding, (1, 1), 1)
    shortcut = shortcut.contiguous(memory_format=torch.channels_last)
    return torch.cudnn_convolution_add_relu(x, weight, shortcut, 1.0, bias, stride, padding, (1, 1), 1)


@convolve_relu.register_fake
def _convolve_relu_shape(
    x: Tensor, weight: Tensor, bias: Tensor, shortcut: Tensor | None, stride: list[int], padding: list[int]
) -> Tensor:
    sides = [
        (side + 2 * margin - kernel) // step + 1
        for side, margin, kernel, step in zip(x.shape[2:], padding, weight.shape[2:], stride, strict=True)
    ]
    return x.new_empty(x.shape[0], weight.shape[0], *sides).contiguous(memory_format=torch.channels_last)


def _keep_for_gradient(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, shortcut, ctx.stride, ctx.padding = inputs
    ctx.adds = shortcut is not None
    ctx.save_for_backward(x, weight, output)


def _convolve_relu_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, output = ctx.saved_tensors
    gradient = torch.where(output > 0, gradient, 0)
    (moved, _, _) = torch.ops.aten.convolution_backward(
        gradient, x, weight, None, ctx.stride, ctx.padding, (1, 1), False, (0, 0), 1, (True, False, False)
    )
    return moved, None, None, gradient if ctx.adds else None, None, None


convolve_relu.register_autograd(_convolve_relu_gradient, setup_context=_keep_for_gradient)


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None, like: nn.Conv2d | Folded) -> Tensor:
    return F.conv2d(*_widen(x, weight), bias, like.stride, like.padding)


def _widen(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """An image's few channels filled up with zeros where the kernels come in lanes."""
    missing = _LANES - weight.shape[1]
    if x.is_cuda and missing > 0:
        x, weight = (F.pad(tensor, (0, 0, 0, 0, 0, missing)) for tensor in (x, weight))
    return x, weight


def _finish(y: Tensor, shortcut: Tensor | None, activation: nn.Module | None) -> Tensor:
    if shortcut is not None:
        y = y + shortcut
    return y if activation is None else activation(y)


class StandIn:
    """A copy of a network for inner loops: evaluation mode, no gradients in the weights, batch norm folded, one dtype.

    It answers as the network does in evaluation mode at its last `refresh`.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self.network = copy.deepcopy(model).eval().requires_grad_(False)
        self.folds: list[tuple[ConvNorm, Folded]] = []
        self.copies: list[tuple[Tensor, Tensor]] = []
        self._replace(model, self.network, dtype)

    def _replace(self, source: nn.Module, target: nn.Module, dtype: torch.dtype) -> None:
        for name, child in source.named_children():
            if isinstance(child, ConvNorm):
                folded = Folded(child, dtype)
                setattr(target, name, folded)
                self.folds.append((child, folded))
            else:
                self._replace(child, getattr(target, name), dtype)
        for name, parameter in source.named_parameters(recurse=False):
            own = nn.Parameter(parameter.detach().to(dtype), requires_grad=False)
            setattr(target, name, own)
            self.copies.append((parameter, own))

    def refresh(self) -> None:
        """Take over the network's weights and statistics as they are now."""
        with torch.no_grad():
            for source, target in self.folds:
                weight, bias = source.folded()
                target.weight.copy_(weight)
                target.bias.copy_(bias)
            for source, target in self.copies:
                target.copy_(source)
