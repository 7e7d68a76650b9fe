"""Every method of the union goes through the same checks; then each meets a known answer."""

import math
from collections import Counter
from typing import get_args

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from rhobust import attacks
from rhobust.attacks.ascent import Lender, Lent, frozen, label_losses
from rhobust.methods import AnyMethod, Erm, Gaussian, Nal, Pgd, Smoothadv, Stn, Trades, Wrm
from rhobust.methods.trades import divergence
from rhobust.noise import BatchNoise, ExampleNoise, stream

METHODS = [*(method() for method in get_args(AnyMethod)), Nal(inner="paper"), Nal(noise="shared")]
NOISELESS = (Erm, Pgd, Wrm)


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
    assert (losses[0] == losses[2]) == isinstance(method, NOISELESS)


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


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_a_label_may_be_a_distribution(method, network, batch):
    x, y = batch
    hard = method.loss(network, x, y, ExampleNoise(0, "noise", range(6)))
    certain = method.loss(network, x, F.one_hot(y, 4).float(), ExampleNoise(0, "noise", range(6)))
    assert certain.value.item() == pytest.approx(hard.value.item(), rel=1e-4)
    spread = method.loss(network, x, torch.full((6, 4), 0.25), ExampleNoise(0, "noise", range(6)))
    assert spread.value.isfinite()


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_inner_loops_climb_what_is_lent_in_its_fused_pieces(method, network, batch):
    used = Counter()

    def losses(x, y):
        used["losses"] += 1
        return label_losses(network, x, y)

    def fuse(move):
        def fused(*arguments):
            used["moves"] += 1
            return move(*arguments)

        return fused

    def lend():
        used["lent"] += 1
        return Lent(network, losses, fuse)

    plain, lent = (
        method.loss(model, *batch, BatchNoise(stream(0, "noise"))) for model in (network, Lender(network, lend))
    )
    assert torch.equal(lent.value, plain.value)
    assert torch.equal(lent.squared_distance, plain.squared_distance)
    steps = getattr(method, "steps", 0) + isinstance(method, Wrm)
    # Where a loss is none of labels, or a move is a few operations, there is nothing to fuse.
    assert used["losses"] == (steps if isinstance(method, Nal | Pgd | Wrm) else 0)
    assert used["moves"] == (steps if isinstance(method, Pgd | Smoothadv | Trades) else 0)
    assert used["lent"] == (steps > 0)


class NoAnswers(TorchDispatchMode):
    """Refuses whatever asks a tensor for its value: a step that does so cannot be captured."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert function not in {
            torch.ops.aten._local_scalar_dense.default,
            torch.ops.aten.is_nonzero.default,
            torch.ops.aten.equal.default,
            torch.ops.aten.nonzero.default,
        }
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_no_value_is_asked_for(method, network, batch):
    with NoAnswers():
        method.loss(network, *batch, BatchNoise(stream(0, "noise"))).value.backward()
    with NoAnswers(), pytest.raises(AssertionError):
        batch[0].sum().item()


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_batch_norm_learns_from_the_weights_pass_alone(method, batch):
    with torch.random.fork_rng(devices=[]):
        network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ELU(), nn.Flatten(), nn.Linear(144, 4))
    method.loss(network, *batch, BatchNoise(stream(0, "noise")))
    assert network[1].num_batches_tracked == 1


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
        wrm = Wrm(gamma=gamma, steps=800).maximise(model, x, y)
        damped = Nal(sigma=0.3, gamma=gamma, steps=800).maximise(model, x, y, Repeat([]), shared)
        paper = Nal(sigma=0.3, gamma=gamma, steps=100, inner="paper").maximise(model, x, y, Repeat([]), shared)
    assert torch.allclose(wrm, model.maximiser(x, gamma, none, none), atol=1e-8)
    assert torch.allclose(damped, model.maximiser(x, gamma, mean, none), atol=1e-8)
    assert torch.allclose(paper, model.maximiser(x, gamma, mean, mean), atol=1e-8)


def test_wrms_iterates_are_sinhas(linear, linear_batch):
    x, y = linear_batch
    none = torch.zeros(1, *x.shape, dtype=x.dtype)
    with frozen(linear), torch.no_grad():
        found = Wrm(gamma=0.4).maximise(linear, x, y)
        expected = x + linear.mean_gradient(x, none, y) / (2 * 0.4)
        for t in range(15):
            pull = linear.mean_gradient(expected, none, y) / (2 * 0.4) - (expected - x)
            expected = expected + 1 / (t + 2) ** 0.5 * pull
    assert torch.allclose(found, expected, atol=1e-12)
    assert found.max() > 1, "nothing is clipped"
    value, squared_distance = Wrm(gamma=0.4).loss(linear, x, y, Repeat([]))
    assert value.item() == pytest.approx(F.cross_entropy(linear(expected), y).item(), rel=1e-9)
    assert torch.allclose(squared_distance, (expected - x).flatten(1).norm(dim=1) ** 2)


def test_stn_is_its_formula_and_trains_both_branches(network, batch):
    x, y = batch
    noise = ExampleNoise(3, "n", range(6)).normal(x, 1)[0]
    value = Stn(sigma=0.2, weight=3.0).loss(network, x, y, ExampleNoise(3, "n", range(6))).value
    clean, noisy = network(x), network(x + 0.2 * noise)
    stability = -(clean.softmax(1) * noisy.log_softmax(1)).sum(1).mean()
    expected = F.cross_entropy(clean, y) + 3 * stability
    weights = list(network.parameters())
    for ours, theirs in zip(torch.autograd.grad(value, weights), torch.autograd.grad(expected, weights), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)


def test_pgd_trains_at_the_attacks_end(network, batch):
    x, y = batch
    attack = attacks.Pgd(steps=3, schedule="constant", relative_step=1.5, restarts=0)
    moved = attack(network, x, y, eps=0.4, sigma=None, rng=Repeat([]))
    value, squared_distance = Pgd(eps=0.4, steps=3, relative_step=1.5).loss(network, x, y, Repeat([]))
    assert value == F.cross_entropy(network(moved), y)
    assert (squared_distance > 0.1).all()
    assert (squared_distance < 0.4**2 + 1e-6).all()


def test_trades_is_its_formula_and_trains_both_branches(network, batch):
    x, y = batch
    method = Trades(eps=0.5, beta=4.0, steps=3)
    value, squared_distance = method.loss(network, x, y, ExampleNoise(3, "n", range(6)))
    point = x + 0.001 * ExampleNoise(3, "n", range(6)).normal(x, 1)[0]
    target = network(x).softmax(1).detach()
    for _ in range(3):
        point.requires_grad_()
        attacked = F.kl_div(network(point).log_softmax(1), target, reduction="sum")
        (gradient,) = torch.autograd.grad(attacked, point)
        offset = point.detach() + 2 * 0.5 / 3 * gradient / gradient.flatten(1).norm(dim=1).view(-1, 1, 1, 1) - x
        point = (x + offset.renorm(2, 0, 0.5)).clamp(0, 1)
    clean, moved = network(x), network(point)
    expected = F.cross_entropy(clean, y) + 4 * F.kl_div(moved.log_softmax(1), clean.softmax(1), reduction="batchmean")
    weights = list(network.parameters())
    for ours, theirs in zip(torch.autograd.grad(value, weights), torch.autograd.grad(expected, weights), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4)
    assert value.item() == pytest.approx(expected.item(), rel=1e-4)
    assert torch.allclose(squared_distance, (point - x).flatten(1).norm(dim=1) ** 2, rtol=1e-4)


def test_the_divergence_of_equal_and_of_impossible_predictions():
    logits = torch.tensor([[2.0, -1.0, 0.5], [500.0, 0.0, -500.0]])
    assert (divergence(logits, logits) == 0).all()
    assert divergence(logits, -logits).isfinite().all()


def test_the_divergence_is_from_the_clean_prediction():
    sure, unsure = torch.tensor([[math.log(9.0), 0.0]]), torch.zeros(1, 2)
    assert divergence(sure, unsure).item() == pytest.approx(0.9 * math.log(1.8) + 0.1 * math.log(0.2), rel=1e-5)
    assert divergence(unsure, sure).item() == pytest.approx(-0.5 * math.log(1.8) - 0.5 * math.log(0.2), rel=1e-5)


@pytest.mark.parametrize("inner", ["damped", "paper"])
def test_nal_trains_on_noisy_copies_of_its_maximiser(inner, network, batch):
    x, y = batch
    method = Nal(sigma=0.2, gamma=0.05, draws=3, inner=inner)
    value, squared_distance = method.loss(network, x, y, BatchNoise(stream(7, "noise")))
    noise = BatchNoise(stream(7, "noise"))
    worst = method.maximise(network, x, y, noise)
    drawn = noise.normal(x, 3)
    copies = [F.cross_entropy(network(worst + 0.2 * one), y).item() for one in drawn]
    at_home = [F.cross_entropy(network(x + 0.2 * one), y).item() for one in drawn]
    assert value.item() == pytest.approx(sum(copies) / 3, rel=1e-5)
    assert value.item() > sum(at_home) / 3 + 1e-3
    assert torch.allclose(squared_distance, (worst - x).flatten(1).square().sum(1), rtol=1e-5)


class Counted:
    """Draws from a source and counts the calls."""

    def __init__(self, source):
        self.source, self.calls = source, 0

    def normal(self, x, draws):
        self.calls += 1
        return self.source.normal(x, draws)


def test_smoothadv_shares_one_draw_between_its_steps_and_the_weights(network, batch):
    x, y = batch
    rng = Counted(ExampleNoise(3, "n", range(6)))
    value, squared_distance = Smoothadv(sigma=0.2, eps=0.5, steps=3, draws=2).loss(network, x, y, rng)
    assert rng.calls == 1
    noise = 0.2 * ExampleNoise(3, "n", range(6)).normal(x, 2)
    point = x
    for _ in range(3):
        point = point.detach().requires_grad_()
        probability = torch.stack([network(point + z).softmax(1)[range(6), y] for z in noise]).mean(0)
        (gradient,) = torch.autograd.grad(-probability.log().sum(), point)
        offset = point.detach() + 2 * 0.5 / 3 * gradient / gradient.flatten(1).norm(dim=1).view(-1, 1, 1, 1) - x
        point = (x + offset.renorm(2, 0, 0.5)).clamp(0, 1)
    expected = torch.stack([F.cross_entropy(network(point + z), y) for z in noise]).mean()
    assert value.item() == pytest.approx(expected.item(), rel=1e-4)
    assert torch.allclose(squared_distance, (point - x).flatten(1).norm(dim=1) ** 2, rtol=1e-3)


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
        (lambda: Stn(sigma=0), "sigma must be > 0, got 0"),
        (lambda: Stn(weight=-2), "weight must be > 0, got -2"),
        (lambda: Pgd(eps=0), "eps must be > 0, got 0"),
        (lambda: Pgd(steps=0), "steps must be >= 1, got 0"),
        (lambda: Pgd(relative_step=0), "relative_step must be > 0, got 0"),
        (lambda: Trades(eps=float("nan")), "eps must be > 0, got nan"),
        (lambda: Trades(beta=0), "beta must be > 0, got 0"),
        (lambda: Trades(steps=0), "steps must be >= 1, got 0"),
        (lambda: Smoothadv(sigma=0), "sigma must be > 0, got 0"),
        (lambda: Smoothadv(eps=-1), "eps must be > 0, got -1"),
        (lambda: Smoothadv(steps=0), "steps must be >= 1, got 0"),
        (lambda: Smoothadv(draws=0), "draws must be >= 1, got 0"),
        (lambda: Wrm(gamma=0), "gamma must be > 0, got 0"),
        (lambda: Wrm(steps=0), "steps must be >= 1, got 0"),
    ],
)
def test_bad_hyper_parameters_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
