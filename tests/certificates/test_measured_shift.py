"""The certificate after a measured change, on a half space where every answer is known."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from rhobust.bounds import betting_upper, measured_loss, shuffle
from rhobust.certificates import (
    MeasuredCertificate,
    accuracy_under_noise,
    certify_measured_shift,
    certify_shift,
    measure_shift,
)
from rhobust.data import to_unit
from rhobust.proofs.claim import NoiseSamples

SIGMA = 0.25


@pytest.fixture
def images(grey_images):
    return grey_images.images.repeat(25, 1, 1, 1), grey_images.labels.repeat(25)


def perturbed_towards_the_border(images, labels, steps):
    """Every pixel so many steps of 1/255 darker or brighter: the worst direction for the half space."""
    sign = 1 - 2 * labels.view(-1, 1, 1, 1)
    return (images.to(torch.int16) + sign * steps).clamp(0, 255).to(torch.uint8)


def test_the_certificate_is_below_the_accuracy_after_the_worst_change(half_space, images):
    x, y = images
    after = perturbed_towards_the_border(x, y, 10)
    certificate = certify_measured_shift(half_space, x, y, x, after, sigma=SIGMA, draws=20, alpha=0.01)
    margin = (half_space(to_unit(after))[:, 1] * (2 * y - 1)).detach().numpy()
    truth = stats.norm.cdf(margin / SIGMA).mean()
    assert truth - 0.12 < certificate.certified_accuracy < truth
    shift = measure_shift(x, after, alpha=0.01)
    # Sixteen pixels are perturbed by 10/255 each.
    assert shift.eps == pytest.approx(4 * 10 / 255, rel=1e-12)
    assert shift.mean_distance == pytest.approx(shift.eps)
    assert shift.largest_distance == pytest.approx(shift.eps)
    assert shift.eps <= shift.eps_capped < shift.eps * 1.1 < shift.eps_upper
    assert (certificate.points, certificate.pairs, certificate.draws, certificate.noise) == (1000, 1000, 20, "grid")


def test_pairs_need_not_be_the_test_points(half_space, images):
    x, y = images
    pairs = x[::3], perturbed_towards_the_border(x, y, 5)[::3]
    certificate = certify_measured_shift(half_space, x, y, *pairs, sigma=SIGMA, draws=10, alpha=0.01)
    assert (certificate.points, certificate.pairs) == (1000, 334)
    own = certify_measured_shift(half_space, x, y, x, x, sigma=SIGMA, draws=10, alpha=0.01)
    assert certificate.certified_accuracy < own.certified_accuracy < own.accuracy_under_noise


def test_the_statements_are_rounded_outward(half_space, images):
    x, y = images
    after = perturbed_towards_the_border(x, y, 3)
    certificate = certify_measured_shift(half_space, x, y, x, after, sigma=SIGMA, draws=5, alpha=0.01)
    shown = float(certificate.statement().split("at least ")[1].split("%")[0])
    assert 0 <= 100 * certificate.certified_accuracy - shown < 0.1
    assert certificate.statement().startswith("With probability 99% over image pairs, test points and noise")
    assert certificate.statement().endswith(" Holds for 8-bit images.")
    assert "ideal Gaussian draws" in replace(certificate, noise="float").statement()
    shift = measure_shift(x, after, alpha=0.01)
    words = shift.statement().split()
    capped, upper = (float(words[place + 2]) for place, word in enumerate(words) if word == "at")
    assert 0 <= capped - shift.eps_capped < 1e-4
    assert 0 <= upper - shift.eps_upper < 1e-4


def test_the_interval_covers_the_share_of_right_votes():
    # 200 repetitions at 5%; false-alarm rate below 1e-6. Votes at one image agree, so images are what counts.
    rng = np.random.default_rng(1)
    misses = 0
    for _ in range(200):
        found = accuracy_under_noise(10 * rng.binomial(1, 0.1, 80), 10)
        misses += not found["low"] <= 0.9 <= found["high"]
        assert found["low"] <= found["accuracy"] <= found["high"]
    assert misses <= stats.binom.isf(1e-6, 200, 0.05)


def test_an_interval_holds_the_share_that_it_is_about():
    # Bets that learn from the first of these images end above the share of all of them.
    errors = np.array([1] * 39 + [0] * 12)
    assert betting_upper(shuffle(1.0 - errors), 0.025) < 12 / 51
    found = accuracy_under_noise(errors, 1)
    assert found["low"] < found["accuracy"] == found["high"] == pytest.approx(12 / 51)


def test_the_penalty_for_large_perturbations_is_part_of_the_loss():
    # One image in ten is perturbed across the whole input space: at least that much accuracy is lost.
    rng = np.random.default_rng(2)
    errors, distances = rng.binomial(10, 0.05, 800), np.where(np.arange(800) % 10 == 0, 4.0, 0.02)
    found = MeasuredCertificate.from_counts(
        errors, distances, NoiseSamples(draws=10, sigma=SIGMA, dimension=16, alpha=0.01, noise="float")
    )
    loss = measured_loss(errors, 10, distances, SIGMA, 0.01, least=1 / 255, most=4.0)
    assert found.certified_accuracy == pytest.approx(1 - loss.loss, abs=1e-12)
    assert found.excess > 0.1
    assert 0.5 < found.certified_accuracy < 0.95 - 0.1


def test_a_trivial_certificate_says_so():
    certificate = MeasuredCertificate.from_counts(
        np.full(50, 3),
        np.full(40, 3.9),
        NoiseSamples(draws=5, sigma=SIGMA, dimension=16, alpha=0.01, noise="grid"),
    )
    assert (certificate.certified_accuracy, certificate.scale) == (0.0, None)
    assert "at least 0.0% of the time" in certificate.statement()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": torch.zeros(3, dtype=torch.int64)}, "y must be a tensor of one class number per input"),
        ({"y": [0] * 40}, r"class number per input \(40\), got a list"),
        ({"y": torch.zeros(40)}, r"class number per input .*got torch\.float32"),
        ({"before": torch.zeros(2, 1, 2, 2, dtype=torch.uint8)}, "before must have the shape of x"),
        ({"after": torch.full((40, 1, 4, 4), 0.3333), "before": torch.zeros(40, 1, 4, 4)}, "after must hold 8-bit"),
        ({"after": torch.zeros(2, 1, 4, 4, dtype=torch.uint8)}, "must have one shape and type"),
        ({"alpha": 0.0}, r"alpha must be in \(0, 1\), got 0"),
        ({"sigma": 0.0}, "sigma must be > 0"),
        ({"draws": 0}, "draws must be >= 1, got 0"),
    ],
)
def test_bad_arguments_are_refused(half_space, grey_images, changes, message):
    x = grey_images.images
    good = {"x": x, "y": grey_images.labels, "before": x, "after": x, "sigma": SIGMA}
    with pytest.raises(ValueError, match=message):
        certify_measured_shift(half_space, **(good | changes))
    if "alpha" in changes:
        with pytest.raises(ValueError, match=message):
            measure_shift(x, x, **changes)


@pytest.mark.parametrize(("dtype", "autocast"), [(None, False), ("float32", False), ("bfloat16", True)])
def test_votes_for_a_distribution_use_the_given_arithmetic(half_space, images, dtype, autocast):
    lowered = []
    half_space.register_forward_hook(lambda *_: lowered.append(torch.is_autocast_enabled("cpu")))
    x, y = images
    certify_shift(half_space, x, y, sigma=SIGMA, eps=[0.1], draws=2, dtype=dtype)
    assert lowered[-1] is autocast
    certify_measured_shift(half_space, x, y, x, x, sigma=SIGMA, draws=2, dtype=dtype)
    assert lowered[-1] is autocast
