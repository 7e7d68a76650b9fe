"""Reference (naive) implementation of the training methods: one noise sample at a time, weights with gradients.

What the benchmarks compare with. Float32, the network in training mode everywhere, nothing batched, frozen or
compiled; the losses are those of `rhobust.methods`.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rhobust.methods import NAL, TRADES, WRM, AdversarialTraining, SmoothAdv
from rhobust.models.fused import ConvNorm, InputConv, WholeConv
from rhobust.models.winograd import StridedConv
from rhobust.noise import Noise


def reference_network(model: nn.Module) -> nn.Module:
    """The same network from torch's own layers in their default layout, with the same weights."""
    for name, child in model.named_children():
        if isinstance(child, ConvNorm):
            setattr(model, name, _ReferenceConv(child))
        elif isinstance(child, InputConv | StridedConv | WholeConv):
            sizes = child.in_channels, child.out_channels, child.kernel_size, child.stride, child.padding
            plain = nn.utils.skip_init(nn.Conv2d, *sizes)
            plain.load_state_dict(child.state_dict())
            setattr(model, name, plain.to(child.weight.device))
        elif isinstance(child, nn.ReLU):
            setattr(model, name, nn.ReLU())  # torch's default works on a copy
        else:
            reference_network(child)
    for parameter in model.parameters():
        parameter.data = parameter.data.contiguous()
    return model


class _ReferenceConv(nn.Module):
    """Convolution, batch norm, sum and activation one after the other."""

    def __init__(self, source: ConvNorm) -> None:
        super().__init__()
        self.conv, self.norm, self.activation = source.conv, source.norm, source.activation

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        y = self.norm(self.conv(x))
        if shortcut is not None:
            y = y + shortcut
        return y if self.activation is None else self.activation(y)


def reference_votes(
    model: nn.Module, image: Tensor, *, sigma: float, n: int, batch: int, num_classes: int, rng: torch.Generator
) -> np.ndarray:
    """Votes under noise as Cohen et al.'s code counts them: copies of one image, a loop over answers on the host."""
    counts = np.zeros(num_classes, dtype=int)
    with torch.no_grad():
        while n > 0:
            size = min(batch, n)
            n -= size
            copies = image.repeat((size, 1, 1, 1))
            noise = torch.randn(copies.shape, generator=rng, device=copies.device) * sigma
            for answer in model(copies + noise).argmax(1).cpu().numpy():
                counts[answer] += 1
    return counts


def reference_loss(
    method: NAL | AdversarialTraining | SmoothAdv | TRADES | WRM, model: nn.Module, x: Tensor, y: Tensor, rng: Noise
) -> Tensor:
    """The loss of a batch by the plain loop of each method."""
    match method:
        case NAL():
            return _nal(method, model, x, y, rng)
        case WRM():
            return _wrm(method, model, x, y)
        case AdversarialTraining():
            return F.cross_entropy(model(_pgd(method, model, x, y)), y)
        case TRADES():
            return _trades(method, model, x, y, rng)
        case SmoothAdv():
            return _smoothadv(method, model, x, y, rng)


def _gradient(value: Tensor, x: Tensor) -> Tensor:
    return torch.autograd.grad(value, x)[0].detach()


def _l2_step(x: Tensor, gradient: Tensor, centre: Tensor, eps: float, size: float) -> Tensor:
    direction = gradient / gradient.flatten(1).norm(dim=1).clamp_min(1e-12).view(-1, 1, 1, 1)
    offset = x.detach() + size * direction - centre
    length = offset.flatten(1).norm(dim=1).clamp_min(1e-12).view(-1, 1, 1, 1)
    return (centre + offset * (eps / length).clamp_max(1.0)).clamp(0, 1)


def _nal(method: NAL, model: nn.Module, x0: Tensor, y: Tensor, rng: Noise) -> Tensor:
    x = x0.clone()
    for k in range(method.steps):
        gradient = torch.zeros_like(x0)
        for _ in range(method.draws):
            x.requires_grad_()
            noisy = x + method.sigma * rng.normal(x0, 1)[0]
            gradient += _gradient(F.cross_entropy(model(noisy), y, reduction="sum"), x) / method.draws
        x = x.detach() + (gradient - 2 * method.gamma * (x.detach() - x0)) / (2 * method.gamma * (k + 1) ** 0.5)
    losses = [F.cross_entropy(model(x + method.sigma * rng.normal(x0, 1)[0]), y) for _ in range(method.draws)]
    return torch.stack(losses).mean()


def _wrm(method: WRM, model: nn.Module, x0: Tensor, y: Tensor) -> Tensor:
    x = x0.clone()
    for k in range(method.steps + 1):
        x.requires_grad_()
        gradient = _gradient(F.cross_entropy(model(x), y, reduction="sum"), x)
        x = x.detach() + (gradient / (2 * method.gamma) - (x.detach() - x0)) / (k + 1) ** 0.5
    return F.cross_entropy(model(x), y)


def _pgd(method: AdversarialTraining, model: nn.Module, x0: Tensor, y: Tensor) -> Tensor:
    x = x0.clone()
    for _ in range(method.steps):
        x.requires_grad_()
        gradient = _gradient(F.cross_entropy(model(x), y, reduction="sum"), x)
        x = _l2_step(x, gradient, x0, method.eps, method.relative_step * method.eps / method.steps)
    return x


def _kl(clean: Tensor, adversarial: Tensor) -> Tensor:
    return F.kl_div(adversarial.log_softmax(1), clean.softmax(1), reduction="sum")


def _trades(method: TRADES, model: nn.Module, x0: Tensor, y: Tensor, rng: Noise) -> Tensor:
    x = x0 + 1e-3 * rng.normal(x0, 1)[0]
    for _ in range(method.steps):
        x.requires_grad_()
        gradient = _gradient(_kl(model(x0), model(x)), x)
        x = _l2_step(x, gradient, x0, method.eps, method.relative_step * method.eps / method.steps)
    clean = model(x0)
    return F.cross_entropy(clean, y) + method.beta * _kl(clean, model(x)) / len(x0)


def _smoothadv(method: SmoothAdv, model: nn.Module, x0: Tensor, y: Tensor, rng: Noise) -> Tensor:
    noise = [method.sigma * rng.normal(x0, 1)[0] for _ in range(method.draws)]
    x = x0.clone()
    for _ in range(method.steps):
        x.requires_grad_()
        probability = torch.stack([model(x + z).softmax(1) for z in noise]).mean(0)
        gradient = _gradient(F.nll_loss(probability.log(), y, reduction="sum"), x)
        x = _l2_step(x, gradient, x0, method.eps, method.relative_step * method.eps / method.steps)
    return torch.stack([F.cross_entropy(model(x + z), y) for z in noise]).mean()
