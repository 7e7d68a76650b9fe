"""What the demo answers, against a half space whose smoothed radius is the distance to its boundary."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rhobust.data import CORRUPTIONS, pair_distances
from rhobust.demo import DemoClassifier
from rhobust.demo.classifier import image_key, round_within
from rhobust.demo.page import attacked

SIGMA = 0.25


@pytest.fixture
def classifier(half_space):
    return DemoClassifier(half_space, SIGMA, ("dark", "bright"), (1, 4, 4), n=2000, seed=1)


def grey(level):
    return torch.full((1, 4, 4), level, dtype=torch.uint8)


def distance(level):
    """From a grey image to the boundary of the half space."""
    return abs(4 * level / 255 - 2)


@pytest.mark.parametrize("level", [60, 110, 135, 170])
def test_the_radius_grows_and_never_passes_the_truth(classifier, level):
    seen = list(classifier.certify(grey(level)))
    radii = [one.radius for one in seen]
    assert radii == sorted(radii)
    assert max(radii) <= distance(level)
    assert radii[-1] > 0.6 * min(distance(level), 2.5 * SIGMA)
    assert len(set(radii)) > 3 or distance(level) < 0.15
    assert [one.done for one in seen] == [False] * (len(seen) - 1) + [True]
    assert [one.samples for one in seen] == sorted(one.samples for one in seen)
    assert seen[-1].samples <= seen[-1].limit == 2000
    assert seen[-1].prediction == int(level > 127)
    for one in seen:
        assert one.selected is None or sum(one.votes) == one.samples
        assert one.radius == 0 or one.prediction is not None


def test_a_radius_is_valid_at_whatever_time_it_is_looked_at(classifier):
    """Over many seeds, the share with any false radius at any look is at most alpha, up to chance."""
    level, false, trials = 131, 0, 40
    for seed in range(trials):
        again = replace(classifier, seed=seed, n=600, alpha=0.1)
        false += any(one.radius > distance(level) for one in again.certify(grey(level)))
    # More than 11 of 40 at a rate of 0.1 happen with probability 4e-4.
    assert false <= 11


def test_a_close_vote_is_an_abstention(classifier):
    *_, last = classifier.certify(grey(127))
    assert last.done
    assert last.prediction is None
    assert last.radius == 0
    assert last.selected is not None


def test_an_image_names_its_noise(classifier):
    once, again = (list(classifier.certify(grey(135))) for _ in range(2))
    assert once == again
    other = list(replace(classifier, seed=2).certify(grey(135)))
    assert [one.votes for one in other] != [one.votes for one in once]
    assert image_key(grey(1)) != image_key(grey(2))
    assert image_key(grey(1)) != image_key(grey(1).view(1, 2, 8))
    # Nobody can know the noise beforehand.
    fresh = [DemoClassifier(classifier.model, SIGMA, ("a", "b"), (1, 4, 4)).seed for _ in range(2)]
    assert fresh[0] != fresh[1]


def test_an_attack_stays_within_the_radius_and_crosses_the_boundary_only_beyond_the_distance(classifier):
    level = 150
    far = classifier.attack(grey(level), 1, 0.5)
    assert far.prediction == 0
    assert distance(level) < far.distance <= 0.5
    near = classifier.attack(grey(level), 1, 0.2)
    assert near.prediction == 1
    assert 0.15 < near.distance <= 0.2
    assert near.image.dtype == torch.uint8
    assert near.distance == pair_distances(grey(level)[None], near.image[None])[0]


def test_votes_after_an_attack_are_not_taken_for_names_of_classes(half_space):
    classifier = DemoClassifier(half_space, SIGMA, ("0", "1"), (1, 4, 4), n=2000, seed=1)
    *_, certificate = classifier.certify(grey(150))
    shown = attacked(classifier, grey(150), certificate, classifier.attack(grey(150), 1, 0.2), 0.2)
    assert re.search(r"votes after it: [\d,]+ for 1", shown)


@given(
    st.lists(st.integers(0, 255), min_size=12, max_size=12),
    st.integers(0, 2**32 - 1),
    st.floats(0.001, 2),
)
def test_rounding_stays_within_the_radius(levels, seed, radius):
    image = torch.tensor(levels, dtype=torch.uint8).view(3, 2, 2)
    offset = torch.from_numpy(np.random.default_rng(seed).normal(size=(3, 2, 2)))
    start = image.double() / 255
    moved = (start + radius * offset / offset.norm()).clamp(0, 1)
    rounded = round_within(image, moved, radius)
    length = (rounded.double() / 255 - start).norm()
    assert length <= radius + 1e-12
    nearest = (moved * 255).round().to(torch.uint8)
    if (nearest.double() / 255 - start).norm() <= radius:
        assert torch.equal(rounded, nearest)
    assert ((rounded.double() - moved * 255).abs() <= 1 + 1e-9).all()


def test_corruptions_of_an_image(classifier):
    found = classifier.corruptions(grey(200), 2, votes=64)
    assert [one.name for one in found] == list(CORRUPTIONS)
    for one in found:
        assert one.distance == pair_distances(grey(200)[None], one.image[None])[0]
        assert one.prediction == 1
        assert sum(votes for _, votes in one.votes) == 64


def test_other_images_and_networks_are_refused(classifier, half_space):
    with pytest.raises(ValueError, match=r"image must be uint8 \(1, 4, 4\), got torch.uint8 \(1, 3, 4\)"):
        next(classifier.certify(torch.zeros(1, 3, 4, dtype=torch.uint8)))
    for settings, message in (
        ({"shape": (2, 4, 4)}, "shape must be 1 or 3 channels"),
        ({"sigma": 0.0}, "sigma must be"),
        ({"alpha": 2.0}, "alpha must be"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(classifier, **settings)


def test_a_batch_dependent_network_opens_no_page(classifier):
    class Centred(torch.nn.Module):
        def forward(self, x):
            value = x.flatten(1).sum(1)
            return torch.stack([torch.zeros_like(value), value - value.mean()], dim=1)

    classifier.check()
    with pytest.raises(ValueError, match="batch-independent"):
        replace(classifier, model=Centred()).check()
