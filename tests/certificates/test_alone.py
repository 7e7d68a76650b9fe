import pytest
import torch
from torch import nn

from rhobust.certificates import (
    SmoothedClassifier,
    Smoothing,
    VoteCounter,
    certify_measured_shift,
    certify_shift,
    check_batch_independence,
)
from rhobust.data import to_unit


class Mixing(nn.Module):
    """A half space whose answer moves with the batch's mean, or with an input's place, by a little or a lot."""

    def __init__(self, base, *, mean=0.0, place=0.0):
        super().__init__()
        self.base, self.mean, self.place = base, mean, place

    def forward(self, x):
        logits = self.base(x)
        return logits + self.mean * x.mean() + self.place * torch.arange(len(x))[:, None]


def check(model, images):
    return check_batch_independence(VoteCounter(model, images, Smoothing(0.25, 2)))


def test_a_function_of_one_input_passes(half_space, grey_images):
    assert check(half_space, grey_images.images) == []


@pytest.mark.parametrize("dependence", [{"mean": 1.0}, {"place": 0.01}, {"mean": 3e-3}, {"place": 3e-6}])
def test_a_network_that_looks_at_its_neighbours_is_refused(half_space, grey_images, dependence):
    with pytest.raises(ValueError, match="must be batch-independent, but its logits depend on the other inputs"):
        check(Mixing(half_space, **dependence), grey_images.images)


@pytest.mark.parametrize(
    "certify",
    [
        lambda model, x, y: SmoothedClassifier(model, 0.25, 2).certify(x, n=100),
        lambda model, x, y: SmoothedClassifier(model, 0.25, 2).certify(x, n=100, radii=(0.0, 0.5)),
        lambda model, x, y: certify_shift(model, x, y, sigma=0.25, eps=[0.1]),
        lambda model, x, y: certify_measured_shift(model, x, y, x, x, sigma=0.25),
    ],
    ids=["radius", "radii", "shift", "measured shift"],
)
def test_no_function_certifies_it(half_space, grey_images, certify):
    certify(half_space, grey_images.images, grey_images.labels)
    with pytest.raises(ValueError, match="must be batch-independent"):
        certify(Mixing(half_space, mean=1.0), grey_images.images, grey_images.labels)


def test_a_network_that_fails_says_so_in_one_line(half_space):
    with pytest.raises(ValueError, match=r"must take inputs of shape \(1, 5, 5\), but it fails: ") as line:
        check(half_space, torch.zeros(2, 1, 5, 5, dtype=torch.uint8))
    assert "\n" not in str(line.value)


def test_rounding_is_told(half_space, grey_images):
    (warning,) = check(Mixing(half_space, place=3e-8), grey_images.images)
    assert "depend on an input's place in the batch" in warning


def test_batch_norm_is_asked_in_evaluation_mode(half_space, grey_images):
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16), half_space).train()
    assert check(model, grey_images.images) == []
    assert model.training


class InPlace(nn.Module):
    """Shifts its input in place before it answers."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        x -= 0.1
        return self.network(x + 0.1)


def test_a_network_that_works_in_place_leaves_the_images_as_they_were(half_space, grey_images):
    x, y = to_unit(grey_images.images), grey_images.labels
    found = certify_shift(InPlace(half_space), x, y, sigma=0.25, eps=[0.1])
    assert found == certify_shift(half_space, x, y, sigma=0.25, eps=[0.1])
    assert torch.equal(x, to_unit(grey_images.images))
