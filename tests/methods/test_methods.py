"""Every method of the union goes through the same checks; then each meets a known answer."""

from typing import get_args

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rhobust.attacks.ascent import frozen
from rhobust.methods import AnyMethod, Erm, Gaussian, Nal
from rhobust.models import build_model
from rhobust.noise import BatchNoise, ExampleNoise, stream

METHODS = [*(method() for method in get_args(AnyMethod)), Nal(inner="paper"), Nal(noise="shared")]


@pytest.fixture
def network():
    return build_model(
        "cnn-small", shape=(1, 8, 8), classes=4, mean=[0.5], deviation=[0.3], activation="elu", seed=1
    ).train()


@pytest.fixture(scope="module")
def batch():
    generator = torch.Generator().manual_seed(5)
    return torch.rand(6, 1, 8, 8, generator=generator), torch.arange(6) % 4


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_the_loss_is_a_finite_scalar_with_gradients_for_every_weight(method, network, batch):
    value, squared_distance = method.loss(network, *batch, BatchNoise(stream(0, "noise")))
    assert value.shape == ()
    assert value.isfinite()
    assert squared_distance.shape == (6,)
    assert not squared_distance.requires_grad
    value.backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in network.parameters())


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_the_stream_alone_decides_the_loss(method, network, batch):
    losses = [method.loss(network, *batch, BatchNoise(stream(seed, "noise"))).value.item() for seed in (0, 0, 1)]
    assert losses[0] == losses[1]
    assert (losses[0] == losses[2]) == isinstance(method, Erm)


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_a_batch_is_the_mean_of_its_examples(method, network, batch):
    x, y = batch
    whole = method.loss(network, x, y, ExampleNoise(0, "noise", range(6)))
    single = [method.loss(network, x[i : i + 1], y[i : i + 1], ExampleNoise(0, "noise", [i])) for i in range(6)]
    assert whole.value.item() == pytest.approx(sum(one.value.item() for one in single) / 6, rel=1e-5)
    assert torch.allclose(whole.squared_distance, torch.cat([one.squared_distance for one in single]), rtol=1e-3)


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_the_model_keeps_its_mode_and_stale_gradients(method, network, batch):
    network.network[0].weight.grad = torch.full_like(network.network[0].weight, 3.0)
    method.loss(network, *batch, BatchNoise(stream(0, "noise")))
    assert network.training
    assert (network.network[0].weight.grad == 3.0).all()
    assert all(parameter.requires_grad for parameter in network.parameters())


def test_erm_and_gaussian_are_cross_entropy(network, batch):
    x, y = batch
    assert Erm().loss(network, x, y, BatchNoise(stream(0, "n"))).value == F.cross_entropy(network(x), y)
    noise = ExampleNoise(3, "n", range(6)).normal(x, 2)
    expected = torch.stack([F.cross_entropy(network(x + 0.2 * z), y) for z in noise]).mean()
    value = Gaussian(sigma=0.2, draws=2).loss(network, x, y, ExampleNoise(3, "n", range(6))).value
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)


class Linear(nn.Module):
    """Two classes; the loss's gradient in x is known in closed form."""

    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x):
        value = x.flatten(1) @ self.weight
        return torch.stack([value, -value], dim=1)

    def mean_gradient(self, x, noise, y):
        """The gradient of the mean cross-entropy over the draws: -2 s w sigmoid(-2 s w.(x + z)), s = 1 or -1."""
        sign = 1.0 - 2.0 * y
        margin = (x + noise).flatten(2) @ self.weight * sign
        weight = -2 * sign * torch.sigmoid(-2 * margin).mean(0)
        return (weight[:, None] * self.weight).view_as(x)


@pytest.fixture
def linear():
    return Linear(torch.linspace(-1, 1, 16, dtype=torch.float64))


@pytest.fixture
def linear_batch():
    generator = torch.Generator().manual_seed(2)
    return torch.rand(5, 1, 4, 4, generator=generator, dtype=torch.float64), torch.tensor([0, 1, 0, 1, 1])


class Repeat:
    """Noise that was drawn before, call by call."""

    def __init__(self, blocks):
        self.blocks = iter(blocks)

    def normal(self, x, draws):
        block = next(self.blocks)
        assert block.shape == (draws, *x.shape)
        return block


def noise_blocks(count, draws, x):
    generator = torch.Generator().manual_seed(9)
    return [torch.randn(draws, *x.shape, generator=generator, dtype=x.dtype) for _ in range(count)]


def test_the_papers_inner_step_is_its_fixed_point_map(linear, linear_batch):
    x, y = linear_batch
    method = Nal(sigma=0.3, gamma=0.7, steps=3, draws=4, inner="paper")
    blocks = noise_blocks(3, 4, x)
    with frozen(linear), torch.no_grad():
        found = method.maximise(linear, x, y, Repeat(blocks))
        expected = x
        for block in blocks:
            z = 0.3 * block
            expected = x - z.mean(0) + linear.mean_gradient(expected, z, y) / (2 * 0.7)
    assert torch.allclose(found, expected, atol=1e-12)


def test_the_damped_inner_step_uses_the_exact_cost_gradient(linear, linear_batch):
    x, y = linear_batch
    method = Nal(sigma=0.3, gamma=0.7, steps=3, draws=4)
    blocks = noise_blocks(3, 4, x)
    with frozen(linear), torch.no_grad():
        found = method.maximise(linear, x, y, Repeat(blocks))
        expected = x
        for k, block in enumerate(blocks):
            gradient = linear.mean_gradient(expected, 0.3 * block, y) - 2 * 0.7 * (expected - x)
            expected = expected + gradient / (2 * 0.7 * (k + 1) ** 0.5)
    assert torch.allclose(found, expected, atol=1e-12)


def test_the_damped_solver_reaches_the_maximiser(linear, linear_batch):
    # Above the concavity threshold the maximiser solves x = x0 + mean gradient / (2 gamma) for fixed noise.
    x, y = linear_batch
    method = Nal(sigma=0.1, gamma=30.0, steps=200, draws=3, noise="shared")
    shared = 0.1 * noise_blocks(1, 3, x)[0]
    with frozen(linear):
        found = method.maximise(linear, x, y, Repeat([]), shared)
        fixed_point = x + linear.mean_gradient(found, shared, y) / (2 * 30.0)
    assert torch.allclose(found, fixed_point, atol=1e-9)


def test_shared_noise_is_drawn_once(linear, linear_batch):
    x, y = linear_batch
    blocks = noise_blocks(1, 4, x)
    Nal(noise="shared", steps=3).loss(linear, x, y, Repeat(blocks))
    with pytest.raises(StopIteration):
        Nal(noise="fresh", steps=3).loss(linear, x, y, Repeat(blocks))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Nal(sigma=-1), "sigma must be > 0, got -1"),
        (lambda: Nal(gamma=0), "gamma must be > 0, got 0"),
        (lambda: Nal(steps=0), "steps must be >= 1, got 0"),
        (lambda: Nal(draws=0), "draws must be >= 1, got 0"),
        (lambda: Nal(step_size=-0.1), "step_size must be > 0"),
        (lambda: Nal(sigma=float("nan")), "sigma must be > 0, got nan"),
        (lambda: Gaussian(sigma=0), "sigma must be > 0, got 0"),
        (lambda: Gaussian(draws=0), "draws must be >= 1, got 0"),
    ],
)
def test_bad_hyper_parameters_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
