"""Evaluation copies of networks that are not rhobust's own: batch norm is folded where that is right."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rhobust.models.folding import CompiledFastCopy, EvalCopy, FastCopy


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


class Foreign(nn.Module):
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
        model = Foreign(**options)
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
