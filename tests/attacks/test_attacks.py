"""Every attack of the union passes the same checks; then each is compared with a known result."""

from typing import get_args

import numpy as np
import pytest
import torch

from rhobust.attacks import EOT, PGD, AnyAttack, AutoAttack, PaperPGD
from rhobust.attacks.gradient import base_loss, smoothed_loss
from rhobust.data import to_unit
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
    perturbed = attacked(attack, network, *batch)
    offset = (perturbed - batch[0]).flatten(1)
    size = offset.abs().amax(1) if getattr(attack, "norm", "l2") == "linf" else offset.norm(dim=1)
    assert size.max() <= 0.5 + 1e-6
    assert size.min() > 0.01
    assert perturbed.min() >= 0
    assert perturbed.max() <= 1


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_raises_the_loss(attack, network, batch):
    x, y = batch
    before = smoothed_loss(network.eval(), x, y, sigma=0.25, draws=200, rng=ExampleNoise(1, "evaluation", range(6)))
    after = smoothed_loss(
        network, attacked(attack, network, x, y), y, sigma=0.25, draws=200, rng=ExampleNoise(1, "evaluation", range(6))
    )
    assert (after > before).all()


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_a_batch_equals_its_examples_one_by_one(attack, network, batch):
    x, y = batch
    whole = attacked(attack, network, x, y)
    single = torch.cat([attacked(attack, network, x[i : i + 1], y[i : i + 1], [i]) for i in range(len(x))])
    assert torch.allclose(whole, single, atol=2e-5)


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_leaves_the_model_unchanged(attack, network, batch):
    before = {key: value.clone() for key, value in network.state_dict().items()}
    first = attacked(attack, network, *batch)
    assert torch.equal(first, attacked(attack, network, *batch))
    assert network.training
    assert all(parameter.grad is None and parameter.requires_grad for parameter in network.parameters())
    assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())


def test_pgd_finds_the_nearest_point_of_a_half_space(half_space, grey_images):
    x, y = to_unit(grey_images.images), grey_images.labels
    distance = half_space(x)[:, 1].abs()
    perturbed = attacked(PGD(steps=20), half_space, x, y, eps=0.7)
    wrong = half_space(perturbed).argmax(1) != y
    assert torch.equal(wrong, distance < 0.7)
    assert torch.allclose((perturbed - x).flatten(1).norm(dim=1), torch.full((40,), 0.7), atol=1e-5)


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
        for shift, wrong in ((-1e-4, False), (1e-4, True)):
            perturbed = attacked(PGD(loss="margin"), model, one, label, [place], eps=distance[place].item() + shift)
            assert ((perturbed > 0) & (perturbed < 1)).all()
            assert (model(perturbed).argmax(1) != label).item() == wrong


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
            perturbed = attacked(attack, half_space, x[place : place + 1], y[place : place + 1], [place], eps=eps)
            # The label's probability under noise is Phi(signed distance / sigma): above one half on its side only.
            signed = half_space(perturbed)[0, 1].item() * (1 if y[place] == 1 else -1)
            assert signed == pytest.approx(-shift * length, abs=1e-5)


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_a_raw_step_is_the_gradient_times_its_size(norm, network, batch):
    x, y = batch[0].clone().requires_grad_(), batch[1]
    network.eval()
    (gradient,) = torch.autograd.grad(base_loss(network, x, y).sum(), x)
    perturbed = attacked(
        PGD(steps=1, gradient="raw", norm=norm, relative_step=0.02, restarts=0), network, x.detach(), y, eps=5.0
    )
    assert torch.allclose(perturbed, (x + 0.1 * gradient).clamp(0, 1), atol=1e-6)


def test_the_papers_steps_are_two_eps_over_their_number(half_space, grey_images):
    x, y = to_unit(grey_images.images), grey_images.labels
    inside = PaperPGD(steps=20)
    assert inside.gradient_attack().relative_step == 2
    one = half_space(attacked(PaperPGD(steps=1), half_space, x, y, eps=0.2))[:, 1] - half_space(x)[:, 1]
    assert torch.allclose(one.abs(), torch.full((40,), 0.2), atol=1e-5)
    few = PGD(steps=20, schedule="constant", relative_step=2 * 3 / 20, restarts=0)  # three of the twenty steps' lengths
    perturbed = attacked(few, half_space, x, y, eps=0.2)
    assert torch.allclose((perturbed - x).flatten(1).norm(dim=1), torch.full((40,), 0.06), atol=1e-5)
    assert not inside.attacks_smoothed
    assert PaperPGD(sees="draw").attacks_smoothed


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
        ({"y": [0]}, r"y must be a tensor of one class number per input \(1\), got a list"),
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
def test_noise_is_named_by_the_places_by_default(attack, network, batch):
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
