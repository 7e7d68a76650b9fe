"""The block that ResNet and VGG are made of."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_LANES = 8
"""Input channels that a GPU's convolution kernels come in; an image's three fall through to a slow one."""


class ConvNorm(nn.Module):
    """A convolution and its batch norm; in evaluation mode the two are one convolution.

    Inner loops, attacks and certificates run in evaluation mode, where batch norm is a fixed scale and shift of each
    channel. Scaling the weights instead of every activation gives the same function.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, *, bias: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=bias)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return self.norm(self._convolve(x, self.conv.weight, self.conv.bias))
        mean, variance = self.norm.running_mean, self.norm.running_var
        assert mean is not None
        assert variance is not None
        scale = self.norm.weight * torch.rsqrt(variance + self.norm.eps)
        shift = self.norm.bias - mean * scale
        if self.conv.bias is not None:
            shift = shift + self.conv.bias * scale
        return self._convolve(x, self.conv.weight * scale[:, None, None, None], shift)

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        missing = _LANES - weight.shape[1]
        if x.is_cuda and missing > 0:
            x, weight = (F.pad(tensor, (0, 0, 0, 0, 0, missing)) for tensor in (x, weight))
        return F.conv2d(x, weight, bias, self.conv.stride, self.conv.padding)
