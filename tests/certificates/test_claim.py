"""What a shift certificate claims, in settings and in words; losses under noise."""

import math

import pytest
import torch

from rhobust.certificates import (
    ShiftClaim,
    Smoothing,
    certify_shift,
    sample_losses,
)
from rhobust.data import to_unit
from rhobust.proofs.claim import claim_in_full

EPS = (0.0, 0.1, 0.5)


class Nan(torch.nn.Module):
    def forward(self, x):
        return torch.full((len(x), 2), math.nan)


class TooLarge:
    bound = 0.5

    def __call__(self, logits, y):
        return logits[:, 0] + 0.75


def test_nan_and_losses_out_of_bounds_are_errors(half_space, grey_images):
    for claim in (ShiftClaim(), ShiftClaim(loss="cross-entropy")):
        with pytest.raises(ValueError, match="logits must be numbers, but the network returned NaN"):
            certify_shift(Nan(), grey_images.images, grey_images.labels, sigma=0.25, eps=EPS, claim=claim)
    with pytest.raises(ValueError, match=r"losses must be in \[0, 0.5\], their bound, got 0.75"):
        sample_losses(
            half_space,
            grey_images.images,
            grey_images.labels,
            TooLarge(),
            Smoothing(0.25, 2),
            indices=range(40),
            draws=2,
            purpose="shift",
        )


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (ShiftClaim(), "within W2 distance 0.1 of the data's, the classifier that takes one noisy vote (sigma 0.25)"),
        (
            ShiftClaim(cost="w1"),
            "W1 distance 0.1 of the data's, the classifier that takes",
        ),
        (
            ShiftClaim(classifier="k-vote", votes=5, cost="winf"),
            "the majority of 5 noisy votes (sigma 0.25) is right at least",
        ),
        (
            ShiftClaim(classifier="majority", cost="winf"),
            "W-infinity distance 0.1 of the data's, the classifier",
        ),
        (
            ShiftClaim(estimator="sample"),
            "over the noise, for every distribution within W2 distance 0.1 of these 40 test",
        ),
        (
            ShiftClaim(loss="cross-entropy"),
            "the mean cross-entropy of one noisy answer (sigma 0.25), clipped at 0.693",
        ),
    ],
)
def test_every_claim_has_its_statement(half_space, grey_images, claim, words):
    found = certify_shift(
        half_space, grey_images.images, grey_images.labels, sigma=0.25, eps=(0.1,), draws=5, alpha=0.01, claim=claim
    )
    assert words in found.statement(0.1)
    assert found.statement(0.1).endswith(" Holds for 8-bit images.")


def test_a_statement_names_the_clip_exactly_and_no_larger_shift():
    claim = ShiftClaim(loss="cross-entropy").resolve(10)
    words = claim.in_words(0.5, eps=0.12345678, alpha=0.01, sigma=0.12345678, points=40, noise="grid")
    # Rounded to nearest, both would be larger: another loss, and distributions that are not covered.
    assert "clipped at 2.302585092994046," in words
    assert "W2 distance 0.123456 of" in words
    assert "(sigma 0.12345678)" in words


def test_statements_for_float_inputs_assume_ideal_noise(half_space, grey_images):
    x = to_unit(grey_images.images) * 0.99
    found = certify_shift(half_space, x, grey_images.labels, sigma=0.25, eps=(0.1,), draws=5, alpha=0.01)
    assert found.noise == "float"
    assert "ideal Gaussian draws" in found.statement(0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"classifier": "one"}, "classifier must be one of randomised, k-vote, majority, got 'one'"),
        ({"cost": "w3"}, "cost must be one of w1, w2, winf, got 'w3'"),
        ({"votes": 3}, "votes must be left out for the randomised classifier, got 3"),
        ({"classifier": "k-vote", "votes": 0}, "votes must be >= 1, got 0"),
        ({"classifier": "majority", "loss": "cross-entropy"}, "loss must be 0-1 for the majority classifier"),
        ({"bound": 2.0}, "bound must be left out for the 0-1 loss, got 2.0"),
        ({"loss": "cross-entropy", "bound": 0.0}, "bound must be > 0 and finite, got 0.0"),
    ],
)
def test_inconsistent_claims_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        ShiftClaim(**settings)


@pytest.mark.parametrize(
    ("settings", "network", "words"),
    [
        (
            {"data": "mnist"},
            "nal",
            "For nal, if the 40 test images of mnist are independent draws from one distribution, none of them trained"
            " on, and a shift keeps labels: With",
        ),
        ({"data": "mnist", "way": "sample"}, "nal", "For nal, if a shift keeps labels: With"),
        (
            {"data": "mnist", "pairs": "a and b", "points": "test data"},
            "nal",
            "For nal, if the 40 labelled images of mnist and the pairs (a and b) are independent draws",
        ),
        ({"data": "mnist", "pairs": "a and b", "points": "before"}, "nal", "if the 40 labelled images and the pairs"),
        ({"pairs": "a and b"}, None, "If the 40 pairs (a and b) are independent draws from one distribution: With"),
    ],
)
def test_a_claim_in_full_names_network_data_and_assumptions(settings, network, words):
    found = claim_in_full("With probability 99%.", settings, 40, network)
    assert words in found
    assert found.endswith(": With probability 99%.")
