"""Every method of the union passes the same checks; then each is compared with a known result."""

import math
from typing import get_args

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from rhobust import attacks
from rhobust.attacks.gradient import label_losses
from rhobust.methods import ERM, NAL, STN, TRADES, WRM, AdversarialTraining, AnyMethod, Gaussian, SmoothAdv, SmoothMix
from rhobust.methods.trades import divergence
from rhobust.models.inference import CompiledCopy, WithEvalCopy
from rhobust.noise import BatchNoise, ExampleNoise, stream

METHODS = [
    *(method() for method in get_args(AnyMethod)),
    NAL(inner="paper"),
    NAL(noise="shared"),
    NAL(noise="shared", agreement=10.0),
    NAL(inner="search", gamma=0.05),
    SmoothAdv(agreement=10.0),
    SmoothMix(one_step=True),
]
NOISELESS = (ERM, AdversarialTraining, WRM)


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
def test_a_compiled_copy_gives_the_same_loss(method, network, batch):
    def eval_copy():
        return CompiledCopy(network, lambda x, y: label_losses(network, x, y), lambda step: step)

    models = network, WithEvalCopy(network, eval_copy)
    plain, copied = (method.loss(model, *batch, BatchNoise(stream(0, "noise"))) for model in models)
    assert torch.equal(copied.value, plain.value)
    assert torch.equal(copied.squared_distance, plain.squared_distance)


@pytest.mark.parametrize("method", [NAL(), NAL(inner="search"), SmoothAdv()], ids=repr)
def test_an_attack_under_noise_asks_for_the_copy_of_so_many_noisy_copies(method, network, batch):
    asked = []

    def make(copies=1):
        asked.append(copies)
        return CompiledCopy(network, lambda x, y: label_losses(network, x, y), lambda step: step, make)

    model = WithEvalCopy(network, make)
    found, plain = (method.loss(one, *batch, BatchNoise(stream(0, "noise"))) for one in (model, network))
    assert asked == [1, method.draws]
    assert torch.equal(found.squared_distance, plain.squared_distance)


class NoValues(TorchDispatchMode):
    """Fails if a tensor value is read: such a step cannot be captured in a CUDA graph."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert function not in {
            torch.ops.aten._local_scalar_dense.default,
            torch.ops.aten.is_nonzero.default,
            torch.ops.aten.equal.default,
            torch.ops.aten.nonzero.default,
        }
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_no_tensor_value_is_read(method, network, batch):
    with NoValues():
        method.loss(network, *batch, BatchNoise(stream(0, "noise"))).value.backward()
    with NoValues(), pytest.raises(AssertionError):
        batch[0].sum().item()


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_batch_norm_learns_from_the_weights_pass_alone(method, batch):
    with torch.random.fork_rng(devices=[]):
        network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ELU(), nn.Flatten(), nn.Linear(144, 4))
    method.loss(network, *batch, BatchNoise(stream(0, "noise")))
    assert network[1].num_batches_tracked == 1


def test_erm_and_gaussian_are_cross_entropy(network, batch):
    x, y = batch
    assert ERM().loss(network, x, y, BatchNoise(stream(0, "n"))).value == F.cross_entropy(network(x), y)
    noise = ExampleNoise(3, "n", range(6)).normal(x, 2)
    expected = torch.stack([F.cross_entropy(network(x + 0.2 * z), y) for z in noise]).mean()
    value = Gaussian(sigma=0.2, draws=2).loss(network, x, y, ExampleNoise(3, "n", range(6))).value
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)


def test_stn_is_its_formula_and_trains_both_branches(network, batch):
    x, y = batch
    noise = ExampleNoise(3, "n", range(6)).normal(x, 1)[0]
    value = STN(sigma=0.2, weight=3.0).loss(network, x, y, ExampleNoise(3, "n", range(6))).value
    clean, noisy = network(x), network(x + 0.2 * noise)
    stability = -(clean.softmax(1) * noisy.log_softmax(1)).sum(1).mean()
    expected = F.cross_entropy(clean, y) + 3 * stability
    weights = list(network.parameters())
    for ours, theirs in zip(torch.autograd.grad(value, weights), torch.autograd.grad(expected, weights), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)


class Silent:
    """Noise that must not be used."""

    def normal(self, x, draws):
        raise AssertionError("no noise is to be drawn here")


def test_pgd_trains_at_the_attacks_end(network, batch):
    x, y = batch
    attack = attacks.PGD(steps=3, schedule="constant", relative_step=1.5, restarts=0)
    adversarial = attack(network, x, y, eps=0.4, sigma=None, rng=Silent())
    value, squared_distance = AdversarialTraining(eps=0.4, steps=3, relative_step=1.5).loss(network, x, y, Silent())
    assert value == F.cross_entropy(network(adversarial), y)
    assert (squared_distance > 0.1).all()
    assert (squared_distance < 0.4**2 + 1e-6).all()


def test_trades_is_its_formula_and_trains_both_branches(network, batch):
    x, y = batch
    method = TRADES(eps=0.5, beta=4.0, steps=3)
    value, squared_distance = method.loss(network, x, y, ExampleNoise(3, "n", range(6)))
    point = x + 0.001 * ExampleNoise(3, "n", range(6)).normal(x, 1)[0]
    target = network(x).softmax(1).detach()
    for _ in range(3):
        point.requires_grad_()
        attacked = F.kl_div(network(point).log_softmax(1), target, reduction="sum")
        (gradient,) = torch.autograd.grad(attacked, point)
        offset = point.detach() + 2 * 0.5 / 3 * gradient / gradient.flatten(1).norm(dim=1).view(-1, 1, 1, 1) - x
        point = (x + offset.renorm(2, 0, 0.5)).clamp(0, 1)
    clean, adversarial = network(x), network(point)
    expected = F.cross_entropy(clean, y) + 4 * F.kl_div(
        adversarial.log_softmax(1), clean.softmax(1), reduction="batchmean"
    )
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
    value, squared_distance = SmoothAdv(sigma=0.2, eps=0.5, steps=3, draws=2).loss(network, x, y, rng)
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
        (lambda: NAL(sigma=-1), "sigma must be > 0, got -1"),
        (lambda: NAL(gamma=0), "gamma must be > 0, got 0"),
        (lambda: NAL(steps=-1), "steps must be >= 0, got -1"),
        (lambda: NAL(draws=0), "draws must be >= 1, got 0"),
        (lambda: NAL(step_size=-0.1), "step_size must be > 0"),
        (lambda: NAL(sigma=float("nan")), "sigma must be finite, got nan"),
        (lambda: Gaussian(sigma=0), "sigma must be > 0, got 0"),
        (lambda: Gaussian(draws=0), "draws must be >= 1, got 0"),
        (lambda: STN(sigma=0), "sigma must be > 0, got 0"),
        (lambda: STN(weight=-2), "weight must be > 0, got -2"),
        (lambda: AdversarialTraining(eps=0), "eps must be > 0, got 0"),
        (lambda: AdversarialTraining(steps=0), "steps must be >= 1, got 0"),
        (lambda: AdversarialTraining(relative_step=0), "relative_step must be > 0, got 0"),
        (lambda: TRADES(eps=float("nan")), "eps must be finite, got nan"),
        (lambda: TRADES(beta=0), "beta must be > 0, got 0"),
        (lambda: TRADES(steps=0), "steps must be >= 1, got 0"),
        (lambda: SmoothAdv(sigma=0), "sigma must be > 0, got 0"),
        (lambda: SmoothAdv(eps=-1), "eps must be > 0, got -1"),
        (lambda: SmoothAdv(steps=-1), "steps must be >= 0, got -1"),
        (lambda: SmoothAdv(draws=0), "draws must be >= 1, got 0"),
        (lambda: WRM(gamma=0), "gamma must be > 0, got 0"),
        (lambda: WRM(steps=0), "steps must be >= 1, got 0"),
    ],
)
def test_bad_hyper_parameters_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
