"""Operators of the fused layers, with their gradients: patches of an image, and convolutions that end in a ReLU."""

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

PATCH = 32
"""Largest patch size for which a convolution is faster as a matrix product; smaller patches are padded to it."""


@torch.library.custom_op("rhobust::patches", mutates_args=())
def patches(x: Tensor, kernel: list[int], padding: list[int]) -> Tensor:
    """The image patches of a convolution with stride 1, `(n, rows, columns, PATCH)`, filled up with zeros."""
    if x.is_cuda and (of_images := _patches_kernel()) is not None:
        return of_images(x, kernel, padding, PATCH)
    return _plain_patches(x, kernel, padding)


def _plain_patches(x: Tensor, kernel: list[int], padding: list[int]) -> Tensor:
    (high, wide), (above, left) = kernel, padding
    windows = F.pad(x, (left, left, above, above)).unfold(2, high, 1).unfold(3, wide, 1)
    found = windows.permute(0, 2, 3, 1, 4, 5).flatten(3)
    return F.pad(found, (0, PATCH - found.shape[3]))


@lru_cache(maxsize=1)
def _patches_kernel() -> Callable[..., Tensor] | None:
    """The kernel, tried once; None where Triton cannot compile it."""
    try:
        of_images: Callable[..., Tensor] = import_module("rhobust.models.patches_kernel").image_patches
        x = torch.arange(2 * 3 * 5 * 4, device="cuda").view(2, 3, 5, 4).to(torch.bfloat16)
        found = of_images(x, [3, 3], [1, 1], PATCH)
    except Exception:  # whatever a compiler raises: then torch computes the same
        return None
    return of_images if torch.equal(found, _plain_patches(x, [3, 3], [1, 1])) else None


@patches.register_fake
def _patches_shape(x: Tensor, kernel: list[int], padding: list[int]) -> Tensor:
    rows, columns = (side + 2 * zeros - of + 1 for side, zeros, of in zip(x.shape[2:], padding, kernel, strict=True))
    return x.new_empty(x.shape[0], rows, columns, PATCH)


def _keep_patches(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, ctx.kernel, ctx.padding = inputs
    ctx.channels = x.shape[1]


def _patches_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    """Torch's gradient of unfold scatters numbers one at a time; this is a sum of shifted images."""
    (high, wide), (above, left) = ctx.kernel, ctx.padding
    parts = gradient[..., : ctx.channels * high * wide].unflatten(3, (ctx.channels, high, wide))
    shifted = (
        F.pad(parts[..., row, column], (0, 0, column, wide - 1 - column, row, high - 1 - row))
        for row in range(high)
        for column in range(wide)
    )
    whole = sum(shifted, start=torch.zeros((), dtype=gradient.dtype, device=gradient.device))
    inner = whole[:, above : whole.shape[1] - above, left : whole.shape[2] - left]
    return inner.permute(0, 3, 1, 2), None, None


patches.register_autograd(_patches_gradient, setup_context=_keep_patches)


@torch.library.custom_op("rhobust::product_relu", mutates_args=())
def product_relu(x: Tensor, weight: Tensor, bias: Tensor, copies: int) -> Tensor:
    """relu(x weight' + bias), `(n, outputs)`, with a gradient for x only; one kernel on a GPU.

    Args:
        x: Inputs, `(n, inputs)`.
        weight: `(outputs, inputs)`.
        bias: `(outputs,)`.
        copies: Of how many copies of the same inputs plus noise x consists, one after the other. Where the gradients of
            the copies will be added up, this is done before their product with the weights, once instead of for each:
            every copy gets their mean.
    """
    return torch._addmm_activation(bias, x, weight.t())


@product_relu.register_fake
def _product_relu_shape(x: Tensor, weight: Tensor, bias: Tensor, copies: int) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


def _keep_product(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.copies = inputs[3]
    ctx.save_for_backward(inputs[1], output)


def _product_relu_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
    weight, output = ctx.saved_tensors
    masked = torch.where(output > 0, gradient, 0)
    if ctx.copies > 1:
        mean = masked.unflatten(0, (ctx.copies, -1)).mean(0)
        return (mean @ weight).expand(ctx.copies, -1, -1).flatten(0, 1), None, None, None
    return masked @ weight, None, None, None


product_relu.register_autograd(_product_relu_gradient, setup_context=_keep_product)


@torch.library.custom_op("rhobust::convolve_pixels", mutates_args=())
def convolve_pixels(x: Tensor, weight: Tensor, bias: Tensor | None, stride: list[int]) -> Tensor:
    """A 1x1 convolution with a stride, channels last, with a gradient for x only.

    The gradient is one matrix product over the pixels that it reads. It writes nothing for the others, where a
    convolution's writes zeros: a compiler adds it where it adds up gradients.

    Args:
        x: Inputs.
        weight: Weights.
        bias: Bias; may be None.
        stride: Down and right.
    """
    x = x.contiguous(memory_format=torch.channels_last)
    return F.conv2d(x, weight, bias, stride).contiguous(memory_format=torch.channels_last)


@convolve_pixels.register_fake
def _convolve_pixels_shape(x: Tensor, weight: Tensor, bias: Tensor | None, stride: list[int]) -> Tensor:
    sides = [(side - 1) // step + 1 for side, step in zip(x.shape[2:], stride, strict=True)]
    return x.new_empty(x.shape[0], weight.shape[0], *sides).contiguous(memory_format=torch.channels_last)


def _keep_pixels(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, ctx.stride = inputs
    ctx.shape = x.shape
    ctx.save_for_backward(weight)


def _pixels_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
    (weight,), (height, width), (down, right) = ctx.saved_tensors, ctx.shape[2:], ctx.stride
    pixels = gradient.permute(0, 2, 3, 1)
    found = (pixels.flatten(0, 2) @ weight.flatten(1)).unflatten(0, pixels.shape[:3]).permute(0, 3, 1, 2)
    columns = torch.ops.aten.slice_backward(found, [*found.shape[:3], width], 3, 0, width, right)
    return torch.ops.aten.slice_backward(columns, list(ctx.shape), 2, 0, height, down), None, None, None


convolve_pixels.register_autograd(_pixels_gradient, setup_context=_keep_pixels)


@torch.library.custom_op("rhobust::convolve_relu", mutates_args=())
def convolve_relu(x: Tensor, weight: Tensor, bias: Tensor, shortcut: Tensor | None, shape: list[int]) -> Tensor:
    """relu(convolution + bias + shortcut), channels last; gradients for x and shortcut only.

    One kernel on a GPU: the activations are written once instead of twice.

    Args:
        x: Inputs.
        weight: Weights.
        bias: Bias.
        shortcut: What is added; may be None.
        shape: Two strides, two paddings, two dilations and the number of groups.
    """
    x = x.contiguous(memory_format=torch.channels_last)
    stride, padding, dilation, groups = _geometry(shape)
    if not x.is_cuda:
        y = F.conv2d(x, weight, bias, stride, padding, dilation, groups)
        y = y if shortcut is None else y + shortcut.to(y.dtype)
        return y.relu().contiguous(memory_format=torch.channels_last)
    if shortcut is None:
        return torch.cudnn_convolution_relu(x, weight, bias, stride, padding, dilation, groups)
    shortcut = shortcut.to(x.dtype).contiguous(memory_format=torch.channels_last)
    return torch.cudnn_convolution_add_relu(x, weight, shortcut, 1.0, bias, stride, padding, dilation, groups)


def _geometry(shape: list[int]) -> tuple[list[int], list[int], list[int], int]:
    return shape[:2], shape[2:4], shape[4:6], shape[6]


@convolve_relu.register_fake
def _convolve_relu_shape(x: Tensor, weight: Tensor, bias: Tensor, shortcut: Tensor | None, shape: list[int]) -> Tensor:
    stride, padding, dilation, _ = _geometry(shape)
    sides = [
        (side + 2 * margin - wide * (kernel - 1) - 1) // step + 1
        for side, margin, kernel, step, wide in zip(
            x.shape[2:], padding, weight.shape[2:], stride, dilation, strict=True
        )
    ]
    return x.new_empty(x.shape[0], weight.shape[0], *sides).contiguous(memory_format=torch.channels_last)


def _keep_for_gradient(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, shortcut, ctx.shape = inputs
    ctx.added = None if shortcut is None else shortcut.dtype
    ctx.save_for_backward(x, weight, output)


def _convolve_relu_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, output = ctx.saved_tensors
    stride, padding, dilation, groups = _geometry(ctx.shape)
    gradient = torch.where(output > 0, gradient, 0)
    (input_gradient, _, _) = torch.ops.aten.convolution_backward(
        gradient, x, weight, None, stride, padding, dilation, False, (0, 0), groups, (True, False, False)
    )
    return input_gradient, None, None, None if ctx.added is None else gradient.to(ctx.added), None


convolve_relu.register_autograd(_convolve_relu_gradient, setup_context=_keep_for_gradient)
