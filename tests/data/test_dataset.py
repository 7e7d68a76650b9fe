"""The Dataset, its validation, batches and augmentation."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rhobust.data import Dataset, augment, channel_statistics, epoch_batches, to_unit


def small(n: int = 6, **changes: object) -> Dataset:
    rng = torch.Generator().manual_seed(0)
    fields: dict = {
        "name": "small",
        "split": "train",
        "images": torch.randint(256, (n, 3, 4, 5), generator=rng, dtype=torch.uint8),
        "labels": torch.arange(n) % 3,
        "classes": ("a", "b", "c"),
    }
    return Dataset(**(fields | changes))


def test_shape_and_size() -> None:
    data = small()
    assert (len(data), data.shape, data.num_classes) == (6, (3, 4, 5), 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": torch.zeros(6, 3, 4, 5)}, r"images must be uint8 .*, got float32 \(6, 3, 4, 5\)"),
        ({"images": torch.zeros(6, 4, 5, dtype=torch.uint8)}, "images must be uint8"),
        ({"images": torch.zeros(0, 3, 4, 5, dtype=torch.uint8)}, "at least one image"),
        ({"labels": torch.zeros(5, dtype=torch.int64)}, r"labels must be int64 \(6,\), got int64 \(5,\)"),
        ({"labels": torch.zeros(6)}, "labels must be int64"),
        ({"labels": torch.full((6,), 3)}, r"labels must be in 0\.\.2, got 3\.\.3"),
        ({"labels": torch.full((6,), -1)}, "labels must be in"),
        ({"images": np.zeros((6, 3, 4, 5), np.uint8)}, "images must be a tensor, got a ndarray"),
        ({"labels": [0] * 6}, "labels must be a tensor, got a list"),
        ({"split": "val"}, "split must be 'train', 'test' or 'validation', got 'val'"),
        ({"crop": 4}, "crop must be"),
    ],
)
def test_refuses_what_is_no_data_set(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**changes)


def test_the_repr_says_what_it_is_and_not_every_pixel() -> None:
    assert repr(small()) == "Dataset('small', 'train', 6 images of 3x4x5, 3 classes)"


def test_places_may_be_a_list() -> None:
    data = small()
    assert torch.equal(data.select([4, 1]).images, data.images[torch.tensor([4, 1])])


def test_take_says_where_images_came_from() -> None:
    data = small()
    indices, part = data.take(2, stride=2)
    assert indices.tolist() == [0, 2]
    assert torch.equal(part.images, data.images[[0, 2]])
    assert part.labels.tolist() == [0, 2]
    assert part.classes == data.classes
    assert len(data.take()[1]) == 6


@pytest.mark.parametrize(("limit", "stride"), [(0, 1), (None, 0)])
def test_take_refuses_nothing(limit: int | None, stride: int) -> None:
    with pytest.raises(ValueError, match="must be >= 1"):
        small().take(limit, stride)


def test_fingerprint_names_the_data() -> None:
    data = small()
    assert data.fingerprint() == small().fingerprint()
    images, labels = data.images.clone(), data.labels.clone()
    images[3, 1, 2, 2] ^= 1
    labels[3] = 1 - labels[3]
    others = {small(images=images).fingerprint(), small(labels=labels).fingerprint(), small(5).fingerprint()}
    assert len(others | {data.fingerprint()}) == 4
    # A view that is not contiguous holds the same data.
    strided = data.images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    assert small(images=strided).fingerprint() == data.fingerprint()


def test_statistics_are_those_of_the_definition() -> None:
    images = small(5000).images
    mean, deviation = channel_statistics(images)
    unit = images.double() / 255
    assert mean == pytest.approx(unit.mean(dim=(0, 2, 3)).tolist(), rel=1e-12)
    assert deviation == pytest.approx(unit.std(dim=(0, 2, 3), correction=0).tolist(), rel=1e-12)


def test_a_constant_channel_can_be_divided_by() -> None:
    mean, deviation = channel_statistics(torch.full((3, 1, 2, 2), 255, dtype=torch.uint8))
    assert mean == (1.0,)
    assert math.isclose(deviation[0], 1 / 255)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def some_images(n: int = 7) -> Tensor:
    return torch.randint(256, (n, 3, 6, 5), generator=generator(1), dtype=torch.uint8)


def test_to_unit_is_the_nearest_float() -> None:
    values = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(to_unit(values), (torch.arange(256, dtype=torch.float64) / 255).float())


def test_to_unit_refuses_floats() -> None:
    with pytest.raises(ValueError, match="images must be uint8, got float32"):
        to_unit(torch.zeros(3))


def candidates(image: Tensor, crop: int, flip: bool) -> list[Tensor]:
    """Every crop of the padded image, mirrored or not: the slow reference."""
    _, height, width = image.shape
    padded = F.pad(image[None].float(), (crop,) * 4, mode="reflect")[0].to(torch.uint8) if crop else image
    crops = [
        padded[:, top : top + height, left : left + width]
        for top in range(2 * crop + 1)
        for left in range(2 * crop + 1)
    ]
    return crops + [part.flip(2) for part in crops] if flip else crops


@pytest.mark.parametrize(("crop", "flip"), [(0, True), (2, False), (2, True), (4, True)])
def test_augment_gives_crops_of_the_padded_image_and_all_of_them(crop: int, flip: bool) -> None:
    image = some_images(1)[0]
    expected = candidates(image, crop, flip)
    draws = 30 * len(expected)
    result = augment(image.expand(draws, -1, -1, -1), crop=crop, flip=flip, rng=generator())
    assert result.dtype == torch.uint8
    assert result.shape == (draws, 3, 6, 5)
    found = (result[:, None] == torch.stack(expected)).flatten(2).all(2)
    assert found.any(1).all()
    # Each of k outcomes is missed with probability (1 - 1/k)^(30 k) < exp(-30).
    assert found.any(0).all()


def test_augment_equals_the_loop() -> None:
    images, crop = some_images(40), 3
    rng = generator(5)
    mirrored = torch.randint(2, (40, 1), generator=rng)
    offsets = torch.randint(2 * crop + 1, (2, 40, 1), generator=rng)
    expected = []
    for image, mirror, top, left in zip(images, mirrored, offsets[0], offsets[1], strict=True):
        padded = F.pad(image[None].float(), (crop,) * 4, mode="reflect")[0].to(torch.uint8)
        part = padded[:, int(top) : int(top) + 6, int(left) : int(left) + 5]
        expected.append(part.flip(2) if mirror else part)
    assert torch.equal(augment(images, crop=crop, flip=True, rng=generator(5)), torch.stack(expected))


def test_augment_is_driven_by_its_generator_alone() -> None:
    images, state = some_images(), torch.get_rng_state()
    first = augment(images, crop=2, flip=True, rng=generator(3))
    assert torch.equal(first, augment(images, crop=2, flip=True, rng=generator(3)))
    assert not torch.equal(first, augment(images, crop=2, flip=True, rng=generator(4)))
    assert torch.equal(images, some_images())
    assert torch.equal(state, torch.get_rng_state())


def test_no_augmentation_returns_the_images_and_draws_nothing() -> None:
    rng = generator()
    assert torch.equal(augment(some_images(), crop=0, flip=False, rng=rng), some_images())
    assert torch.equal(rng.get_state(), generator().get_state())


@pytest.mark.parametrize("crop", [-1, 5])
def test_augment_refuses_a_border_wider_than_the_image(crop: int) -> None:
    with pytest.raises(ValueError, match="crop must be"):
        augment(some_images(), crop=crop, flip=False, rng=generator())


@pytest.mark.parametrize(("n", "size"), [(10, 3), (9, 3), (1, 5), (100, 1)])
def test_an_epoch_is_a_permutation(n: int, size: int) -> None:
    batches = list(epoch_batches(n, size, rng=generator(), device="cpu"))
    assert sorted(torch.cat(batches).tolist()) == list(range(n))
    assert [len(batch) for batch in batches[:-1]] == [size] * (len(batches) - 1)
    assert len(batches[-1]) == (n - 1) % size + 1


def test_epochs_differ_and_repeat_with_the_seed() -> None:
    rng = generator()
    first, second = (torch.cat(list(epoch_batches(50, 8, rng=rng, device="cpu"))) for _ in range(2))
    assert not torch.equal(first, second)
    rng = generator()
    # The order is drawn at the call, also when the batches are never used.
    epoch_batches(50, 8, rng=rng, device="cpu")
    assert torch.equal(second, torch.cat(list(epoch_batches(50, 8, rng=rng, device="cpu"))))


@pytest.mark.parametrize(("n", "size"), [(0, 3), (3, 0)])
def test_an_epoch_of_nothing_is_refused(n: int, size: int) -> None:
    with pytest.raises(ValueError, match="must be >= 1, got 0"):
        epoch_batches(n, size, rng=generator(), device="cpu")


@pytest.mark.gpu
def test_the_device_gives_the_same_bits() -> None:
    images = some_images().cuda()
    values = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(to_unit(values.cuda()).cpu(), to_unit(values))
    on_device = augment(images, crop=2, flip=True, rng=generator(3))
    assert on_device.device == images.device
    assert torch.equal(on_device.cpu(), augment(some_images(), crop=2, flip=True, rng=generator(3)))
    own = torch.Generator("cuda").manual_seed(0)
    assert augment(images, crop=2, flip=True, rng=own).device == images.device
    order = torch.cat(list(epoch_batches(50, 8, rng=own, device="cuda")))
    assert order.device == images.device
    assert sorted(order.tolist()) == list(range(50))


def test_the_order_in_memory_is_that_of_the_axes() -> None:
    images = some_images()
    turned = torch.from_numpy(np.asfortranarray(images.numpy()))
    assert not turned.is_contiguous()
    data = Dataset("turned", "test", turned, torch.zeros(len(images), dtype=torch.int64), ("0", "1"))
    assert data.images.is_contiguous()
    assert torch.equal(data.images, images)


def test_one_pixel_that_stands_for_all_is_not_copied() -> None:
    pixel = torch.zeros(1, dtype=torch.uint8)
    data = Dataset(
        "stand-in", "test", pixel.expand(1000, 3, 224, 224), torch.zeros(1000, dtype=torch.int64), ("0", "1")
    )
    assert data.images.untyped_storage().nbytes() == 1
