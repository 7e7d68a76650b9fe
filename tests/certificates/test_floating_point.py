"""A classifier that reads low bits: float noise certifies it wrongly, grid noise does not."""

import torch
from torch import nn

from rhobust.certificates import Fixed, SmoothedClassifier, Smoothing, certify_inputs, count_votes
from rhobust.data import to_unit

SIGMA, SIDE = 0.25, 32


class LowBits(nn.Module):
    """Class 1 where some number near zero is not a multiple of 2^-32.

    A float32 near zero has bits below 2^-32. The sum of an image's value 2^-8 and noise that almost cancels it has
    none: it keeps the resolution of the larger number.
    """

    def forward(self, x):
        x = x.flatten(1).double()
        fine = (x.abs() < 2.0**-9) & (torch.remainder(x * 2.0**32, 1.0) != 0)
        return nn.functional.one_hot(fine.any(1).long(), 2).float()


def votes(x, noise, draws):
    return count_votes(
        LowBits(), x, Smoothing(SIGMA, 2, noise=noise), indices=range(len(x)), draws=draws, purpose="test"
    )


def test_float_noise_certifies_a_class_that_a_close_point_does_not_have():
    black = torch.zeros(1, 3, SIDE, SIDE)
    grey = torch.full_like(black, 2.0**-8)
    certificate = certify_inputs(
        LowBits(), black, Smoothing(SIGMA, 2, noise="float"), Fixed(n=2000), indices=[0], alpha=0.001
    )[0]
    distance = float((grey - black).norm())
    assert certificate.prediction == 1
    assert certificate.radius > 3 * distance
    # At a distance of a third of the radius the smoothed classifier says the other class every time.
    assert votes(grey, "float", 2000).tolist() == [[2000, 0]]
    assert certificate.noise == "float"


def test_the_textbook_pipeline_does_the_same():
    rng = torch.Generator().manual_seed(0)
    noise = SIGMA * torch.randn(300, 3, SIDE, SIDE, generator=rng)
    assert (LowBits()(noise).argmax(1) == 1).all()
    assert (LowBits()(2.0**-8 + noise).argmax(1) == 0).all()


def test_grid_noise_certifies_only_what_holds_nearby():
    # On the grid the classifier cannot see which point the noise was added to.
    black = torch.zeros(1, 3, SIDE, SIDE, dtype=torch.uint8)
    smoothed = SmoothedClassifier(LowBits(), SIGMA, 2)
    for certificate in (
        smoothed.certify(black, n=2000)[0],
        smoothed.certify(black, n=2000, radii=(0.0, 0.25, 0.5))[0],
        smoothed.certify(to_unit(black), n=2000, tolerance=0.05)[0],
    ):
        assert certificate.noise == "grid"
        assert certificate.prediction == 0
        assert certificate.radius > 0.4
    for level in (1, 2):
        near = black + level
        assert float((to_unit(near) - to_unit(black)).norm()) < 0.44
        assert votes(near, "grid", 500).tolist() == [[500, 0]]


def test_images_between_the_levels_are_told_apart():
    between = torch.full((1, 3, SIDE, SIDE), 2.0**-8)
    assert SmoothedClassifier(LowBits(), SIGMA, 2).certify(between, n=200)[0].noise == "float"
