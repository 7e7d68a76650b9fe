"""Accuracy of the network in training, on a few images, clean and under attack."""

import torch
from torch import nn

from rhobust.attacks import Eot, Pgd
from rhobust.attacks.ascent import frozen
from rhobust.data import Dataset, to_unit
from rhobust.noise import ExampleNoise, noisy_copies

BATCH = 500
ROBUST_IMAGES = 500
"""Images on which accuracy under attack is measured."""
DRAWS = 4
"""Noise draws of the attack and of the answer, where the method trains for smoothing."""


@torch.no_grad()
def clean_accuracy(model: nn.Module, data: Dataset) -> float:
    """Share of images that the base network gets right."""
    with frozen(model):
        right = [
            (model(to_unit(images)).argmax(1) == labels).sum()
            for images, labels in zip(data.images.split(BATCH), data.labels.split(BATCH), strict=True)
        ]
    return int(torch.stack(right).sum()) / len(data)


def robust_accuracy(model: nn.Module, data: Dataset, eps: float, sigma: float | None, seed: int) -> float:
    """Share of images that ten steps of PGD, or of EOT for a method with noise, leave right: an estimate."""
    images, y = to_unit(data.images[:ROBUST_IMAGES]), data.labels[:ROBUST_IMAGES]
    noise = ExampleNoise(seed, "measure", range(len(y)))
    attack = Pgd(steps=10, restarts=0) if sigma is None else Eot(steps=10, restarts=0, draws=DRAWS)
    moved = attack(model, images, y, eps=eps, sigma=sigma, rng=noise)
    with frozen(model), torch.no_grad():
        copies = moved if sigma is None else noisy_copies(moved, sigma, DRAWS, noise)
        answers = model(copies).softmax(1).view(-1, len(y), data.num_classes).mean(0).argmax(1)
    return int((answers == y).sum()) / len(y)
