"""A strided convolution with a quarter of the multiplications, for votes on a CPU."""

from fractions import Fraction
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn

_TAPS, _SIDE = 3, 5
"""Taps of a filter in one dimension, and outputs that one transform covers."""
_POINTS = (0, 1, -1, -2, Fraction(1, 2), Fraction(-1, 2))
"""Where polynomials are evaluated, besides infinity: small integers and halves keep float32's rounding small."""
_ROWS = 64
"""Inputs that are transformed at once: what they need stays in the cache."""


class StridedConv(nn.Conv2d):
    """A 6x6 convolution of stride 2; with 14x14 inputs, on a CPU and without gradients, by minimal filtering.

    The four parities of rows and columns make it a 3x3 convolution of stride 1 with four times the channels, whose 5x5
    outputs are one tile of Winograd's algorithm F(5x5, 3x3) (Lavin and Gray, 2016): 49 products of matrices instead of
    225. In float32 the rounding error is about nine times that of torch's convolution in the mean, 1e-5 of the outputs'
    spread: far below what a batch-dependent network is recognised by.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 2 * _TAPS, stride=2)

    def forward(self, input: Tensor) -> Tensor:
        graded = torch.is_grad_enabled() and (input.requires_grad or self.weight.requires_grad)
        wide = input.dtype == self.weight.dtype and input.dtype in (torch.float32, torch.float64)
        whole = input.shape[2:] == (2 * (_SIDE + _TAPS - 1),) * 2
        if input.device.type != "cpu" or graded or not wide or not whole or torch.is_autocast_enabled("cpu"):
            return super().forward(input)
        of_inputs, of_weights, of_outputs = (matrix.to(input.dtype) for matrix in _transforms())
        taps = self.weight.unflatten(3, (_TAPS, 2)).unflatten(2, (_TAPS, 2)).permute(2, 4, 3, 5, 1, 0)
        weights = (of_weights @ taps.reshape(_TAPS**2, -1)).view(len(of_weights), -1, self.out_channels)
        half, outputs = (_SIDE + _TAPS - 1, 2), input.new_empty(len(input), _SIDE**2, self.out_channels)
        for some, to in zip(input.permute(0, 2, 3, 1).split(_ROWS), outputs.split(_ROWS), strict=True):
            parities = some.unflatten(2, half).unflatten(1, half).transpose(2, 3).flatten(3).flatten(1, 2)
            products = torch.bmm((of_inputs @ parities).transpose(0, 1), weights).flatten(1)
            to.copy_((of_outputs @ products).view(_SIDE**2, len(some), -1).transpose(0, 1))
        if self.bias is not None:
            outputs += self.bias
        return outputs.unflatten(1, (_SIDE, _SIDE)).permute(0, 3, 1, 2)


@lru_cache(maxsize=1)
def _transforms() -> tuple[Tensor, Tensor, Tensor]:
    """The matrices that transform inputs, filters and products, for both dimensions at once, in float64.

    Toom and Cook: a polynomial of degree 6 is known by its values at seven points, where a product of polynomials is a
    product of numbers. Transposed, products become correlations.
    """
    size = _SIDE + _TAPS - 1
    inverse = np.linalg.inv(_powers(size))
    filters = _powers(_TAPS)
    scale = np.abs(filters).max(axis=1, keepdims=True)
    one = inverse.T * scale, filters / scale, _powers(_SIDE).T
    of_inputs, of_filters, of_outputs = (torch.from_numpy(np.kron(matrix, matrix)) for matrix in one)
    return of_inputs, of_filters, of_outputs


def _powers(length: int) -> np.ndarray:
    """Powers of the points, from 0 on; at infinity a polynomial is its last coefficient."""
    infinity = [float(power == length - 1) for power in range(length)]
    return np.array([[float(point**power) for power in range(length)] for point in _POINTS] + [infinity])
