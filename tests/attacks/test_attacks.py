"""Every attack of the union goes through the same checks; then each meets a known answer."""

from typing import get_args

import numpy as np
import pytest
import torch

from rhobust.attacks import EOT, PGD, AnyAttack, AutoAttack, PaperPGD
from rhobust.attacks.base import distances, random_point
from rhobust.attacks.gradient import base_loss, smoothed_logits, smoothed_loss
from rhobust.data import to_unit
from rhobust.models.inference import frozen
from rhobust.noise import ExampleNoise

QUICK = {AutoAttack: {"steps": 5, "draws": 4}}
"""Options for attacks that take long by default."""
ATTACKS = [
    *(attack(**QUICK.get(attack, {})) for attack in get_args(AnyAttack)),
    PGD(norm="linf"),
    PGD(random_start=True),
    PGD(loss="margin"),
    PGD(gradient="raw", relative_step=20.0),
    EOT(norm="linf", loss="margin", steps=10),
    PaperPGD(sees="draw", steps=10),
    AutoAttack(norm="linf", steps=5, draws=4),
    AutoAttack("standard", steps=5, queries=20),
    AutoAttack("standard", norm="linf", steps=5, queries=20),
]


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


def test_smoothed_logits_are_the_logarithm_of_the_mean_softmax(network, batch):
    x, _ = batch
    found = smoothed_logits(network.eval(), x, sigma=0.25, draws=3, rng=ExampleNoise(0, "test", range(6)))
    noise = ExampleNoise(0, "test", range(6)).normal(x, 3)
    expected = torch.stack([network(x + 0.25 * z).softmax(1) for z in noise]).mean(0).log()
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_raises_the_loss(attack, network, batch):
    x, y = batch
    before = smoothed_loss(network.eval(), x, y, sigma=0.25, draws=200, rng=ExampleNoise(1, "judge", range(6)))
    after = smoothed_loss(
        network, attacked(attack, network, x, y), y, sigma=0.25, draws=200, rng=ExampleNoise(1, "judge", range(6))
    )
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
    moved = attacked(PGD(steps=20), half_space, x, y, eps=0.7)
    broken = half_space(moved).argmax(1) != y
    assert torch.equal(broken, distance < 0.7)
    assert torch.allclose((moved - x).flatten(1).norm(dim=1), torch.full((40,), 0.7), atol=1e-5)


@pytest.fixture(scope="module")
def linear():
    """Four classes with orthonormal weights in 64 dimensions, points in the box, labels, and their distances."""
    generator = torch.Generator().manual_seed(3)
    weights = torch.linalg.qr(torch.randn(64, 4, generator=generator))[0].T.contiguous()
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.utils.skip_init(torch.nn.Linear, 64, 4))
    model[1].weight.data, model[1].bias.data = weights, -weights.sum(1) / 2
    x = 0.5 + 0.08 * torch.randn(12, 1, 8, 8, generator=generator)
    logits = model(x).detach()
    y = logits.argmax(1)
    others = logits.scatter(1, y[:, None], -torch.inf).amax(1)
    return model, x, y, (logits[range(12), y] - others) / 2**0.5


def test_a_linear_model_breaks_at_its_closed_form_distance(linear):
    model, x, y, distance = linear
    assert distance.max() < 1
    for place in range(len(x)):
        one, label = x[place : place + 1], y[place : place + 1]
        for shift, broken in ((-1e-4, False), (1e-4, True)):
            moved = attacked(PGD(loss="margin"), model, one, label, [place], eps=distance[place].item() + shift)
            assert ((moved > 0) & (moved < 1)).all()
            assert (model(moved).argmax(1) != label).item() == broken


@pytest.mark.parametrize(
    ("attack", "length"),
    [(EOT(), 1.0), (EOT(loss="margin"), 1.0), (EOT(norm="linf"), 4.0), (PGD(), 1.0), (PGD(norm="linf"), 4.0)],
    ids=repr,
)
def test_two_classes_with_noise_break_at_the_smoothed_distance(attack, length, half_space, grey_images):
    """The distance of a point is its logit over the dual norm of the weights, with noise and without."""
    x, y = to_unit(grey_images.images), grey_images.labels
    distance = half_space(x)[:, 1].abs() / length
    for place in range(0, 40, 8):
        for shift in (-1e-4, 1e-4):
            eps = distance[place].item() + shift
            moved = attacked(attack, half_space, x[place : place + 1], y[place : place + 1], [place], eps=eps)
            # The label's probability under noise is Phi(signed distance / sigma): above one half on its side only.
            signed = half_space(moved)[0, 1].item() * (1 if y[place] == 1 else -1)
            assert signed == pytest.approx(-shift * length, abs=1e-5)


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_a_raw_step_is_the_gradient_times_its_size(norm, network, batch):
    x, y = batch[0].clone().requires_grad_(), batch[1]
    network.eval()
    (gradient,) = torch.autograd.grad(base_loss(network, x, y).sum(), x)
    moved = attacked(
        PGD(steps=1, gradient="raw", norm=norm, relative_step=0.02, restarts=0), network, x.detach(), y, eps=5.0
    )
    assert torch.allclose(moved, (x + 0.1 * gradient).clamp(0, 1), atol=1e-6)


def test_the_papers_steps_are_two_eps_over_their_number(half_space, grey_images):
    x, y = to_unit(grey_images.images), grey_images.labels
    inside = PaperPGD(steps=20)
    assert inside.gradient_attack().relative_step == 2
    one = half_space(attacked(PaperPGD(steps=1), half_space, x, y, eps=0.2))[:, 1] - half_space(x)[:, 1]
    assert torch.allclose(one.abs(), torch.full((40,), 0.2), atol=1e-5)
    few = PGD(steps=20, schedule="constant", relative_step=2 * 3 / 20, restarts=0)  # three of the twenty steps' lengths
    moved = attacked(few, half_space, x, y, eps=0.2)
    assert torch.allclose((moved - x).flatten(1).norm(dim=1), torch.full((40,), 0.06), atol=1e-5)
    assert not inside.attacks_smoothed
    assert PaperPGD(sees="draw").attacks_smoothed


def test_the_margin_is_the_best_other_class_minus_the_label(network, batch):
    x, y = batch
    network.eval()
    logits = network(x).detach()
    margin = base_loss(network, x, y, kind="margin")
    for row, label, value in zip(logits, y, margin, strict=True):
        other = max(float(score) for place, score in enumerate(row) if place != label)
        assert value.item() == pytest.approx(other - float(row[label]), abs=1e-6)
    smoothed = smoothed_loss(network, x, y, sigma=0.3, draws=5, rng=ExampleNoise(2, "m", range(6)), kind="margin")
    noise = 0.3 * ExampleNoise(2, "m", range(6)).normal(x, 5)
    mean = torch.stack([network(x + z).softmax(1) for z in noise]).mean(0)
    others = mean.scatter(1, y[:, None], 0.0).amax(1)
    assert torch.allclose(smoothed, (others / mean[range(6), y]).log(), atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"eps": -0.5}, "eps must be >= 0 and finite, got -0.5"),
        ({"eps": float("nan")}, "eps must be >= 0 and finite, got nan"),
        ({"eps": float("inf")}, "eps must be >= 0 and finite, got inf"),
        ({"sigma": -1.0}, "sigma must be > 0 and finite, got -1.0"),
        ({"sigma": float("nan")}, "sigma must be > 0 and finite, got nan"),
        ({"x": np.full((1, 1, 8, 8), 0.5)}, "x must be a tensor, got a ndarray"),
        ({"x": torch.full((0, 1, 8, 8), 0.5)}, "x must be a batch of inputs"),
        (
            {"x": torch.zeros(1, 1, 8, 8, dtype=torch.uint8)},
            "x must be floating point to be attacked",
        ),
        ({"y": [0]}, r"y must be a tensor of one label an input \(1\), a class number, got a list"),
        ({"y": torch.tensor([0.0])}, r"got torch\.float32 of shape \(1,\)"),
        ({"y": torch.tensor([[0, 1, 0, 0]])}, r"got torch\.int64 of shape \(1, 4\)"),
        ({"x": torch.full((1, 1, 8, 8), 1.5)}, r"x must be in \[0, 1\], got values from 1.5 to 1.5"),
        ({"x": torch.full((1, 1, 8, 8), float("nan"))}, r"x must be in \[0, 1\]"),
        ({"y": torch.tensor([4])}, r"labels must be in \[0, 4\), got 4 to 4"),
        ({"y": torch.tensor([-1])}, r"labels must be in \[0, 4\), got -1 to -1"),
    ],
)
@pytest.mark.parametrize("attack", [PGD(), EOT(), PaperPGD(), AutoAttack()], ids=repr)
def test_what_no_attack_can_take_is_refused(attack, change, message, network):
    given = {"x": torch.full((1, 1, 8, 8), 0.5), "y": torch.tensor([0]), "eps": 0.5, "sigma": 0.25} | change
    with pytest.raises(ValueError, match=message):
        attack(network, **given, rng=ExampleNoise(0, "test", [0]))


@pytest.mark.parametrize("attack", [PGD(steps=2), EOT(steps=2, draws=2), AutoAttack(steps=2, draws=2)], ids=repr)
def test_labels_may_be_integers_of_any_width(attack, network, batch):
    x, y = batch

    def attacked(labels):
        return attack(network, x, labels, eps=0.5, sigma=0.25, rng=ExampleNoise(0, "test", range(6)))

    for dtype in (torch.int32, torch.uint8):
        assert torch.equal(attacked(y.to(dtype)), attacked(y))


@pytest.mark.parametrize("attack", [PGD(steps=2), EOT(steps=2, draws=2), AutoAttack(steps=2, draws=2)], ids=repr)
def test_noise_is_named_by_the_places_where_none_is_given(attack, network, batch):
    sigma = 0.25 if attack.attacks_smoothed else None
    noise = ExampleNoise(0, "attack", range(6))
    expected = attack(network, *batch, eps=0.5, sigma=sigma, rng=noise)
    assert torch.equal(attack(network, *batch, eps=0.5, sigma=sigma), expected)


def test_a_function_is_no_network(network, batch):
    with pytest.raises(ValueError, match=r"the network must be a torch\.nn\.Module, got a function"):
        PGD()(lambda x: network(x), *batch, eps=0.5, sigma=None, rng=ExampleNoise(0, "test", range(6)))


def test_eot_needs_sigma(network, batch):
    with pytest.raises(ValueError, match="sigma must be given"):
        EOT()(network, *batch, eps=0.5, sigma=None, rng=ExampleNoise(0, "test", range(6)))


def test_smoothed_loss_is_minus_log_of_the_mean_softmax(network, batch):
    x, y = batch
    network.eval()
    loss = smoothed_loss(network, x, y, sigma=0.3, draws=5, rng=ExampleNoise(2, "loss", range(6)))
    noise = 0.3 * ExampleNoise(2, "loss", range(6)).normal(x, 5)
    probability = torch.stack([network(x + z).softmax(1)[range(6), y] for z in noise]).mean(0)
    assert torch.allclose(loss, -probability.log(), atol=1e-5)


def test_a_smoothed_gradient_is_the_same_to_the_last_digit_in_a_batch_of_any_size(network):
    x = torch.rand(48, 1, 8, 8, generator=torch.Generator().manual_seed(5))

    def gradient(count):
        part = x[:count].clone().requires_grad_()
        rng = ExampleNoise(0, "size", range(count))
        with frozen(network) as frozen_model:
            losses = smoothed_loss(frozen_model, part, torch.arange(count) % 4, sigma=0.3, draws=5, rng=rng)
        return torch.autograd.grad(losses.sum(), part)[0]

    whole = gradient(48)
    assert all(torch.equal(gradient(count), whole[:count]) for count in range(32, 48))


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_random_points_fill_the_ball(norm):
    x = torch.full((2000, 1, 2, 2), 0.5)
    offset = (random_point(x, 0.4, norm, ExampleNoise(0, "start", range(2000))) - x).flatten(1)
    size = offset.norm(dim=1) if norm == "l2" else offset.abs().amax(1)
    assert size.max() <= 0.4 + 1e-6
    # Half of a ball's volume in four dimensions lies beyond 2^(-1/4) of its radius.
    assert (size > 0.4 * 0.5**0.25).float().mean().item() == pytest.approx(0.5, abs=0.05)
    # To all sides alike, and in [0, 1] where the ball reaches beyond it.
    assert offset.mean(0).abs().max() < 0.03
    corner = random_point(torch.ones(50, 1, 2, 2), 0.4, norm, ExampleNoise(0, "start", range(50)))
    assert corner.max() <= 1
    assert corner.min() < 1


def test_distances_are_those_of_their_norm():
    x = torch.zeros(2, 1, 2, 2)
    moved = torch.tensor([[0.3, 0.0, -0.4, 0.0], [0.0, 0.0, 0.0, 0.2]]).view(2, 1, 2, 2)
    assert distances(moved, x, "l2").tolist() == pytest.approx([0.5, 0.2])
    assert distances(moved, x, "linf").tolist() == pytest.approx([0.4, 0.2])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PGD(steps=0), "steps must be >= 1, got 0"),
        (lambda: PGD(relative_step=0), "relative_step must be > 0"),
        (lambda: EOT(draws=0), "draws must be >= 1, got 0"),
        (lambda: EOT(steps=-1), "steps must be >= 1"),
        (lambda: PGD(restarts=-1), "restarts must be >= 0, got -1"),
        (lambda: PaperPGD(steps=0), "steps must be >= 1, got 0"),
    ],
)
def test_bad_hyper_parameters_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
