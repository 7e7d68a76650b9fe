"""The ascent loop, its losses, step sizes and restarts."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from rhobust.attacks import EOT, PGD, PaperPGD
from rhobust.attacks.gradient import ascend, base_loss, smoothed_logits, smoothed_loss
from rhobust.models.inference import frozen
from rhobust.noise import ExampleNoise


def test_a_quadratic_is_maximised():
    top = torch.tensor([[1.0, 2.0], [-3.0, 0.5]])
    found = ascend(lambda x: -(x - top).square().sum(1), torch.zeros(2, 2), steps=60, step=lambda x, g, _: x + 0.2 * g)
    assert torch.allclose(found, top, atol=1e-5)


def test_an_examples_path_does_not_depend_on_the_batch():
    start = torch.arange(6.0).view(3, 2)
    ascent = lambda x: ascend(  # noqa: E731
        lambda p: p.sin().sum(1), x, steps=5, step=lambda p, g, k: p + g / (k + 1)
    )
    assert torch.equal(ascent(start), torch.cat([ascent(row[None]) for row in start]))


def test_smoothed_logits_are_the_logarithm_of_the_mean_softmax(network, batch):
    x, _ = batch
    found = smoothed_logits(network.eval(), x, sigma=0.25, draws=3, rng=ExampleNoise(0, "test", range(6)))
    noise = ExampleNoise(0, "test", range(6)).normal(x, 3)
    expected = torch.stack([network(x + 0.25 * z).softmax(1) for z in noise]).mean(0).log()
    assert torch.allclose(found, expected, atol=1e-5)


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
        with frozen(network) as evaluated:
            losses = smoothed_loss(evaluated, part, torch.arange(count) % 4, sigma=0.3, draws=5, rng=rng)
        return torch.autograd.grad(losses.sum(), part)[0]

    whole = gradient(48)
    assert all(torch.equal(gradient(count), whole[:count]) for count in range(32, 48))


def test_steps_fall_from_twice_the_radius_or_stay_constant():
    sizes = [PGD(steps=4).size(0.5, number) for number in range(4)]
    assert sizes == pytest.approx([1.0, 0.5625, 0.25, 0.0625])
    assert [PGD(steps=4, schedule="constant").size(0.5, number) for number in range(4)] == pytest.approx([0.25] * 4)
    assert PGD(steps=4, relative_step=3.0).size(0.5, 0) == pytest.approx(1.5)


def test_the_papers_attack_is_one_ascent_of_equal_steps():
    for variant in (PaperPGD(), PaperPGD(sees="draw"), PaperPGD(steps=100, gradient="raw")):
        attack = variant.gradient_attack()
        assert (attack.restarts, attack.random_start, attack.warm) == (0, False, False)
        assert {attack.size(0.5, number) for number in range(variant.steps)} == {2 * 0.5 / variant.steps}
        assert attack.gradient == variant.gradient
    assert PaperPGD(sees="draw").gradient_attack().draws == 1
    assert not PaperPGD().attacks_smoothed


def test_every_second_restart_uses_the_other_loss():
    assert [PGD().attempt(number).loss for number in range(3)] == ["cross-entropy", "margin", "cross-entropy"]
    assert PGD(loss="margin").attempt(1).loss == "cross-entropy"


@pytest.mark.parametrize("loss", ["cross-entropy", "margin"])
def test_an_attack_maximises_the_loss_that_it_names(loss, network, batch):
    x, y = batch

    def noise():
        return ExampleNoise(0, "objective", range(6))

    with frozen(network) as evaluated:
        base = PGD(loss=loss).objective(evaluated, y, sigma=None, rng=noise())(x)
        smoothed = EOT(loss=loss, draws=3).objective(evaluated, y, sigma=0.1, rng=noise())(x)
        assert torch.allclose(base, base_loss(evaluated, x, y, kind=loss))
        assert torch.allclose(smoothed, smoothed_loss(evaluated, x, y, sigma=0.1, draws=3, rng=noise(), kind=loss))


def test_the_first_start_is_the_centre_and_further_ones_are_random_points(batch):
    x, _ = batch
    noise = ExampleNoise(0, "starts", range(6))
    assert torch.equal(PGD().start(x, 0.5, noise, 0), x)
    starts = [
        PGD().start(x, 0.5, noise, 1),
        PGD().start(x, 0.5, noise, 2),
        PGD(random_start=True).start(x, 0.5, noise, 0),
    ]
    assert all((start != x).flatten(1).any(1).all() for start in starts)
    assert not torch.equal(starts[0], starts[1])


def test_of_several_starts_the_largest_margin_is_kept(network, batch):
    x, y = batch

    def margin(attack):
        perturbed = attack(network, x, y, eps=0.5, sigma=None, rng=ExampleNoise(0, "starts", range(6)))
        return base_loss(network, perturbed, y, kind="margin")

    attack = PGD(steps=2, restarts=0)
    one, several = margin(attack), margin(replace(attack, restarts=3))
    assert (several >= one).all()
    assert (several > one + 1e-6).any()


class TwoExits(nn.Module):
    """Class 1 is the runner-up at the origin and never wins within distance 1; class 2 wins in another direction."""

    def forward(self, x):
        first, second = x.flatten(1).unbind(1)
        return torch.stack([torch.zeros_like(first), first - 1.05, 1.3 * second - 1.2], dim=1)


@pytest.mark.parametrize("attack", [PGD(loss="margin", restarts=0), EOT(loss="margin", restarts=0, draws=2)])
def test_a_targeted_ascent_finds_what_the_runner_up_hides(attack):
    network, x, y = TwoExits(), torch.zeros(3, 1, 1, 2), torch.zeros(3, dtype=torch.int64)

    def broken(attack):
        rng = ExampleNoise(0, "targets", range(3))
        return (network(attack(network, x, y, eps=1.0, sigma=0.01, rng=rng)).argmax(1) == 2).tolist()

    assert broken(attack) == [False] * 3
    assert broken(replace(attack, targets=1)) == [False] * 3
    assert broken(replace(attack, targets=2)) == [True] * 3
    # More targets than classes: the last class again.
    assert broken(replace(attack, targets=4)) == [True] * 3


def test_targeted_ascents_follow_the_restarts_and_begin_at_the_centre(batch):
    x, _ = batch
    attack, noise = PGD(restarts=1, targets=2), ExampleNoise(0, "starts", range(6))
    assert (attack.attempts, [attack.rank(number) for number in range(4)]) == (4, [0, 0, 1, 2])
    assert torch.equal(attack.start(x, 0.5, noise, 2), x)
    assert not torch.equal(attack.start(x, 0.5, noise, 1), x)
