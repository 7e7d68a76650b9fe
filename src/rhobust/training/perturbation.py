"""Adversarial weight perturbation (Wu et al., 2020)."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def perturbed(model: nn.Module, size: float) -> Iterator[None]:
    """The network with each weight tensor w moved to w + size ||w|| g / ||g||, for its gradient g; then as before.

    Vectors (biases, scales of norms) keep their values. On exit all weights are the old ones to the last bit, and so
    are the buffers: running statistics stay those of the weights that are evaluated.

    Args:
        model: The network, with the gradients of the loss that the perturbation is to increase.
        size: Size of the perturbation relative to the norm of the tensor.
    """
    moved = [(weight, weight.grad) for weight in model.parameters() if weight.dim() > 1 and weight.grad is not None]
    changed = [*(weight for weight, _ in moved), *model.buffers()]
    with torch.no_grad():
        before = [tensor.clone() for tensor in changed]
        for weight, gradient in moved:
            length = gradient.norm().clamp_min(torch.finfo(gradient.dtype).tiny)
            weight.add_(gradient * (size * weight.norm() / length))
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, old in zip(changed, before, strict=True):
                tensor.copy_(old)
