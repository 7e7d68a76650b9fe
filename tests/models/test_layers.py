import pytest
import torch
from torch.nn import functional as F

from rhobust.models.layers import ConvNorm


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (1, 2)])
def test_evaluation_is_the_convolution_followed_by_its_batch_norm(bias, kernel, stride):
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        layer = ConvNorm(3, 5, kernel, stride, bias=bias).double()
    for tensor in (layer.norm.weight, layer.norm.bias, layer.norm.running_mean, layer.norm.running_var):
        tensor.data = torch.rand(5, generator=generator, dtype=torch.float64) + 0.5
    x = torch.rand(4, 3, 8, 8, generator=generator, dtype=torch.float64)
    convolved = F.conv2d(x, layer.conv.weight, layer.conv.bias, stride, kernel // 2)
    norm = layer.norm
    expected = F.batch_norm(convolved, norm.running_mean, norm.running_var, norm.weight, norm.bias)
    assert torch.allclose(layer.eval()(x), expected, atol=1e-12)
    trained = F.batch_norm(convolved, None, None, norm.weight, norm.bias, training=True)
    assert torch.allclose(layer.train()(x), trained, atol=1e-12)
    assert norm.num_batches_tracked == 1
