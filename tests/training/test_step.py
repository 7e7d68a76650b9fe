"""The compiled step on a GPU against the reference step."""

import warnings
from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch import nn

from rhobust.methods import ERM, NAL, AnyMethod, Gaussian
from rhobust.models import build_model
from rhobust.noise import BatchNoise, stream
from rhobust.progress import no_progress
from rhobust.training import TrainConfig, train
from rhobust.training.distributed import ProcessGroup
from rhobust.training.step import CompiledStep, TrainingStep

# torch warns about its own parts while it compiles; what we warn of is checked below.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

CUDA = torch.device("cuda")
SHAPE, BATCH = (3, 32, 32), 32


def make(method, *, fast, seed=0, model=None):
    if model is None:
        model = build_model(
            "resnet18", shape=SHAPE, classes=10, mean=[0.5] * 3, deviation=[0.25] * 3, activation="relu", seed=0
        )
    model = model.to(CUDA).train()
    options = {"lr": torch.tensor(1e-3, device=CUDA), "fused": True, "capturable": True}
    optimizer = torch.optim.Adam(model.parameters(), **options)
    parts = (model, method, optimizer, BatchNoise(stream(seed, "noise", device=CUDA)), ProcessGroup(), None)
    return CompiledStep(*parts, size=BATCH) if fast else TrainingStep(*parts)


def batches(count):
    generator = torch.Generator(CUDA).manual_seed(1)
    x = [torch.rand(BATCH, *SHAPE, generator=generator, device=CUDA) for _ in range(count)]
    y = [torch.randint(10, (BATCH,), generator=generator, device=CUDA) for _ in range(count)]
    return list(zip(x, y, [torch.ones((), device=CUDA)] * count, strict=True))


def losses(step, data):
    return torch.stack([step(*batch).value for batch in data])


@pytest.mark.parametrize("method", [cls() for cls in get_args(AnyMethod)], ids=repr)
def test_every_method_is_captured_and_close_to_the_reference_step(method):
    data = batches(6)
    fast = make(method, fast=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the training step could not be")
        found = losses(fast, data)
    assert fast.graph is not None
    # bf16 has three significant digits; the first loss is before any update.
    expected = losses(make(method, fast=False), data)
    assert found[0].item() == pytest.approx(expected[0].item(), rel=0.02)
    assert torch.allclose(found, expected, rtol=0.1)


def test_the_seed_decides_the_run_and_every_replay_draws_fresh_noise():
    data = batches(1) * 4
    runs = [losses(make(Gaussian(sigma=0.5), fast=True, seed=seed), data) for seed in (0, 0, 1)]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
    still = make(Gaussian(sigma=0.5), fast=True)
    for group in still.optimizer.param_groups:
        group["lr"].zero_()
    assert len(losses(still, data).unique()) == 4


def test_a_perturbed_step_is_captured_and_its_running_statistics_are_those_of_the_weights():
    method, data = NAL(agreement=4.0), batches(6)
    fast, slow = make(method, fast=True), make(method, fast=False)
    still = make(method, fast=True)
    for step, size in ((fast, 0.01), (slow, 0.01), (still, 0.0)):
        step.perturbation = size
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the training step could not be")
        found = losses(fast, data)
    assert fast.graph is not None
    assert torch.allclose(found, losses(slow, data), rtol=0.1)
    assert not torch.equal(found[1:], losses(still, data)[1:])
    tracked = {int(value) for name, value in fast.model.named_buffers() if name.endswith("num_batches_tracked")}
    assert tracked == {6}


def test_an_attack_that_begins_later_is_captured_too():
    data, method = batches(6), NAL(agreement=4.0)
    fast, slow = make(replace(method, steps=0), fast=True), make(replace(method, steps=0), fast=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the training step could not be")
        found = [losses(fast, data[:3])]
        fast.use(method, 0.0)
        assert fast.graph is None
        found.append(losses(fast, data[3:]))
    assert fast.graph is not None
    expected = [losses(slow, data[:3])]
    slow.use(method, 0.0)
    expected.append(losses(slow, data[3:]))
    assert torch.allclose(torch.cat(found), torch.cat(expected), rtol=0.1)
    assert (fast(*data[0]).squared_distance > 0).all()


def test_odd_batches_train_too():
    step = make(ERM(), fast=True)
    (x, y, share), *_ = batches(1)
    losses(step, batches(2))
    assert step(x[:7], y[:7], share).value.isfinite()
    assert losses(step, batches(1)).isfinite().all()


class Branching(nn.Module):
    """A network that cannot be captured: it asks the host what to do."""

    def __init__(self):
        super().__init__()
        self.flat, self.dense = nn.Flatten(), nn.Linear(3072, 10)

    def forward(self, x):
        return self.dense(self.flat(x)) * (2.0 if x.sum().item() > 0 else 1.0)


def test_a_network_that_cannot_be_captured_falls_back_with_a_warning():
    with torch.random.fork_rng():
        model = Branching()
    step = make(ERM(), fast=True, model=model)
    with pytest.warns(UserWarning, match="the training step could not be captured and runs slower"):
        first = losses(step, batches(1))
    assert first.isfinite().all()
    assert step.graph is None
    # The failed capture leaves nothing behind: torch's own generator draws, and the next network is captured.
    assert torch.rand(3, device=CUDA).isfinite().all()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the training step could not be")
        following = make(ERM(), fast=True)
        losses(following, batches(2))
    assert following.graph is not None


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_run_through_the_real_command_learns_and_resumes(tmp_path, optimizer):
    rate = {"adam": 2e-3, "sgd": 5e-2}[optimizer]
    config = TrainConfig(
        NAL(sigma=0.25, gamma=2.0, draws=2), "digits", "cnn-small", epochs=6, lr=rate, optimizer=optimizer
    )
    run = train(replace(config, schedule="cosine"), tmp_path / "run", device=CUDA, progress=no_progress)
    assert run.metrics()[-1]["accuracy"] > 0.85
