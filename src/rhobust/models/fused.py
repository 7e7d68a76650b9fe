"""Faster equivalents of standard layers: fused convolutions, with batch norm folded where it is fixed."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rhobust.models.operators import PATCH, convolve_pixels, convolve_relu, patches, product_relu

_LANES = 16
"""Channel multiple of a GPU's fast convolution kernels; an image's three channels would select a slow one."""


class InputConv(nn.Conv2d):
    """The first convolution of a network.

    Inner loops need the gradient with respect to the image. On a CPU torch's transposed convolution for few input
    channels and a stride is five times slower than a matrix product over patches. There a grey image is in both
    layouts: with the strides of channels last the next convolution need not copy its inputs.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, padding: int = 0) -> None:
        super().__init__(inputs, outputs, kernel, stride, padding)
        self.geometry = kernel, stride, padding

    def forward(self, input: Tensor) -> Tensor:
        if input.device.type != "cpu":
            return super().forward(input)
        if not input.requires_grad:
            grey = input.shape[1] == 1
            return super().forward(input[:, 0].unsqueeze(-1).permute(0, 3, 1, 2) if grey else input)
        kernel, stride, padding = self.geometry
        patches = F.unfold(input, kernel, padding=padding, stride=stride).transpose(1, 2)
        flat = F.linear(patches, self.weight.flatten(1), self.bias)
        height = (input.shape[2] + 2 * padding - kernel) // stride + 1
        return flat.unflatten(1, (height, -1)).permute(0, 3, 1, 2)


class WholeConv(nn.Conv2d):
    """A convolution whose kernel may cover its whole input: on a CPU it then runs as a dense layer.

    Forward and backward take a third of the time.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int) -> None:
        super().__init__(inputs, outputs, kernel)

    def forward(self, input: Tensor) -> Tensor:
        if input.device.type != "cpu" or input.shape[2:] != self.weight.shape[2:]:
            return super().forward(input)
        # Channels last, as inputs and weights are.
        flat, weight = (tensor.permute(0, 2, 3, 1).flatten(1) for tensor in (input, self.weight))
        return F.linear(flat, weight, self.bias)[:, :, None, None]


class ConvNorm(nn.Module):
    """A convolution with batch norm, an optional shortcut and an activation.

    Inner loops, attacks and certificates run in evaluation mode, where batch norm is a fixed scale and shift of each
    channel. Scaling the weights instead of the activations gives the same function.
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
        """Weights and bias of the equivalent convolution in evaluation mode."""
        return fold(self.conv, self.norm)


def fold(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Weights and bias of a convolution that is followed by batch norm in evaluation mode."""
    mean, variance = norm.running_mean, norm.running_var
    assert mean is not None
    assert variance is not None
    scale = torch.rsqrt(variance + norm.eps)
    scale = scale if norm.weight is None else norm.weight * scale
    shift = -mean * scale if norm.bias is None else norm.bias - mean * scale
    if conv.bias is not None:
        shift = shift + conv.bias * scale
    return conv.weight * scale[:, None, None, None], shift


class Foldable(Protocol):
    """A convolution, its batch norm and what follows."""

    conv: nn.Conv2d
    activation: nn.Module | None

    def folded(self) -> tuple[Tensor, Tensor]:
        """Weights and bias of the equivalent convolution in evaluation mode."""
        ...


def copy_all(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Copy the first tensor of each pair to the second one; a compiler makes one kernel of those of equal dtypes."""
    # On a GPU some releases of torch write every target of a call in the dtype of the first one.
    groups: dict[tuple[torch.dtype, torch.dtype], list[tuple[Tensor, Tensor]]] = {}
    for source, target in pairs:
        groups.setdefault((source.dtype, target.dtype), []).append((source, target))
    for group in groups.values():
        sources, targets = zip(*group, strict=True)
        torch._foreach_copy_(targets, sources)


class Residual(nn.Module):
    """Residual block: two convolutions and a shortcut, which may be a convolution."""

    def __init__(self, first: ConvNorm, second: ConvNorm, shortcut: nn.Module) -> None:
        super().__init__()
        self.first, self.second, self.shortcut = first, second, shortcut

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x), self.shortcut(x))


class Folded(nn.Module):
    """A convolution with batch norm in evaluation mode, with folded weights, refreshed from the original."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, source: Foldable, dtype: torch.dtype, *, shortcut: Foldable | None = None) -> None:
        """Fold a convolution and its batch norm.

        Args:
            source: The original.
            dtype: Dtype of the folded weights.
            shortcut: A convolution whose output is added without its bias; the bias is added here.
        """
        super().__init__()
        self.sources = (source,) if shortcut is None else (source, shortcut)
        self.stride, self.padding = source.conv.stride, source.conv.padding
        self.dilation, self.groups = source.conv.dilation, source.conv.groups
        self.activation = source.activation
        self.copies = 1
        """Noisy copies of each image among the inputs; of more than one, each gets the mean of their gradients."""
        like = source.conv.weight.detach()
        self.register_buffer("weight", torch.empty_like(like, dtype=dtype, memory_format=torch.channels_last))
        self.register_buffer("bias", like.new_empty(len(like), dtype=dtype))
        with torch.no_grad():
            copy_all(self.present())

    def present(self) -> list[tuple[Tensor, Tensor]]:
        """The current weights and bias, folded, each with the tensor that it is to be copied to."""
        (weight, bias), *others = (source.folded() for source in self.sources)
        found = [(weight, self.weight)]
        if self.bias is not None:
            found.append((sum((shift for _, shift in others), start=bias), self.bias))
        return found

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        if not isinstance(self.activation, nn.ReLU):
            single = self.weight.shape[2:] == (1, 1) and self.stride != (1, 1)
            if single and self.padding == (0, 0) and self.groups == 1:
                y = convolve_pixels(x.to(self.weight.dtype), self.weight, self.bias, list(self.stride))
            else:
                y = _convolve(x, self.weight, self.bias, self)
            return _finish(y, shortcut, self.activation)
        assert self.bias is not None
        x = x.to(self.weight.dtype)
        if shortcut is None and self.reads_patches:
            return self._over_patches(x)
        if self.groups == 1:
            x, weight = _widen(x, self.weight)
        else:
            weight = self.weight
        shape = [*self.stride, *self.padding, *self.dilation, self.groups]
        return convolve_relu(x, weight, self.bias, shortcut, shape)

    @property
    def reads_patches(self) -> bool:
        """Whether, without a shortcut, it is a matrix product over patches, as the first convolution mostly is."""
        plain = self.stride == self.dilation == (1, 1) and self.groups == 1
        return isinstance(self.activation, nn.ReLU) and plain and self.weight[0].numel() <= PATCH

    def _over_patches(self, x: Tensor) -> Tensor:
        """The first convolution as a matrix product over patches: a third of the time of one padded to 16 channels."""
        found = patches(x, list(self.weight.shape[2:]), list(self.padding))
        weight = F.pad(self.weight.flatten(1), (0, PATCH - self.weight[0].numel()))
        y = product_relu(found.flatten(0, 2), weight, self.bias, self.copies)
        return y.unflatten(0, found.shape[:3]).permute(0, 3, 1, 2)


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None, like: nn.Conv2d | Folded) -> Tensor:
    if like.groups == 1:
        x, weight = _widen(x, weight)
    return F.conv2d(x, weight, bias, like.stride, like.padding, like.dilation, like.groups)


def _widen(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Pad the channels of an image with zeros on a GPU, whose fast kernels need a multiple of `_LANES`."""
    # Large kernels have enough numbers per channel: half as many channels suffice.
    missing = (_LANES if weight.shape[2] <= 3 else _LANES // 2) - weight.shape[1]
    if x.is_cuda and missing > 0:
        x, weight = (F.pad(tensor, (0, 0, 0, 0, 0, missing)) for tensor in (x, weight))
    return x, weight


def _finish(y: Tensor, shortcut: Tensor | None, activation: nn.Module | None) -> Tensor:
    if shortcut is not None:
        y = y + shortcut
    return y if activation is None else activation(y)
