import math

import numpy as np
import pytest
import torch

from rhobust.data import Dataset, channel_statistics


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
        ({"split": "val"}, "split must be 'train' or 'test', got 'val'"),
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
