"""Networks that fool an attack, each in its own way, around a half space that does not."""

import torch
from torch import nn


class _Scaled(torch.autograd.Function):
    """The identity, with its gradient scaled."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.scale, None


class Masked(nn.Module):
    """The same answers as a network, and gradients scaled down."""

    def __init__(self, network, scale=0.0):
        super().__init__()
        self.network, self.scale = network, scale

    def forward(self, x):
        return _Scaled.apply(self.network(x), self.scale)


class Randomised(nn.Module):
    """A network's logits and fresh noise at each call."""

    def __init__(self, network, by=0.5):
        super().__init__()
        self.network, self.by, self.generator = network, by, torch.Generator().manual_seed(0)

    def forward(self, x):
        logits = self.network(x)
        return logits + self.by * torch.randn(logits.shape, generator=self.generator)


class Saturated(nn.Module):
    """The softmax of a network's logits, made sure of itself."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        return (200 * self.network(x)).softmax(1)


class Slab(nn.Module):
    """Class 0 only in a thin slab: mean of the 16 pixels from 0.5 to 0.55; a unit normal, so logits are distances."""

    def forward(self, x):
        value = x.flatten(1).sum(1) / 4
        return torch.stack([torch.zeros_like(value), (value - 2.1).abs() - 0.1], dim=1)
