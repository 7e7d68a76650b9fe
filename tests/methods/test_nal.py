"""The inner maximisers of NAL and WRM against closed forms, fixed points and a fine grid."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rhobust.methods import NAL, WRM
from rhobust.methods.base import consistency_loss
from rhobust.models.inference import frozen
from rhobust.noise import BatchNoise, DrawnNoise, ExampleNoise, stream


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
    with pytest.raises(ValueError, match="StopIteration"):
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


class Wall(nn.Module):
    """Two classes, a wall at the mean pixel value 0.5: images below it are of class 0."""

    def __init__(self):
        super().__init__()
        self.anchor = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, x):
        value = 60 * (x.flatten(1).mean(1) - 0.5) + self.anchor
        return torch.stack([-value / 2, value / 2], dim=1)


def flat(*levels):
    """Images of one colour each: a step of length d along the gradient changes the mean by d / 4."""
    return torch.stack([torch.full((1, 4, 4), level, dtype=torch.float64) for level in levels])


def maximiser_of(method, x, y):
    network = Wall()
    with frozen(network):
        return method.maximise(network, x, y, DrawnNoise(torch.zeros(1, *x.shape, dtype=x.dtype)))


def distance(worst, x):
    return (worst - x).flatten(1).norm(dim=1)


def test_search_finds_the_best_point_of_a_fine_grid():
    # The error at distance d is sigmoid(60 (level + d / 4 - 0.5)): the wall is 0.4, 0.8 and 2 away.
    x, y = flat(0.4, 0.3, 0.0), torch.zeros(3, dtype=torch.long)
    gamma, steps = 0.5, 400
    found = distance(maximiser_of(NAL(gamma=gamma, draws=1, steps=steps, inner="search"), x, y), x)
    reach = torch.linspace(0, gamma**-0.5, 100_001, dtype=torch.float64)
    for level, far in zip((0.4, 0.3, 0.0), found, strict=True):
        worth = torch.sigmoid(60 * (level + reach / 4 - 0.5)) - gamma * reach.square()
        assert far.item() == pytest.approx(reach[worth.argmax()].item(), abs=gamma**-0.5 / steps)
    assert found[0] > 0.4
    assert found[1] > 0.8
    assert found[2] == 0, "beyond 1 / sqrt(gamma) no error pays for the distance"


def test_search_leaves_a_flat_region_where_the_damped_solver_stays():
    x, y = flat(0.3), torch.tensor([0])
    damped, search = (
        distance(maximiser_of(NAL(gamma=0.5, draws=1, inner=inner), x, y), x) for inner in ("damped", "search")
    )
    assert damped < 1e-3
    assert search > 0.8


def test_a_misclassified_input_is_its_own_maximiser():
    x, y = flat(0.9, 0.6), torch.zeros(2, dtype=torch.long)
    assert (maximiser_of(NAL(gamma=0.5, draws=1, inner="search"), x, y) == x).all()


@pytest.mark.parametrize("gamma", [0.1, 1.0, 10.0])
def test_no_input_moves_beyond_one_over_the_root_of_gamma(gamma):
    x, y = flat(*torch.linspace(0, 0.9, 10).tolist()), torch.zeros(10, dtype=torch.long)
    assert distance(maximiser_of(NAL(gamma=gamma, draws=1, steps=7, inner="search"), x, y), x).max() <= gamma**-0.5


def test_iterates_are_compared_under_the_same_noise():
    calls = []

    class Counting:
        def normal(self, x, draws):
            calls.append(draws)
            return torch.zeros(draws, *x.shape, dtype=x.dtype)

    network, x, y = Wall(), flat(0.4), torch.tensor([0])
    NAL(steps=5, draws=3, inner="search").loss(network, x, y, Counting())
    assert calls == [3, 3], "one sample for the inner problem, one for the weights"
    calls.clear()
    NAL(steps=5, draws=3, inner="search", noise="shared").loss(network, x, y, Counting())
    assert calls == [3]


def test_search_takes_no_step_size():
    with pytest.raises(ValueError, match=r"step_size must be None for the inner solver search, got 0\.3"):
        NAL(inner="search", step_size=0.3)


def test_the_penalty_from_which_the_input_is_optimal():
    x, y = flat(0.3), torch.tensor([0])
    away = torch.linspace(0.01, 3, 100_001, dtype=torch.float64)
    penalty = (torch.sigmoid(60 * (away / 4 - 0.2)) / away.square()).max().item()
    for gamma, leaves in ((0.97 * penalty, True), (1.03 * penalty, False)):
        method = NAL(gamma=gamma, draws=1, steps=256, inner="search")
        assert bool(distance(maximiser_of(method, x, y), x) > 0.5) == leaves


def test_nal_adds_the_consistency_loss_at_its_maximiser(network, batch):
    x, y = batch
    method = NAL(noise="shared", draws=3, agreement=5.0)
    shared = method.sigma * ExampleNoise(0, "n", range(6)).normal(x, 3)
    worst = method.maximise(network, x, y, BatchNoise(stream(1, "n")), shared)
    logits = network((worst + shared).flatten(0, 1))
    expected = F.cross_entropy(logits, y.repeat(3)) + consistency_loss(logits, 3, 5.0)
    value = method.loss(network, x, y, ExampleNoise(0, "n", range(6))).value
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)


def test_consistency_needs_two_samples():
    with pytest.raises(ValueError, match="draws must be >= 2 for consistency regularization, got 1"):
        NAL(draws=1, agreement=10.0)
    with pytest.raises(ValueError, match="agreement must be >= 0, got -1"):
        NAL(agreement=-1.0)
