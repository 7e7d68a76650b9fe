"""How an ascent steps, starts again, and goes on from radius to radius."""

from dataclasses import replace

import pytest
import torch

from rhobust.attacks import EOT, PGD, GradientAttack, PaperPGD
from rhobust.attacks.gradient import base_loss, smoothed_loss
from rhobust.evaluation import Target
from rhobust.evaluation.judging import Judge
from rhobust.evaluation.sweeping import sweep
from rhobust.models.inference import frozen
from rhobust.noise import ExampleNoise


def test_steps_fall_from_twice_the_radius_or_stay_as_they_are():
    sizes = [PGD(steps=4).size(0.5, number) for number in range(4)]
    assert sizes == pytest.approx([1.0, 0.5625, 0.25, 0.0625])
    assert [PGD(steps=4, schedule="constant").size(0.5, number) for number in range(4)] == pytest.approx([0.25] * 4)
    assert PGD(steps=4, relative_step=3.0).size(0.5, 0) == pytest.approx(1.5)


def test_the_papers_attack_is_one_ascent_of_equal_steps():
    for reading in (PaperPGD(), PaperPGD(sees="draw"), PaperPGD(steps=100, gradient="raw")):
        climber = reading.gradient_attack()
        assert (climber.restarts, climber.random_start, climber.warm) == (0, False, False)
        assert {climber.size(0.5, number) for number in range(reading.steps)} == {2 * 0.5 / reading.steps}
        assert climber.gradient == reading.gradient
    assert PaperPGD(sees="draw").gradient_attack().draws == 1
    assert not PaperPGD().attacks_smoothed


def test_every_second_start_climbs_the_other_loss():
    assert [PGD().attempt(number).loss for number in range(3)] == ["cross-entropy", "margin", "cross-entropy"]
    assert PGD(loss="margin").attempt(1).loss == "cross-entropy"


@pytest.mark.parametrize("loss", ["cross-entropy", "margin"])
def test_an_attack_climbs_the_loss_that_it_names(loss, network, batch):
    x, y = batch

    def noise():
        return ExampleNoise(0, "objective", range(6))

    with frozen(network) as frozen_model:
        base = PGD(loss=loss).objective(frozen_model, y, sigma=None, rng=noise())(x)
        smoothed = EOT(loss=loss, draws=3).objective(frozen_model, y, sigma=0.1, rng=noise())(x)
        assert torch.allclose(base, base_loss(frozen_model, x, y, kind=loss))
        assert torch.allclose(smoothed, smoothed_loss(frozen_model, x, y, sigma=0.1, draws=3, rng=noise(), kind=loss))


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
        moved = attack(network, x, y, eps=0.5, sigma=None, rng=ExampleNoise(0, "starts", range(6)))
        return base_loss(network, moved, y, kind="margin")

    attack = PGD(steps=2, restarts=0)
    one, several = margin(attack), margin(replace(attack, restarts=3))
    assert (several >= one).all()
    assert (several > one + 1e-6).any()


@pytest.mark.parametrize("warm", [True, False])
def test_a_sweep_goes_on_where_the_smaller_radius_ended(warm, half_space, grey_images, tmp_path, monkeypatch):
    seen = []

    def spy(self, model, x, y, *, eps, sigma, rng, start):
        end = climb(self, model, x, y, eps=eps, sigma=sigma, rng=rng, start=start)
        seen.append((eps, self.loss, x, start, end))
        return end

    climb = GradientAttack.ascend_from
    monkeypatch.setattr(GradientAttack, "ascend_from", spy)
    target = Target("half-space", half_space, "0" * 16, None, grey_images, tmp_path, torch.device("cpu"))
    block = list(range(40))
    sweep(target, PGD(steps=2, warm=warm, restarts=2), (0.1, 0.2), [Judge(target, "base", 1)], block, 0)
    assert [(eps, loss) for eps, loss, *_ in seen] == [
        *((0.1, "cross-entropy"), (0.1, "margin"), (0.1, "cross-entropy")),
        *((0.2, "cross-entropy"), (0.2, "margin"), (0.2, "cross-entropy")),
    ]
    (first, second, other), (third, fourth, another) = seen[:3], seen[3:]

    def ends(of, x):
        """The ends of an ascent for the examples that are still in the batch."""
        return torch.stack([of[4][(of[2] == image).flatten(1).all(1)][0] for image in x])

    assert torch.equal(third[3], ends(first, third[2]) if warm else third[2])
    assert torch.equal(first[3], first[2])
    assert torch.equal(fourth[3], ends(second, fourth[2])) == warm
    assert not torch.equal(another[3], ends(other, another[2])), "further starts are new ones"
