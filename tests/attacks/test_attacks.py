"""Every attack of the union goes through the same checks; then each meets a known answer."""

from typing import get_args

import pytest
import torch

from rhobust.attacks import AnyAttack, Autoattack, Eot, Pgd
from rhobust.attacks.ball import random_point
from rhobust.attacks.losses import smoothed_loss
from rhobust.data import to_unit
from rhobust.models import build_model
from rhobust.noise import ExampleNoise

QUICK = {Autoattack: {"steps": 5, "draws": 4}}
"""Options for attacks that take long by default."""
ATTACKS = [
    *(attack(**QUICK.get(attack, {})) for attack in get_args(AnyAttack)),
    Pgd(norm="linf"),
    Pgd(random_start=True),
    Autoattack(norm="linf", steps=5, draws=4),
    Autoattack("standard", steps=5, queries=20),
    Autoattack("standard", norm="linf", steps=5, queries=20),
]


@pytest.fixture(scope="module")
def network():
    return build_model(
        "cnn-small", shape=(1, 8, 8), classes=4, mean=[0.5], deviation=[0.3], activation="elu", seed=1
    ).train()


@pytest.fixture(scope="module")
def batch():
    generator = torch.Generator().manual_seed(5)
    return torch.rand(6, 1, 8, 8, generator=generator), torch.arange(6) % 4


def attacked(attack, model, x, y, names=None, eps=0.5):
    names = list(range(len(x))) if names is None else names
    return attack(model, x, y, eps=eps, sigma=0.25, rng=ExampleNoise(0, "test", names))


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_stays_in_the_ball_and_in_the_unit_box(attack, network, batch):
    moved = attacked(attack, network, *batch)
    offset = (moved - batch[0]).flatten(1)
    size = offset.abs().amax(1) if getattr(attack, "norm", "l2") == "linf" else offset.norm(dim=1)
    assert size.max() <= 0.5 + 1e-6
    assert size.min() > 0.01
    assert moved.min() >= 0
    assert moved.max() <= 1


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_raises_the_loss(attack, network, batch):
    x, y = batch
    before = smoothed_loss(network.eval(), x, y, sigma=0.25, draws=200, rng=ExampleNoise(1, "judge", range(6)))
    after = smoothed_loss(
        network, attacked(attack, network, x, y), y, sigma=0.25, draws=200, rng=ExampleNoise(1, "judge", range(6))
    )
    network.train()
    assert (after > before).all()


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_a_batch_equals_its_examples_one_by_one(attack, network, batch):
    x, y = batch
    whole = attacked(attack, network, x, y)
    single = torch.cat([attacked(attack, network, x[i : i + 1], y[i : i + 1], [i]) for i in range(len(x))])
    assert torch.allclose(whole, single, atol=2e-5)


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_leaves_the_model_as_it_was(attack, network, batch):
    before = {key: value.clone() for key, value in network.state_dict().items()}
    first = attacked(attack, network, *batch)
    assert torch.equal(first, attacked(attack, network, *batch))
    assert network.training
    assert all(parameter.grad is None and parameter.requires_grad for parameter in network.parameters())
    assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())


def test_pgd_finds_the_nearest_point_of_a_half_space(half_space, grey_images):
    x, y = to_unit(grey_images.images), grey_images.labels
    distance = half_space(x)[:, 1].abs()
    moved = attacked(Pgd(steps=20), half_space, x, y, eps=0.7)
    broken = half_space(moved).argmax(1) != y
    assert torch.equal(broken, distance < 0.7)
    assert torch.allclose((moved - x).flatten(1).norm(dim=1), torch.full((40,), 0.7), atol=1e-5)


def test_eot_needs_sigma(network, batch):
    with pytest.raises(ValueError, match="sigma must be given"):
        Eot()(network, *batch, eps=0.5, sigma=None, rng=ExampleNoise(0, "test", range(6)))


def test_smoothed_loss_is_minus_log_of_the_mean_softmax(network, batch):
    x, y = batch
    network.eval()
    loss = smoothed_loss(network, x, y, sigma=0.3, draws=5, rng=ExampleNoise(2, "loss", range(6)))
    noise = 0.3 * ExampleNoise(2, "loss", range(6)).normal(x, 5)
    probability = torch.stack([network(x + z).softmax(1)[range(6), y] for z in noise]).mean(0)
    network.train()
    assert torch.allclose(loss, -probability.log(), atol=1e-5)


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_random_points_fill_the_ball(norm):
    x = torch.full((2000, 1, 2, 2), 0.5)
    offset = (random_point(x, 0.4, norm, ExampleNoise(0, "start", range(2000))) - x).flatten(1)
    size = offset.norm(dim=1) if norm == "l2" else offset.abs().amax(1)
    assert size.max() <= 0.4 + 1e-6
    # Half of a ball's volume in four dimensions lies beyond 2^(-1/4) of its radius.
    assert (size > 0.4 * 0.5**0.25).float().mean().item() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Pgd(steps=0), "steps must be >= 1, got 0"),
        (lambda: Pgd(relative_step=0), "relative_step must be > 0"),
        (lambda: Eot(draws=0), "draws must be >= 1, got 0"),
        (lambda: Eot(steps=-1), "steps must be >= 1"),
    ],
)
def test_bad_hyper_parameters_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
