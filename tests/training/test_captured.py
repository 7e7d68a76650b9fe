"""The captured step on a CPU: everything of it but CUDA, the compiler and bf16."""

import warnings
from contextlib import nullcontext
from functools import partial
from typing import get_args

import pytest
import torch
from torch import nn

from rhobust.methods import NAL, TRADES, AnyMethod, Gaussian
from rhobust.models.fused import ConvNorm
from rhobust.models.networks import Normalised
from rhobust.noise import BatchNoise, stream
from rhobust.training import step as steps
from rhobust.training.distributed import ProcessGroup
from rhobust.training.step import CompiledStep, TrainingStep
from tests.captured import pretend_cuda

SIZE = 6


@pytest.fixture(autouse=True)
def _plain(monkeypatch):
    """What only a GPU has computes what it stands for."""
    monkeypatch.setattr(CompiledStep, "arithmetic", lambda self: nullcontext())
    monkeypatch.setattr(torch, "autocast", lambda *given, **options: nullcontext())
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setattr(torch, "bfloat16", torch.float32)
    monkeypatch.setattr(steps, "_release", lambda generator, state: generator.set_state(state))


def network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = ConvNorm(1, 4, 3, activation=nn.ReLU()), nn.Flatten(), nn.Linear(64, 3)
        return Normalised(nn.Sequential(*layers), [0.5], [0.3]).train()


def make(method, kind, model=None):
    model = network() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1), momentum=0.9, nesterov=True, fused=True)
    parts = model, method, optimizer, BatchNoise(stream(0, "noise")), ProcessGroup(), 1.0
    return CompiledStep(*parts, size=SIZE) if kind is CompiledStep else TrainingStep(*parts)


def batches(count, size=SIZE):
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.rand(size, 1, 4, 4, generator=generator), torch.randint(3, (size,), generator=generator), torch.ones(()))
        for _ in range(count)
    ]


def check_same(fast, slow, data):
    """Both steps give the same losses, and the same weights in the end."""
    done = [(fast(*batch), slow(*batch)) for batch in data]
    for ours, theirs in done:  # all losses are still there in the end
        assert torch.allclose(ours.value, theirs.value, atol=1e-5)
        assert torch.allclose(ours.squared_distance, theirs.squared_distance, atol=1e-5)
    for (name, ours), theirs in zip(fast.model.state_dict().items(), slow.model.state_dict().values(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4), name


NOISY, NOISY_ATTACK = Gaussian(sigma=0.3), NAL(sigma=0.3, gamma=2.0, steps=2, draws=2)


@pytest.mark.parametrize("method", [cls() for cls in get_args(AnyMethod)], ids=lambda method: type(method).__name__)
def test_replays_are_the_steps_of_the_definition(method, monkeypatch):
    graphs = pretend_cuda(monkeypatch)
    if isinstance(method, TRADES):  # its first gradient is nearly zero: how a fold rounds decides its direction
        monkeypatch.setattr(steps, "EvalCopy", partial(steps.EvalCopy, folded=False))
    fast, slow = make(method, CompiledStep), make(method, TrainingStep)
    check_same(fast, slow, batches(4))
    # A batch of another size goes another way; the rate and the noise are those of the present.
    check_same(fast, slow, batches(1, size=3))
    for step in (fast, slow):
        steps.set_learning_rate(step.optimizer, 0.01)
        step.noise.generator.manual_seed(7)
    check_same(fast, slow, batches(2))
    assert [graph.replays for graph in graphs] == [6]
    assert graphs[0].devices == {torch.device("cpu")}  # that of the inputs, whichever is current outside
    assert graphs[0].mode == "thread_local"


def test_another_method_is_captured_anew(monkeypatch):
    graphs, copies = pretend_cuda(monkeypatch), []
    make_copy = steps.EvalCopy

    def counted(*given, **options):
        copies.append(make_copy(*given, **options))
        return copies[-1]

    monkeypatch.setattr(steps, "EvalCopy", counted)
    first, second = NAL(sigma=0.3, steps=0, draws=2), NAL(sigma=0.3, gamma=2.0, steps=2, draws=2)
    fast, slow = make(first, CompiledStep), make(first, TrainingStep)
    check_same(fast, slow, batches(2))
    for size in (0.0, 0.01):
        for step in (fast, slow):
            step.use(second, size)
        check_same(fast, slow, batches(3))
    fast.use(second, 0.01)
    check_same(fast, slow, batches(1))
    assert [graph.replays for graph in graphs] == [2, 3, 4]
    assert len(copies) == 1  # and it is compiled once


class Reading(nn.Module):
    """Asks the host what to do, as no capture allows."""

    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, x):
        return self.inner(x) * (2.0 if x.sum().item() > 0 else 1.0)


def test_what_cannot_be_captured_changes_no_number(monkeypatch):
    pretend_cuda(monkeypatch)
    method = NOISY
    fast, slow = (make(method, kind, Reading()) for kind in (CompiledStep, TrainingStep))
    with pytest.warns(UserWarning, match="could not be captured and runs slower: .* a number was read"):
        check_same(fast, slow, batches(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_same(fast, slow, batches(3))
    assert fast.graph is None


@pytest.mark.parametrize("error", [RuntimeError("capture failed"), torch.OutOfMemoryError("CUDA out of memory")])
def test_a_capture_that_fails_changes_no_number(error, monkeypatch):
    graphs = pretend_cuda(monkeypatch, fail=error)
    fast, slow = make(NOISY_ATTACK, CompiledStep), make(NOISY_ATTACK, TrainingStep)
    with pytest.warns(UserWarning, match=f"could not be captured and runs slower: {error}"):
        check_same(fast, slow, batches(1))
    check_same(fast, slow, batches(3))
    assert len(graphs) == 1


def refuse(*given, **options):
    raise RuntimeError("no compiler here")


class Refusing(nn.Module):
    """A compiled network that fails after some calls, when weights may have changed already."""

    def __init__(self, network, after):
        super().__init__()
        self.network, self.left = network, after

    def forward(self, x):
        self.left -= 1
        return self.network(x) if self.left >= 0 else refuse()


@pytest.mark.parametrize("after", [None, 0, 1], ids=["the copy", "at once", "in the middle"])
def test_what_cannot_be_copied_or_compiled_changes_no_number(after, monkeypatch):
    graphs = pretend_cuda(monkeypatch)
    fast, slow = make(NOISY_ATTACK, CompiledStep), make(NOISY_ATTACK, TrainingStep)
    if after is None:
        monkeypatch.setattr(steps, "EvalCopy", refuse)
    else:
        fast.compiled = Refusing(fast.model, after)
    with pytest.warns(UserWarning, match="could not be compiled .*: .*no compiler here"):
        check_same(fast, slow, batches(1))
    check_same(fast, slow, batches(3))
    assert [graph.replays for graph in graphs] == [4]


def test_a_state_that_is_restored_is_the_one_that_is_replayed(monkeypatch):
    pretend_cuda(monkeypatch)
    fast, slow = make(NOISY_ATTACK, CompiledStep), make(NOISY_ATTACK, TrainingStep)
    check_same(fast, slow, batches(2))
    kept = [(step, step.state()) for step in (fast, slow)]
    check_same(fast, slow, batches(2))
    for step, state in kept:
        step.restore(state)
    check_same(fast, slow, batches(2))
