"""The readings of the paper's protocol, and testing with noise and without."""

from dataclasses import replace

import pytest

from reproduction.protocol_variants import protocol_variants, with_and_without_noise
from rhobust.attacks import PGD
from rhobust.evaluation import Target
from rhobust.progress import no_progress

RADII = (0.0, 0.5)


@pytest.fixture
def target(half_space, grey_images, tmp_path):
    return Target(half_space, grey_images, sigma=0.25, name="half-space", folder=tmp_path, model_hash="0" * 16)


def reading(record):
    attack = record.settings["attack"]
    return attack["steps"], attack["sees"], attack["gradient"], record.settings["scored"], record.settings["votes"]


def test_every_reading_is_a_record_of_its_own(target):
    records = protocol_variants(target, RADII, steps=(2, 3), votes=30, progress=no_progress)
    answers = [("base", None), ("smoothed", 1), ("smoothed", 30)]
    assert [reading(record) for record in records] == [
        (steps, sees, gradient, *answer)
        for steps in (2, 3)
        for sees in ("base", "draw")
        for gradient in ("normalised", "raw")
        for answer in answers
    ]
    assert len({record.path for record in records}) == 24
    assert all(record.settings["nested"] is False for record in records)


def test_a_network_without_noise_has_only_the_readings_without(target):
    records = protocol_variants(replace(target, sigma=None), RADII, steps=(2,), progress=no_progress)
    assert [reading(record) for record in records] == [
        (2, "base", "normalised", "base", None),
        (2, "base", "raw", "base", None),
    ]


def test_with_and_without_noise(target):
    ((noisy, plain),) = with_and_without_noise([target], RADII, votes=20, progress=no_progress, probe=False)
    assert (noisy.settings["scored"], noisy.settings["attack"]["kind"]) == ("smoothed", "eot")
    assert (plain.settings["scored"], plain.settings["attack"]["kind"]) == ("base", "pgd")
    ((noisy, plain),) = with_and_without_noise(
        [target], RADII, attack=PGD(steps=3), votes=20, progress=no_progress, probe=False
    )
    assert noisy.settings["attack"] == plain.settings["attack"]
    assert [record.settings["scored"] for record in (noisy, plain)] == ["smoothed", "base"]
    with pytest.raises(ValueError, match="so sigma must be given"):
        with_and_without_noise([replace(target, sigma=None)], RADII)
