import pytest
import torch

from rhobust.data import cutmix
from rhobust.noise import stream


def of_one_colour(count=4000, height=8, width=12):
    """Images whose pixels all hold the image's own number, and labels that are this number modulo 5."""
    images = torch.arange(count).view(-1, 1, 1, 1).expand(count, 1, height, width).contiguous()
    return images, torch.arange(count) % 5


def test_a_label_has_the_share_of_its_pixels():
    images, labels = of_one_colour()
    mixed, y = cutmix(images, labels, classes=5, probability=1.0, rng=stream(0, "cutmix"))
    shares = torch.stack([(mixed % 5 == label).float().mean((1, 2, 3)) for label in range(5)], 1)
    assert torch.allclose(y, shares, atol=1e-6)
    assert torch.allclose(y.sum(1), torch.ones(4000), atol=1e-6)


def test_the_patch_is_one_rectangle_of_one_other_image_at_the_same_place():
    images, labels = of_one_colour(200)
    images = images * 1000 + torch.arange(96).view(8, 12)
    mixed, _ = cutmix(images, labels, classes=5, probability=1.0, rng=stream(0, "cutmix"))
    assert torch.equal(mixed % 1000, images % 1000)
    for number, one in enumerate(mixed[:, 0] // 1000):
        foreign = one != number
        if foreign.any():
            rows, columns = foreign.any(1), foreign.any(0)
            assert torch.equal(foreign, rows[:, None] & columns)
            assert all((line.diff().ne(0).sum() <= 2) for line in (rows.int(), columns.int()))
            assert len(one[foreign].unique()) == 1


def test_the_probability_is_the_share_of_mixed_images_and_areas_are_spread():
    images, labels = of_one_colour(height=64, width=64)
    mixed, _ = cutmix(images[:2000], labels[:2000], classes=5, probability=0.3, rng=stream(0, "cutmix"))
    area = (mixed != images[:2000]).float().mean((1, 2, 3))
    # 1 of 2,000 partners is the image itself, and a small rectangle may have no pixel.
    assert (area > 0).float().mean().item() == pytest.approx(0.3, abs=0.04)
    # A square of side s, uniform in s^2, around a uniform centre: E (s - s^2 / 4)^2 = E s^2 - s^3 / 2 + s^4 / 16.
    assert area[area > 0].mean().item() == pytest.approx(1 / 2 - 1 / 5 + 1 / 48, abs=0.04)


def test_without_probability_nothing_changes_and_the_stream_decides():
    images, labels = of_one_colour(50)
    same, y = cutmix(images, labels, classes=5, probability=0.0, rng=stream(0, "cutmix"))
    assert torch.equal(same, images)
    assert torch.equal(y.argmax(1), labels)
    assert y.max(1).values.min() == 1
    first, again, other = (
        cutmix(images, labels, classes=5, probability=1.0, rng=stream(seed, "cutmix"))[0] for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
