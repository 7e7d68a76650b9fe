"""A denoiser in front of a classifier: the composition, what is frozen, and that training helps under noise."""

import pytest
import torch
from torch import nn

import rhobust
from rhobust.data import to_unit
from rhobust.methods import Denoising
from rhobust.models import Denoised, build_model, dncnn
from rhobust.noise import BatchNoise, stream


class Affine(nn.Module):
    """A denoiser with a known answer, and one weight."""

    def __init__(self, factor=0.5):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, x):
        return self.factor * x


def test_it_is_the_composition_and_the_classifier_stays_unchanged(half_space):
    model = Denoised(Affine(), half_space)
    x = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(model(x), half_space(0.5 * x))
    assert [name for name, weight in model.named_parameters() if weight.requires_grad] == ["denoiser.factor"]
    model.train()
    assert model.denoiser.training
    assert not model.classifier.training
    assert torch.equal(Denoised(Affine(4.0), half_space, clamp=True)(x), half_space((4 * x).clamp(0, 1)))


def test_the_smoothed_composition_is_certified(half_space, grey_images):
    # Half of x + z is beyond the threshold where x + z is beyond twice of it: the same as another half space.
    smoothed = rhobust.SmoothedClassifier(Denoised(Affine(1.0), half_space), 0.25, 2)
    plain = rhobust.SmoothedClassifier(half_space, 0.25, 2)
    assert smoothed.certify(grey_images.images[-2:], n=500) == plain.certify(grey_images.images[-2:], n=500)


def test_the_loss_is_that_of_the_paper(half_space):
    model, x = Denoised(Affine(0.8), half_space), torch.full((4, 1, 4, 4), 0.6)
    noisy = x + 0.25 * BatchNoise(stream(0)).normal(x, 1)[0]
    mse = (0.8 * noisy - x).square().mean()
    answers = half_space(x).argmax(1)
    entropy = nn.functional.cross_entropy(half_space(0.8 * noisy), answers)
    for stability, expected in ((0.0, mse), (1.0, mse + entropy), (2.0, mse + 2 * entropy)):
        loss = Denoising(0.25, stability).loss(model, x, torch.zeros(4).long(), BatchNoise(stream(0)))
        assert loss.value.item() == pytest.approx(expected.item())
    loss.value.backward()
    assert model.denoiser.factor.grad is not None
    assert half_space.normal.grad is None


def test_training_removes_noise():
    digits = rhobust.load("digits", "train")
    images, labels = to_unit(digits.images), digits.labels
    classifier = build_model(
        "cnn-small", shape=digits.shape, classes=10, mean=[0.3], deviation=[0.4], activation="relu", seed=0
    )
    model = Denoised(dncnn(1, width=8, depth=3), classifier)
    optimizer = torch.optim.Adam(model.denoiser.parameters(), lr=0.01)
    loss_fn = rhobust.robust_loss(Denoising(sigma=0.5))
    before = [weight.clone() for weight in classifier.parameters()]
    for batch in torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).split(50):
        optimizer.zero_grad()
        loss_fn(model, images[batch], labels[batch]).backward()
        optimizer.step()
    noisy = images + 0.5 * BatchNoise(stream(1)).normal(images, 1)[0]
    with torch.no_grad():
        assert (model.eval().denoise(noisy) - images).square().mean() < 0.15 < (noisy - images).square().mean()
    assert all(torch.equal(*pair) for pair in zip(before, classifier.parameters(), strict=True))


def test_the_seed_decides_the_denoiser():
    one, same, other = dncnn(3, width=4, seed=0), dncnn(3, width=4, seed=0), dncnn(3, width=4, seed=1)
    x = torch.rand(1, 3, 6, 5, generator=torch.Generator().manual_seed(0))
    assert one(x).shape == x.shape
    assert torch.equal(one(x), same(x))
    assert not torch.equal(one(x), other(x))


def test_mistakes_are_one_line(half_space):
    with pytest.raises(ValueError, match=r"the network must be a rhobust\.models\.Denoised, got a HalfSpace"):
        rhobust.robust_loss(Denoising())(half_space, torch.zeros(1, 1, 4, 4), torch.zeros(1).long())
    with pytest.raises(ValueError, match=r"the denoiser must return images of the shape \(1, 1, 4, 4\), got \(1, 16\)"):
        Denoised(nn.Flatten(), half_space)(torch.zeros(1, 1, 4, 4))
    with pytest.raises(ValueError, match=r"the network must be a torch\.nn\.Module"):
        Denoised(lambda x: x, half_space)
    with pytest.raises(ValueError, match="depth must be >= 2, got 1"):
        dncnn(1, depth=1)
    with pytest.raises(ValueError, match="sigma must be > 0"):
        Denoising(sigma=0.0)
