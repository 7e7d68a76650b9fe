"""The maximisers of penalised losses, NAL's and WRM's, meet their closed forms."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rhobust.methods import NAL, WRM
from rhobust.models.inference import frozen
from rhobust.noise import BatchNoise, stream


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
    method = NAL(sigma=0.3, gamma=0.7, steps=3, draws=4, inner="paper")
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
    method = NAL(sigma=0.3, gamma=0.7, steps=3, draws=4)
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
    method = NAL(sigma=0.1, gamma=30.0, steps=200, draws=3, noise="shared")
    shared = 0.1 * noise_blocks(1, 3, x)[0]
    with frozen(linear):
        found = method.maximise(linear, x, y, Repeat([]), shared)
        fixed_point = x + linear.mean_gradient(found, shared, y) / (2 * 30.0)
    assert torch.allclose(found, fixed_point, atol=1e-9)


def test_shared_noise_is_drawn_once(linear, linear_batch):
    x, y = linear_batch
    blocks = noise_blocks(1, 4, x)
    NAL(noise="shared", steps=3).loss(linear, x, y, Repeat(blocks))
    with pytest.raises(StopIteration):
        NAL(noise="fresh", steps=3).loss(linear, x, y, Repeat(blocks))


class Quadratic(nn.Module):
    """Logits whose cross-entropy with label 0 is the quadratic c + g.x + x.A x / 2."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(4)
        basis, _ = torch.linalg.qr(torch.randn(16, 16, generator=generator, dtype=torch.float64))
        self.curvature = basis @ torch.diag(torch.linspace(-1, 1, 16, dtype=torch.float64)) @ basis.T
        self.slope = torch.randn(16, generator=generator, dtype=torch.float64)
        self.anchor = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, x):
        flat = x.flatten(1)
        value = 30 + flat @ self.slope + 0.5 * (flat @ self.curvature * flat).sum(1) + self.anchor
        return torch.stack([-torch.expm1(value).log(), torch.zeros_like(value)], dim=1)

    def maximiser(self, x, gamma, noise, cost_noise):
        """Where g + A (x + noise) = 2 gamma (x + cost_noise - x0)."""
        right = 2 * gamma * (x - cost_noise).flatten(1) + self.slope + noise.flatten(1) @ self.curvature
        return torch.linalg.solve(2 * gamma * torch.eye(16, dtype=x.dtype) - self.curvature, right.T).T.view_as(x)


@pytest.mark.parametrize("gamma", [0.8, 5.0])
def test_wrm_and_nal_reach_the_maximiser_of_a_quadratic(gamma, linear_batch):
    # The largest curvature is 1: the penalised loss is strictly concave above gamma 1/2.
    x, y = linear_batch[0], torch.zeros(5, dtype=torch.int64)
    shared = 0.3 * noise_blocks(1, 4, x)[0]
    mean, none = shared.mean(0), torch.zeros_like(x)
    model = Quadratic()
    with frozen(model):
        wrm = WRM(gamma=gamma, steps=800).maximise(model, x, y)
        damped = NAL(sigma=0.3, gamma=gamma, steps=800).maximise(model, x, y, Repeat([]), shared)
        paper = NAL(sigma=0.3, gamma=gamma, steps=100, inner="paper").maximise(model, x, y, Repeat([]), shared)
    assert torch.allclose(wrm, model.maximiser(x, gamma, none, none), atol=1e-8)
    assert torch.allclose(damped, model.maximiser(x, gamma, mean, none), atol=1e-8)
    assert torch.allclose(paper, model.maximiser(x, gamma, mean, mean), atol=1e-8)


def test_wrms_iterates_are_sinhas(linear, linear_batch):
    x, y = linear_batch
    none = torch.zeros(1, *x.shape, dtype=x.dtype)
    with frozen(linear), torch.no_grad():
        found = WRM(gamma=0.4).maximise(linear, x, y)
        expected = x + linear.mean_gradient(x, none, y) / (2 * 0.4)
        for t in range(15):
            pull = linear.mean_gradient(expected, none, y) / (2 * 0.4) - (expected - x)
            expected = expected + 1 / (t + 2) ** 0.5 * pull
    assert torch.allclose(found, expected, atol=1e-12)
    assert found.max() > 1, "nothing is clipped"
    value, squared_distance = WRM(gamma=0.4).loss(linear, x, y, Repeat([]))
    assert value.item() == pytest.approx(F.cross_entropy(linear(expected), y).item(), rel=1e-9)
    assert torch.allclose(squared_distance, (expected - x).flatten(1).norm(dim=1) ** 2)


@pytest.mark.parametrize("inner", ["damped", "paper"])
def test_nal_trains_on_noisy_copies_of_its_maximiser(inner, network, batch):
    x, y = batch
    method = NAL(sigma=0.2, gamma=0.05, draws=3, inner=inner)
    value, squared_distance = method.loss(network, x, y, BatchNoise(stream(7, "noise")))
    noise = BatchNoise(stream(7, "noise"))
    worst = method.maximise(network, x, y, noise)
    drawn = noise.normal(x, 3)
    copies = [F.cross_entropy(network(worst + 0.2 * one), y).item() for one in drawn]
    at_home = [F.cross_entropy(network(x + 0.2 * one), y).item() for one in drawn]
    assert value.item() == pytest.approx(sum(copies) / 3, rel=1e-5)
    assert value.item() > sum(at_home) / 3 + 1e-3
    assert torch.allclose(squared_distance, (worst - x).flatten(1).square().sum(1), rtol=1e-5)
