"""CutMix: images with a rectangle of another image, and labels mixed by area."""

import torch
from torch import Generator, Tensor
from torch.nn import functional as F


def cutmix(
    images: Tensor, labels: Tensor, *, classes: int, probability: float, rng: Generator
) -> tuple[Tensor, Tensor]:
    """CutMix (Yun et al., 2019) of a batch: the images, and their labels as probabilities `(n, classes)`.

    An image gets a rectangle of another image of the batch at the same place, and of its label the rectangle's
    fraction a of the image: (1 - a) one_hot(y) + a one_hot(y'). The rectangle has the image's proportions, a uniform
    area (Beta(1, 1), as in the paper) and a uniform centre; what lies outside the image is cut off.

    Args:
        images: `(n, channels, height, width)`.
        labels: int64, `(n,)`.
        classes: Number of classes.
        probability: Probability of a rectangle, for each image on its own.
        rng: Generator on the device of the images.
    """
    count, _, height, width = images.shape
    area, row, column, chosen = torch.rand(4, count, 1, generator=rng, device=images.device)
    other = torch.randperm(count, generator=rng, device=images.device)
    side = area.sqrt() * (chosen < probability)
    rows, columns = (
        _inside(size, (centre * size).long(), (side * size).long() // 2)
        for size, centre in ((height, row), (width, column))
    )
    mixed = torch.where((rows[:, :, None] & columns[:, None, :])[:, None], images[other], images)
    fraction = rows.sum(1, keepdim=True) * columns.sum(1, keepdim=True) / (height * width)
    hard = F.one_hot(labels, classes)
    return mixed, hard * (1 - fraction) + hard[other] * fraction


def _inside(size: int, centre: Tensor, half: Tensor) -> Tensor:
    """Which of `size` places lie within centre - half <= place < centre + half, `(n, size)`."""
    place = torch.arange(size, device=centre.device)
    return (place >= centre - half) & (place < centre + half)
