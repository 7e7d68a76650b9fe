import pytest
import torch
from torch.nn import functional as F

from rhobust.models.winograd import StridedConv


@pytest.fixture
def layer():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return StridedConv(3, 5)


def images(count, *, side=14, channels=3):
    return torch.randn(count, channels, side, side, generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("count", [1, 64, 130])
def test_it_is_the_convolution(layer, count, last):
    layer, x = layer.double(), images(count).double()
    if last:
        x = x.contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        found = layer(x)
        expected = F.conv2d(x, layer.weight, layer.bias, 2)
    assert not torch.equal(found, expected), "nothing else was computed"
    assert torch.allclose(found, expected, atol=1e-12)


def test_the_rounding_error_in_float32_is_small():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = StridedConv(64, 128)
    x = images(64, channels=64).relu()
    with torch.no_grad():
        exact = F.conv2d(x.double(), layer.weight.double(), layer.bias.double(), 2)
        error, usual = (
            (one.double() - exact).abs().mean() for one in (layer(x), F.conv2d(x, layer.weight, layer.bias, 2))
        )
    assert usual < error < 15 * usual
    assert error < 1e-5 * exact.std()


def test_gradients_other_sizes_and_half_precision_are_left_to_torch(layer):
    x = images(4)
    assert torch.equal(layer(x), F.conv2d(x, layer.weight, layer.bias, 2))
    layer.requires_grad_(False)
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(layer(x).sum(), x)
    assert gradient.abs().sum() > 0
    large = images(4, side=16)
    assert torch.equal(layer(large), F.conv2d(large, layer.weight, layer.bias, 2))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(x), F.conv2d(x, layer.weight, layer.bias, 2))


def test_the_weights_are_those_of_the_present(layer):
    x = images(4)
    with torch.no_grad():
        before = layer(x)
        layer.weight.data.mul_(2)
        layer.bias.data.mul_(2)
        assert torch.allclose(layer(x), 2 * before, atol=1e-5)
