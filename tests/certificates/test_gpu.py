"""What only a GPU can show: the noise of a CPU, and votes that no batch changes in bf16, compiled and captured."""

import pytest
import torch

from rhobust.certificates import Cohen, Grid, Smoothing, VoteCounter, certify_inputs, check_alone, count_votes, votes
from rhobust.models import build_model
from rhobust.noise import grid_block, grid_steps, grid_thresholds, key_words, stream_key

pytestmark = pytest.mark.gpu
FAST = Smoothing(0.25, 10, dtype="bfloat16", compiled=True)


@pytest.fixture(scope="module")
def network():
    """A random ResNet-18 of CIFAR's shape."""
    return build_model(
        "resnet18", shape=(3, 32, 32), classes=10, mean=[0.5] * 3, deviation=[0.25] * 3, activation="relu", seed=0
    ).to("cuda")


@pytest.fixture(scope="module")
def images():
    rng = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (12, 3, 32, 32), dtype=torch.uint8, generator=rng).to("cuda")


def test_the_counter_draws_the_same_on_both():
    keys = torch.tensor([key_words(stream_key(0, "test", index)) for index in range(6)])
    rows = torch.tensor([0, 1, 5, 127, 3, 9])
    here = grid_steps(keys, rows, 77, grid_thresholds(0.25, "cpu"))
    there = grid_steps(keys.cuda(), rows.cuda(), 77, grid_thresholds(0.25, "cuda"))
    assert torch.equal(here, there.cpu())
    block = grid_block(stream_key(0, "test", 4), (10, 77), 0.25, "cuda").cpu()
    assert torch.equal(block[3], (here[4] - len(grid_thresholds(0.25, "cpu")) // 2).to(torch.int16))


@pytest.mark.parametrize("smoothing", [Smoothing(0.25, 10, dtype="tf32"), Smoothing(0.25, 10), FAST], ids=repr)
def test_no_batch_changes_a_vote(network, images, smoothing):
    whole = count_votes(network, images, smoothing, indices=range(12), draws=3000, purpose="test")
    assert (whole.sum(1) == 3000).all()
    order = torch.tensor([7, 3, 11])
    part = count_votes(network, images[order.cuda()], smoothing, indices=order.tolist(), draws=3000, purpose="test")
    assert torch.equal(part, whole[order.cuda()])


def test_a_capture_changes_no_vote(network, images, monkeypatch):
    captured = certify_inputs(network, images, FAST, Cohen(100, 5000), indices=range(12), alpha=0.001)
    monkeypatch.setattr(VoteCounter, "_capture", lambda self, plan: None)
    assert certify_inputs(network, images, FAST, Cohen(100, 5000), indices=range(12), alpha=0.001) == captured


def test_haste_changes_no_certificate(network, images, monkeypatch):
    way = Grid((0.0, 0.25, 0.5), n=20_000)
    hasty = certify_inputs(network, images, FAST, way, indices=range(12), alpha=0.001)
    monkeypatch.setitem(votes.AHEAD, "cuda", 0)
    assert certify_inputs(network, images, FAST, way, indices=range(12), alpha=0.001) == hasty


@pytest.mark.parametrize("smoothing", [Smoothing(0.25, 10, dtype="tf32"), FAST], ids=repr)
def test_the_network_answers_each_input_alone(network, images, smoothing):
    check_alone(VoteCounter(network, images, smoothing))


def test_the_graph_is_there_after_the_warm_up(network, images):
    counter = VoteCounter(network, images, FAST)
    counter.warm_up()
    assert counter.graph is not None
