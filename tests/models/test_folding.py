"""Evaluation copies of networks that are not rhobust's own: batch norm is folded where that is right."""

import copy
from collections import OrderedDict
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from rhobust.models import build_model
from rhobust.models.folding import CompiledFastCopy, EvalCopy, FastCopy, fold_traced, for_noisy_copies
from rhobust.models.fused import ConvNorm, Residual
from rhobust.models.networks import Normalised


class Block(nn.Module):
    """A residual block as torchvision writes it, with a projection."""

    def __init__(self, inputs, outputs, *, groups=1, dilation=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, 2, padding=dilation, dilation=dilation, groups=groups, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 1), nn.BatchNorm2d(outputs, affine=False)
        self.down = nn.Sequential(nn.Conv2d(inputs, outputs, 1, 2, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += self.down(x)
        return self.relu(out)


class UserCode(nn.Module):
    def __init__(self, *, shared=False):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(4, 8, 5, padding=2), nn.BatchNorm2d(8)
        self.blocks = nn.Sequential(Block(8, 8, groups=2), Block(8, 16, dilation=2))
        self.last, self.last_norm = nn.Conv2d(16, 16, 1), nn.BatchNorm2d(16)
        self.head, self.shared = nn.Linear(16, 3), shared

    def forward(self, x):
        x = self.blocks(F.relu(self.norm(self.stem(x))))
        x = F.silu(self.last_norm(self.last(x)))
        if self.shared:
            x = F.silu(self.last_norm(self.last(x)))
        return self.head(x.mean((2, 3)))


def made(**options):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = UserCode(**options)
        for _ in range(3):
            model(torch.rand(16, 4, 8, 8))
    return model


X = torch.rand(6, 4, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("shared", "folds"), [(False, 8), (True, 7)])
def test_a_foreign_network_is_folded_and_follows_its_weights(shared, folds):
    model = made(shared=shared)
    copied = EvalCopy(model, torch.float32, example=X)
    assert len(copied.folds) == folds
    assert torch.allclose(copied.network(X), model.eval()(X), atol=1e-5)
    model.train()(4 * X)  # moves the running statistics
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.2)
    copied.refresh()
    assert torch.allclose(copied.network(X), model.eval()(X), atol=1e-4)
    point = X.clone().requires_grad_()
    slopes = [torch.autograd.grad(network(point).square().sum(), point)[0] for network in (copied.network, model)]
    assert torch.allclose(*slopes, atol=1e-3)


class Asks(nn.Module):
    """Cannot be traced: its path depends on the values."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) if x.mean() > 0 else -self.inner(x)


def test_what_cannot_be_traced_or_has_hooks_is_copied_as_it_is():
    hooked = made()
    hooked.blocks.register_forward_hook(lambda module, inputs, output: 2 * output)
    for model in (Asks(made()), hooked):
        copied = EvalCopy(model, torch.float32, example=X)
        assert not copied.folds
        assert torch.allclose(copied.network(X), model.eval()(X), atol=1e-6)
    assert not EvalCopy(made(), torch.float32, example=X, folded=False).folds
    assert not EvalCopy(made(), torch.float32).folds


def test_a_fast_copy_that_cannot_be_compiled_is_used_plainly(monkeypatch):
    def refuse(network, **options):
        def call(x):
            raise RuntimeError("no compiler here")

        return call

    monkeypatch.setattr(torch, "compile", refuse)
    plain = FastCopy(made(), X)
    compiled = CompiledFastCopy(plain)
    with pytest.warns(UserWarning, match="gradients could not be compiled, and attacks are slower: no compiler here"):
        found = compiled(X)
    assert torch.equal(found, plain(X))
    assert torch.equal(compiled(X), plain(X))


class Branches(nn.Module):
    """A convolution with batch norm, and code around it that a fold must not change: `steps` gets x and the branch."""

    def __init__(self, steps, norm=nn.BatchNorm2d):
        super().__init__()
        self.first, self.steps = nn.Conv2d(4, 6, 1), steps
        self.conv, self.norm, self.head = nn.Conv2d(6, 6, 3, padding=1), norm(6), nn.Linear(6, 3)

    def forward(self, x):
        x = self.first(x)
        return self.head(self.steps(x, lambda y: self.norm(self.conv(y))).mean((2, 3)))


def changed_between(x, branch):
    y = branch(x)
    x.mul_(-1)
    return F.relu(y + x)


def relu_between(x, branch):
    y = branch(x)
    return F.relu(y + F.relu(x, inplace=True))


def assigned_between(x, branch):
    y = branch(x)
    x -= 1
    return F.relu(y + x)


def written_over_the_shortcut(x, branch):
    y = x
    y += branch(x)
    return F.relu(y) + x.tanh()


def changed_after_the_relu(x, branch):
    y = F.relu(branch(x))
    x += 1
    return y + x


def of_one_pixel(x, branch):
    return F.relu(branch(x.mean((2, 3), keepdim=True)) + x)


def with_one_pixel(x, branch):
    return F.relu(branch(x) + x.mean((2, 3), keepdim=True))


IN_PLACE = [changed_between, relu_between, assigned_between, written_over_the_shortcut, changed_after_the_relu]


def slope(network):
    point = X.clone().requires_grad_()
    return torch.autograd.grad(network(point).sin().sum(), point)[0]


def branches(steps, **options):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Branches(steps, **options)
        model(torch.rand(16, 4, 8, 8))
    return model.eval().requires_grad_(False)


@pytest.mark.parametrize("steps", [*IN_PLACE, of_one_pixel, with_one_pixel])
def test_what_is_folded_is_what_the_network_does_in_its_order(steps):
    model = branches(steps)
    traced, folds = fold_traced(model, copy.deepcopy(model), torch.float32, X)
    assert len(folds) == 1
    assert torch.allclose(traced(X), model(X), atol=1e-5)
    if steps not in IN_PLACE:  # torch refuses the gradient of an input that was changed afterwards
        assert torch.allclose(slope(traced), slope(model), atol=1e-5)


def new_sum(x, branch):
    return F.relu(branch(x) + x)


def plain_sum(x, branch):
    y = branch(x)
    y += x
    return F.relu(y, inplace=True)


def test_sums_and_their_relus_are_layers_with_the_convolutions():
    with torch.random.fork_rng(devices=[]):
        model = nn.Sequential(Block(4, 4), Block(4, 4), nn.Flatten())
    model[1].conv1.stride, model[1].down = (1, 1), nn.Identity()
    traced, folds = fold_traced(model.eval(), copy.deepcopy(model), torch.float32, X)
    assert [len(node.args) for node in traced.graph.nodes if "folded" in str(node.target)] == [1, 1, 2, 1, 2]
    assert len(folds) == 5
    assert not any("relu" in str(node.target) or node.op == "call_function" for node in traced.graph.nodes)


class KeepsItsNorm(nn.Module):
    """Always uses statistics of the batch."""

    def __init__(self, width):
        super().__init__()
        self.inner = nn.BatchNorm2d(width)

    def train(self, mode=True):
        super().train(mode)
        self.inner.train()
        return self

    def forward(self, x):
        return self.inner(x)


def test_a_norm_that_stays_in_training_mode_keeps_it_in_the_copy():
    model = branches(new_sum, norm=KeepsItsNorm)
    traced, folds = fold_traced(model, copy.deepcopy(model), torch.float32, X)
    assert not folds
    assert torch.allclose(traced(X), model(X), atol=1e-5)


def test_what_hooks_and_changed_methods_add_is_in_the_copy():
    def shifted(module, gradients, _):
        return tuple(None if one is None else 2 * one for one in gradients)

    def instead(x):
        return -nn.BatchNorm2d.forward(model.norm, x)

    model = branches(new_sum)
    model.norm.register_full_backward_hook(shifted)
    assert torch.allclose(slope(EvalCopy(model, torch.float32, example=X).network), slope(model), atol=1e-5)
    model = branches(plain_sum)
    model.norm.forward = instead
    assert torch.allclose(EvalCopy(model, torch.float32, example=X).network(X), model(X), atol=1e-5)


class Draws(nn.Module):
    """Adds noise of its own, of a shape that a trace takes for a constant."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.own = inner, torch.Generator().manual_seed(0)

    def forward(self, x):
        return self.inner(x + 0.1 * torch.randn(4, 8, 8, generator=self.own))


def test_a_network_that_draws_noise_still_draws_it_in_the_copy():
    copied = EvalCopy(Draws(made()), torch.bfloat16, example=X).network
    with torch.autocast("cpu", torch.bfloat16):
        assert not torch.equal(copied(X), copied(X))


class Twice(nn.Module):
    """One convolution of rhobust's under two names."""

    def __init__(self):
        super().__init__()
        self.one = self.other = ConvNorm(4, 4, 3, activation=nn.ReLU())

    def forward(self, x):
        return self.other(self.one(x)).mean((2, 3))


def test_a_layer_under_two_names_is_refreshed_under_both():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Twice().eval()
    copied = EvalCopy(model, torch.float32)
    with torch.no_grad():
        model.one.conv.weight.mul_(-2)
        model.one.norm.bias.add_(1)
    copied.refresh()
    assert torch.allclose(copied.network(X), model(X), atol=1e-5)


@pytest.mark.parametrize("place", ["second", "shortcut", "second.conv"])
def test_a_layer_of_rhobusts_own_with_a_hook_is_copied_as_it_is(place):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        block = Residual(*(ConvNorm(4, 4, 3, activation=nn.ReLU()) for _ in range(2)), ConvNorm(4, 4, 1)).eval()
    for norm in (block.first.norm, block.second.norm, block.shortcut.norm):
        norm.bias.data.fill_(0.3)
    block.get_submodule(place).register_forward_hook(lambda module, inputs, output: output + 1)
    assert torch.allclose(EvalCopy(block, torch.float32).network(X), block(X), atol=1e-5)


class Rows(TorchDispatchMode):
    """Counts the rows of products."""

    rows = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.mm.default:
            self.rows += len(args[0])
        return function(*args, **(kwargs or {}))


@pytest.mark.filterwarnings("default")  # torch warns about its own parts while it compiles
@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_gradients_of_noisy_copies_are_added_up_before_the_first_layer(backend):
    with torch.random.fork_rng(devices=[]):
        layers = ConvNorm(3, 8, 3, activation=nn.ReLU()), ConvNorm(8, 8, 3, 2), nn.Flatten(), nn.Linear(128, 4)
        named = OrderedDict(zip(("stem", "1", "2", "3"), layers, strict=True))  # by whatever names
        model = Normalised(nn.Sequential(named), [0.5] * 3, [0.3] * 3).eval()
    copied, generator = EvalCopy(model, torch.float32), torch.Generator().manual_seed(0)
    x, noise = torch.rand(2, 3, 8, 8, generator=generator), torch.randn(5, 2, 3, 8, 8, generator=generator)

    def answered(network):
        point, counted = x.clone().requires_grad_(), Rows()
        network = network if backend is None else torch.compile(network, backend=backend, dynamic=False)
        with counted if backend is None else nullcontext():
            logits = network((point + 0.25 * noise).flatten(0, 1))
            return logits, torch.autograd.grad(logits.sin().sum(), point)[0], counted.rows

    noisy = for_noisy_copies(copied.network, 5)
    with torch.no_grad():
        model.network.stem.conv.weight.mul_(2)
    copied.refresh()  # of both
    (logits, slope, rows), (expected, all_slopes, all_rows) = answered(noisy), answered(copied.network)
    assert torch.equal(logits, expected)
    assert torch.allclose(slope, all_slopes, atol=1e-6, rtol=1e-4)
    assert all_rows - rows == (0 if backend else 4 * 2 * 64)  # one image of 64 pixels instead of five
    assert copied.network.network.stem.copies == 1
    assert [name for name, _ in noisy.network.named_children()] == list(named)


def test_networks_without_such_a_layer_are_the_same_for_noisy_copies():
    options = {"shape": (1, 8, 8), "classes": 4, "mean": [0.5], "deviation": [0.3], "seed": 0}
    smooth, small = (
        build_model("resnet18", activation="elu", **options),
        build_model("cnn-small", activation="relu", **options),
    )
    watched = build_model("resnet18", activation="relu", **options)
    watched.register_forward_pre_hook(lambda module, inputs: (inputs[0].square(),))
    for model in (smooth, small, watched, made()):
        network = EvalCopy(model, torch.float32).network
        assert for_noisy_copies(network, 5) is network
    network = EvalCopy(build_model("resnet18", activation="relu", **options), torch.float32).network
    assert for_noisy_copies(network, 1) is network
    assert for_noisy_copies(network, 2) is not network


@pytest.mark.filterwarnings("default")  # torch warns about its own parts while it compiles
def test_any_number_of_networks_is_compiled(monkeypatch):
    by_name = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **options: by_name(function, backend="eager", **options))
    compiled = counters["stats"]["unique_graphs"]
    for classes in range(2, 6):
        with torch.random.fork_rng(devices=[]):
            copied = CompiledFastCopy(FastCopy(nn.Sequential(nn.Flatten(), nn.Linear(256, classes))))
        with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=2):
            assert copied(X).shape == copied(X).shape == (6, classes)
    assert counters["stats"]["unique_graphs"] == compiled + 4


class Weighs(nn.Module):
    """Computes with the weights of a layer itself, and with inputs of its own dtype."""

    def __init__(self, *, strict):
        super().__init__()
        self.flat, self.dense, self.strict = nn.Flatten(), nn.Linear(256, 3), strict
        self.pair = nn.Bilinear(3, 3, 3)

    def forward(self, x):
        y = self.dense(self.flat(x)) / torch.dot(torch.ones(256), self.dense.weight.square().sum(0))
        return self.pair(y, y) if self.strict else y


def test_a_network_that_mixes_dtypes_is_copied_or_refused_at_once(capfd):
    with torch.random.fork_rng(devices=[]):
        model, strict = Weighs(strict=False), Weighs(strict=True)
        normed = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), strict)
    assert torch.allclose(FastCopy(model, X)(X), model(X), atol=0.02)
    for network in (strict, normed):
        with pytest.raises(RuntimeError, match="same dtype"):
            FastCopy(network, X)
    assert capfd.readouterr() == ("", "")
