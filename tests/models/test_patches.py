"""The first convolution over patches, and the gradients of strided 1x1 convolutions as products."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from rhobust.models.folding import TracedPair
from rhobust.models.fused import Folded
from rhobust.models.operators import convolve_pixels, patches


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


class Calls(TorchDispatchMode):
    """Names of the operations, with the shape of the first input."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.found.append((function._opname, tuple(getattr(args[0], "shape", ())) if args else ()))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("channels", [4, 300])
@pytest.mark.parametrize("stride", [2, (3, 1)])
@pytest.mark.parametrize("biased", [False, True])
def test_the_gradient_of_a_strided_convolution_of_single_pixels_is_one_product(channels, stride, biased):
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        conv, norm = nn.Conv2d(channels, 6, 1, stride=stride, bias=biased), nn.BatchNorm2d(6).eval()
    with torch.no_grad():
        for parameter in (conv.weight, norm.weight, norm.bias, norm.running_mean):
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    x = torch.randn(2, channels, 7, 6, generator=generator, requires_grad=True)
    with Calls() as calls:
        ours = Folded(TracedPair(conv, norm, None), torch.float32)(x)
    theirs = norm(conv(x))
    assert torch.allclose(ours, theirs, atol=1e-4)
    assert not [name for name, _ in calls.found if "mm" in name]  # a stride would make it one product for each row
    weights = torch.randn(ours.shape, generator=generator)
    with Calls() as calls:
        (gradient,) = torch.autograd.grad((weights * ours).sum(), x)
    (expected,) = torch.autograd.grad((weights * theirs).sum(), x)
    assert torch.allclose(gradient, expected, atol=1e-4)
    products = [call for call in calls.found if "mm" in call[0] or "convolution" in call[0]]
    assert products == [("mm", (ours.numel() // 6, 6))]


@pytest.mark.parametrize("shape", [(2, 3, 7, 6), (2, 3, 1, 1), (1, 3, 2, 5)])
def test_pixels_have_the_shape_that_a_compiler_is_told(shape):
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(one, generator=generator) for one in (shape, (4, 3, 1, 1), (4,)))
    torch.library.opcheck(convolve_pixels, (x.requires_grad_(), weight, bias, [2, 2]))
