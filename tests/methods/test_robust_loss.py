"""A method in somebody's own loop: plain, under autocast, wrapped, in several processes."""

import copy
import os
import traceback
from multiprocessing import get_context

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rhobust
from rhobust.data import to_unit
from rhobust.methods import ERM, NAL, TRADES, Gaussian, SmoothAdv
from rhobust.models import build_model
from rhobust.noise import BatchNoise, stream

X = torch.linspace(0, 1, 6 * 16).view(6, 1, 4, 4)
Y = torch.tensor([0, 1, 2, 0, 1, 2])


def network():
    return build_model("cnn-small", shape=(1, 4, 4), classes=3, mean=[0.5], deviation=[0.5], activation="relu", seed=0)


class Normed(nn.Module):
    """With batch norm and dropout, which inner loops must not touch."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))

    def forward(self, x):
        return self.body(x)


@pytest.mark.parametrize("method", [ERM(), Gaussian(), NAL(sigma=0.25), TRADES(steps=2), SmoothAdv(steps=2)], ids=repr)
def test_it_is_the_methods_loss(method):
    model, other = network(), network()
    loss = rhobust.robust_loss(method, seed=3)(model, X, Y)
    expected = method.loss(other, X, Y, BatchNoise(stream(3, "robust-loss", 0))).value
    assert torch.equal(loss, expected)
    loss.backward()
    expected.backward()
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)
        assert ours.requires_grad
    assert model.training


def test_a_plain_loop_learns():
    digits = rhobust.load("digits", "train")
    images, labels = to_unit(digits.images), digits.labels
    model = build_model(
        "cnn-small", shape=digits.shape, classes=10, mean=[0.3], deviation=[0.4], activation="relu", seed=0
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    loss_fn = rhobust.robust_loss(NAL(sigma=0.25, gamma=4.0, steps=1, draws=1))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    losses = []
    for batch in [*order.split(100)] * 2:
        loss = loss_fn(model, images[batch], labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.5
    assert 0 < loss_fn.squared_distance.mean().sqrt() < 5


def test_the_seed_the_stream_and_a_checkpoint_decide_the_noise():
    model = network()
    one, other = (rhobust.robust_loss(NAL(), seed=1) for _ in range(2))
    first, second = (one(model, X, Y).item() for _ in range(2))
    assert first != second
    assert other(model, X, Y).item() == first
    resumed = rhobust.robust_loss(NAL(), seed=5)
    resumed.load_state_dict(other.state_dict())
    assert resumed(model, X, Y).item() == second
    given = [one(model, X, Y, rng=torch.Generator().manual_seed(4)).item() for _ in range(2)]
    assert given[0] == given[1]
    assert repr(one) == f"robust_loss({NAL()!r}, seed=1)"


def test_uint8_and_half_inputs_are_taken():
    pixels = (X * 255).round().to(torch.uint8)
    made = [rhobust.robust_loss(NAL())(network(), x, Y).item() for x in (pixels, to_unit(pixels))]
    assert made[0] == made[1]
    assert torch.isfinite(rhobust.robust_loss(NAL())(network(), X.half(), Y))


def test_autocast():
    model = network()
    with torch.autocast("cpu", torch.bfloat16):
        loss = rhobust.robust_loss(NAL(sigma=0.25))(model, X, Y)
    loss.backward()
    exact = rhobust.robust_loss(NAL(sigma=0.25))(network(), X, Y)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=0.05)


def test_batch_norm_sees_the_outer_step_only():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Normed()
    rhobust.robust_loss(NAL(sigma=0.25, steps=5))(model, X, Y).backward()
    assert model.body[1].num_batches_tracked == 1
    assert all(module.training for module in model.modules())


class Wrapper(nn.Module):
    """What frameworks put around a network: another forward, and the network inside."""

    def __init__(self, module):
        super().__init__()
        self._forward_module = module

    def forward(self, *args, **kwargs):
        return self._forward_module(*args, **kwargs).float()


def test_the_wrapper_of_a_framework_changes_nothing():
    assert rhobust.robust_loss(NAL())(Wrapper(network()), X, Y) == rhobust.robust_loss(NAL())(network(), X, Y)


def compare_in_parallel(store):
    """Losses and gradients of a network in DistributedDataParallel are its own."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    for find_unused in (False, True):
        plain = network()
        model = DistributedDataParallel(copy.deepcopy(plain), find_unused_parameters=find_unused)
        loss_fn, same = rhobust.robust_loss(NAL(sigma=0.25)), rhobust.robust_loss(NAL(sigma=0.25))
        for _ in range(2):
            model.zero_grad()
            plain.zero_grad()
            loss, expected = loss_fn(model, X, Y), same(plain, X, Y)
            loss.backward()
            expected.backward()
            assert torch.equal(loss, expected)
            for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
                assert torch.equal(ours.grad, theirs.grad)


def end_with(function, argument):
    """Call a function, and end the process without torch's destructors.

    That of gloo's group holds Python's lock and waits for a thread that may be waiting for the lock.
    """
    try:
        function(argument)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def test_distributed_data_parallel(tmp_path):
    started = get_context("spawn").Process(target=end_with, args=(compare_in_parallel, tmp_path / "store"))
    started.start()
    started.join(120)
    assert started.exitcode == 0


class Nothing:
    def loss(self, model, x, y, rng):
        return model(x).sum()


def test_mistakes_are_one_line():
    with pytest.raises(ValueError, match=r"method must be a training method such as NAL\(sigma=0\.25\), got the class"):
        rhobust.robust_loss(NAL)
    with pytest.raises(ValueError, match="got a str"):
        rhobust.robust_loss("nal")
    with pytest.raises(ValueError, match="seed must be an int, got a float"):
        rhobust.robust_loss(NAL(), seed=1.5)
    loss_fn = rhobust.robust_loss(NAL())
    with pytest.raises(ValueError, match=r"x must be in \[0, 1\], got .*: they look normalised"):
        loss_fn(network(), 2 * X - 1, Y)
    with pytest.raises(ValueError, match="the loss must be computed with gradients"), torch.no_grad():
        loss_fn(network(), X, Y)
    with pytest.raises(ValueError, match=r"the network must be a torch\.nn\.Module"):
        loss_fn(lambda x: x, X, Y)
    with pytest.raises(ValueError, match=r"a method's loss must return a rhobust\.methods\.Loss, got a Tensor"):
        rhobust.robust_loss(Nothing())(network(), X, Y)
