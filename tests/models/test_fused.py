import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rhobust.models import build_model
from rhobust.models.folding import EvalCopy
from rhobust.models.fused import ConvNorm, Folded, InputConv, Residual, WholeConv
from rhobust.models.operators import convolve_relu, product_relu


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


@pytest.mark.parametrize("activation", ["relu", "elu"])
@pytest.mark.parametrize("name", ["resnet18", "vgg16"])
def test_an_eval_copy_computes_the_network_in_evaluation_mode(name, activation):
    model = build_model(
        name, shape=(3, 32, 32), classes=4, mean=[0.5] * 3, deviation=[0.3] * 3, activation=activation, seed=0
    ).train()
    copied = EvalCopy(model, torch.float32)
    x = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    model(x)  # moves the running statistics
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    copied.refresh()
    assert model.training
    assert not any(parameter.requires_grad for parameter in copied.network.parameters())
    assert torch.allclose(copied.network(x), model.eval()(x), atol=1e-4)


@pytest.mark.filterwarnings("default")  # torch warns about its own parts while it compiles
def test_a_compiled_copy_is_refreshed_at_once():
    options = {"mean": [0.5] * 3, "deviation": [0.3] * 3, "activation": "relu", "seed": 0}
    model = build_model("resnet18", shape=(3, 8, 8), classes=4, **options)
    copied, fresh, calls = EvalCopy(model, torch.bfloat16), EvalCopy(model, torch.bfloat16), []

    def backend(graph, inputs):
        for node in graph.graph.nodes:
            if node.op.startswith("call") and "copy" in getattr(node.target, "__name__", node.target):
                assert node.target is torch._foreach_copy_
                calls.append([{one.meta["example_value"].dtype for one in several} for several in node.args])
        return graph.forward

    refresh = torch.compile(copied.refresh, backend=backend, fullgraph=True, dynamic=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    refresh()
    fresh.refresh()
    # A copy each would be a kernel each, of a few microseconds; mean and deviation keep their dtype.
    assert calls == [[{torch.bfloat16}, {torch.float32}], [{torch.float32}, {torch.float32}]]
    pairs = zip(copied.network.state_dict().items(), fresh.network.state_dict().values(), strict=True)
    assert all(torch.equal(ours, theirs) for (_, ours), theirs in pairs)
    x = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.allclose(copied.network(x).float(), model.eval()(x).float(), atol=0.1, rtol=0.1)


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, lambda _: nn.LayerNorm([4, 6, 6])])
def test_an_eval_copy_keeps_other_norms(norm):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(8, 3, 6, 6, generator=generator)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 1), norm(4), nn.Flatten(), nn.Linear(144, 5))
        model(x)
    exact, fast = EvalCopy(model, torch.float32), EvalCopy(model, torch.bfloat16)
    before = exact.network(x)
    model.train()(4 * x)  # moves the running statistics
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    assert torch.equal(exact.network(x), before), "it changes with its own refresh only"
    wanted = model.eval()(x)
    assert not torch.allclose(before, wanted, atol=0.05)
    for copied in (exact, fast):
        copied.refresh()
    assert torch.allclose(exact.network(x), wanted, atol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.allclose(fast.network(x).float(), wanted, atol=0.05)
    assert fast.network[-1].weight.dtype == torch.bfloat16


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (1, 2)])
def test_the_fused_convolution_is_the_plain_one_with_its_gradients(kernel, stride, adds):
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((2, 3, 8, 8), (5, 3, kernel, kernel), (5,))
    )
    plain = F.conv2d(x, weight, bias, stride, kernel // 2)
    shortcut = torch.randn(plain.shape, generator=generator, dtype=torch.float64) if adds else None
    moving = [tensor.clone().requires_grad_() for tensor in (x, shortcut) if tensor is not None]

    def fused(x, shortcut=None):
        return convolve_relu(x, weight, bias, shortcut, [stride] * 2 + [kernel // 2] * 2 + [1, 1, 1])

    expected = (plain if shortcut is None else plain + shortcut).relu()
    assert torch.allclose(fused(*moving), expected, atol=1e-12)
    assert torch.autograd.gradcheck(fused, moving)
    torch.library.opcheck(convolve_relu, (x, weight, bias, shortcut, [stride] * 2 + [kernel // 2] * 2 + [1, 1, 1]))


@pytest.mark.filterwarnings("default")  # torch warns about its own parts while it compiles
@pytest.mark.parametrize(("channels", "kernel"), [(3, 3), (1, 5), (5, 1)])
def test_a_convolution_over_patches_is_the_plain_one_with_its_gradient(channels, kernel):
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        layer = ConvNorm(channels, 6, kernel, activation=nn.ReLU()).double().eval()
    folded = Folded(layer, torch.float64)
    x = torch.rand(3, channels, 7, 9, generator=generator, dtype=torch.float64)
    assert torch.allclose(folded(x), layer(x), atol=1e-12)
    assert folded(x).is_contiguous(memory_format=torch.channels_last)
    assert torch.autograd.gradcheck(folded, x.requires_grad_())
    compiled = torch.compile(folded, backend="aot_eager")
    slopes = [torch.autograd.grad(layer(x).sin().sum(), x)[0] for layer in (folded, compiled)]
    assert torch.allclose(*slopes, atol=1e-12)
    matrix = (x.detach().flatten(1), torch.rand(4, x[0].numel(), generator=generator, dtype=torch.float64))
    for copies in (1, 3):
        torch.library.opcheck(product_relu, (*matrix, torch.zeros(4, dtype=torch.float64), copies))


def test_a_shortcut_leaves_its_bias_to_the_convolution_it_is_added_to():
    model = build_model(
        "resnet18", shape=(3, 8, 8), classes=4, mean=[0.5] * 3, deviation=[0.3] * 3, activation="relu", seed=0
    ).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.bias.data.fill_(0.3)
    copied = EvalCopy(model, torch.float64)
    blocks = [module for module in copied.network.modules() if isinstance(module, Residual)]
    assert [getattr(block.shortcut, "bias", "none") for block in blocks].count(None) == 3
    x = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert torch.allclose(copied.network.double()(x), model.double()(x), atol=1e-9)


def check_as_convolution(layer, x):
    """The layer's answers, and their gradients in the input and the weights, are those of torch's convolution."""
    geometry = layer.stride, layer.padding
    assert torch.allclose(layer(x), F.conv2d(x, layer.weight, layer.bias, *geometry), atol=1e-12)
    moving, plain = x.clone().requires_grad_(), x.clone().requires_grad_()
    found, reference = layer(moving), F.conv2d(plain, layer.weight, layer.bias, *geometry)
    assert torch.allclose(found, reference, atol=1e-12)
    wanted = torch.autograd.grad(reference.sin().sum(), [plain, layer.weight, layer.bias])
    for ours, theirs in zip(
        torch.autograd.grad(found.sin().sum(), [moving, layer.weight, layer.bias]), wanted, strict=True
    ):
        assert torch.allclose(ours, theirs, atol=1e-10)


@pytest.mark.parametrize(("channels", "kernel", "stride", "padding"), [(1, 8, 2, 3), (3, 3, 1, 1), (2, 5, 3, 0)])
def test_the_input_convolution_is_a_convolution_with_and_without_gradients(channels, kernel, stride, padding):
    with torch.random.fork_rng(devices=[]):
        layer = InputConv(channels, 6, kernel, stride=stride, padding=padding).double()
    x = torch.rand(3, channels, 14, 17, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    check_as_convolution(layer, x)


@pytest.mark.parametrize("side", [5, 7])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_convolution_over_all_of_its_input_is_one(side, layout):
    with torch.random.fork_rng(devices=[]):
        layer = WholeConv(4, 6, 5).double()
    x = torch.rand(3, 4, side, side, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    check_as_convolution(layer, x.contiguous(memory_format=layout))
