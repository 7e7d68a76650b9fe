"""The built-in corruptions: shapes, determinism, and known answers of each."""

import itertools

import numpy as np
import pytest
import torch

from rhobust.data import CORRUPTIONS, SEVERITIES, check_corruptions, corrupt, corruption_block, pair_distances
from rhobust.noise import BatchNoise, ExampleNoise, stream


def photos(n=3, channels=3, height=28, width=28, seed=0):
    """Smooth random images, as photographs are."""
    rng = torch.Generator().manual_seed(seed)
    coarse = torch.rand(n, channels, max(2, height // 4), max(2, width // 4), generator=rng)
    smooth = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")
    return (smooth * 255).round().to(torch.uint8)


def changed(images, name, severity, seed=0):
    return corrupt(images, name, severity, rng=ExampleNoise(seed, "test", range(len(images))))


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("shape", [(2, 1, 28, 28), (1, 3, 32, 20), (2, 4, 9, 8), (1, 3, 1, 7)])
def test_any_size_and_number_of_channels(name, shape):
    images = photos(*shape)
    before = images.clone()
    for severity in (1, 5):
        after = changed(images, name, severity)
        assert (after.shape, after.dtype) == (images.shape, torch.uint8)
        assert torch.equal(images, before)
        assert torch.equal(after, changed(images, name, severity))


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("side", [28, 32, 45])
def test_severities_move_images_further_and_further(name, side):
    images = photos(4, 3, side, side)
    sizes = [float(np.mean(pair_distances(images, changed(images, name, severity)) ** 2)) for severity in SEVERITIES]
    assert all(first < second for first, second in itertools.pairwise([0.0, *sizes]))


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_an_image_does_not_depend_on_its_batch(name):
    images = photos(4)
    whole = changed(images, name, 3)
    part = corrupt(images[2:], name, 3, rng=ExampleNoise(0, "test", [2, 3]))
    assert torch.equal(whole[2:], part)


def test_only_some_are_random():
    images = photos(4)
    random = {
        name for name in CORRUPTIONS if not torch.equal(changed(images, name, 3), changed(images, name, 3, seed=1))
    }
    assert random == {"gaussian-noise", "fog", "motion-blur"}
    one = corrupt(images, "fog", 2, rng=BatchNoise(stream(0, "a")))
    assert torch.equal(one, corrupt(images, "fog", 2, rng=BatchNoise(stream(0, "a"))))


def test_known_answers():
    grey = torch.full((1, 3, 32, 32), 100, dtype=torch.uint8)
    for name in ("gaussian-blur", "defocus-blur", "motion-blur", "pixelate", "contrast"):
        assert torch.equal(changed(grey, name, 5), grey), f"{name} leaves a constant image unchanged"
    level = CORRUPTIONS["brightness"].levels[2]
    assert changed(grey, "brightness", 3).unique().tolist() == [round(100 + 255 * level)]
    noisy = changed(torch.full((1, 1, 64, 64), 128, dtype=torch.uint8), "gaussian-noise", 3).double() / 255
    assert noisy.std().item() == pytest.approx(CORRUPTIONS["gaussian-noise"].levels[2], rel=0.1)
    ramp = photos(1, 1)
    shrunk = changed(ramp, "contrast", 4).double()
    assert shrunk.std().item() == pytest.approx(
        CORRUPTIONS["contrast"].levels[3] * ramp.double().std().item(), rel=0.02
    )
    assert shrunk.mean().item() == pytest.approx(ramp.double().mean().item(), abs=0.5)


def test_a_blur_is_the_convolution_with_its_kernel():
    point = torch.zeros(1, 1, 33, 33, dtype=torch.uint8)
    point[0, 0, 16, 16] = 255
    for severity in SEVERITIES:
        sigma = CORRUPTIONS["gaussian-blur"].levels[severity - 1] * (33 / 32) ** 0.5
        offsets = np.arange(-16, 17)
        kernel = np.exp(-(offsets**2) / (2 * sigma**2))
        kernel = np.outer(kernel, kernel) / kernel.sum() ** 2
        assert np.abs(changed(point, "gaussian-blur", severity)[0, 0].numpy() - 255 * kernel).max() <= 0.51
    for name in ("gaussian-blur", "defocus-blur", "motion-blur"):
        assert abs(int(changed(point, name, 2).sum()) - 255) < 15, f"{name} keeps the light"


def test_pixelate_averages_blocks():
    # Half of 8 pixels left is four blocks of two.
    from rhobust.data.corruptions import _pixelate

    x = torch.arange(64.0, dtype=torch.float64).view(1, 1, 8, 8)
    blocks = x.view(4, 2, 4, 2).mean((1, 3)).repeat_interleave(2, 0).repeat_interleave(2, 1)
    assert torch.allclose(_pixelate(x, 0.5, BatchNoise(stream(0)))[0, 0], blocks)


def test_each_corruption_says_what_it_does():
    for name, corruption in CORRUPTIONS.items():
        assert corruption.name == name
        assert len(corruption.levels) == len(SEVERITIES) == 5
        assert corruption.description
        assert corruption.unit
    assert corruption_block((3, 224, 224)) >= 100
    assert corruption_block((3, 10**4, 10**4)) == 1


@pytest.mark.parametrize(
    ("images", "name", "severity", "message"),
    [
        (photos() / 255, "fog", 1, r"images must be uint8 \(n, channels, height, width\), got torch.float32"),
        (photos()[0], "fog", 1, "images must be uint8"),
        (photos().numpy(), "fog", 1, "got a ndarray"),
        (photos(), "rain", 1, "corruptions must be among jpeg, .*, got 'rain'"),
        (photos(), "fog", 6, r"severity must be in 1\.\.5, got 6"),
    ],
)
def test_mistakes_are_refused(images, name, severity, message):
    with pytest.raises(ValueError, match=message):
        corrupt(images, name, severity, rng=BatchNoise(stream(0)))
    with pytest.raises(ValueError, match="corruptions must be a list of names, got 'fog'"):
        check_corruptions("fog")
