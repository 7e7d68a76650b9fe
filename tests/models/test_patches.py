"""The first convolution over patches, and strided 1x1 convolutions as products."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rhobust.models.folding import TracedPair
from rhobust.models.fused import Folded, patches


@pytest.mark.parametrize(
    ("shape", "kernel", "padding"), [((2, 3, 6, 5), 3, 1), ((2, 1, 7, 7), 5, 2), ((2, 3, 4, 4), 3, 0)]
)
def test_patches_and_their_gradient_are_those_of_unfold(shape, kernel, padding):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
    ours = patches(x, [kernel, kernel], [padding, padding])
    theirs = F.unfold(x, kernel, padding=padding).transpose(1, 2).reshape(*ours.shape[:3], -1)
    used = theirs.shape[3]
    assert torch.equal(ours[..., :used], theirs)
    assert not ours[..., used:].any()
    weights = torch.randn(ours.shape, generator=generator, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((weights * ours).sum(), x)
    (expected,) = torch.autograd.grad((weights[..., :used] * theirs).sum(), x)
    assert torch.allclose(gradient, expected)


def test_a_strided_convolution_of_single_pixels_is_a_product():
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        conv, norm = nn.Conv2d(4, 6, 1, stride=2, bias=False), nn.BatchNorm2d(6).eval()
    with torch.no_grad():
        for parameter in (conv.weight, norm.weight, norm.bias, norm.running_mean):
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    x = torch.randn(2, 4, 7, 6, generator=generator, requires_grad=True)
    ours, theirs = Folded(TracedPair(conv, norm, None), torch.float32)(x), norm(conv(x))
    assert torch.allclose(ours, theirs, atol=1e-5)
    weights = torch.randn(ours.shape, generator=generator)
    (gradient,), (expected,) = (torch.autograd.grad((weights * y).sum(), x) for y in (ours, theirs))
    assert torch.allclose(gradient, expected, atol=1e-5)
