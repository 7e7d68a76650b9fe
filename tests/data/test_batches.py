import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rhobust.data import augment, epoch_batches, to_unit


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
    """Every crop of the padded image, mirrored or not: the slow, obvious way."""
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
