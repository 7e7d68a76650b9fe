"""Accuracies measured after each epoch."""

import torch
from torch import nn

from rhobust.attacks import EOT, PGD
from rhobust.data import Dataset, to_unit
from rhobust.models.inference import frozen
from rhobust.noise import ExampleNoise, noisy_copies

BATCH = 500
ROBUST_IMAGES = 500
"""Images of the robust accuracy measured after each epoch."""
DRAWS = 4
"""Noise samples of the attack and of the prediction, for a method that trains for smoothing."""


@torch.no_grad()
def clean_accuracy(model: nn.Module, data: Dataset) -> float:
    """Accuracy of the base network."""
    with frozen(model) as network:
        right = [
            (network(to_unit(images)).argmax(1) == labels).sum()
            for images, labels in zip(data.images.split(BATCH), data.labels.split(BATCH), strict=True)
        ]
    return int(torch.stack(right).sum()) / len(data)


def accuracy_under_noise(model: nn.Module, data: Dataset, sigma: float, seed: int) -> float:
    """Accuracy of one prediction per image under the method's own noise: what a smoothed network is trained for."""
    right = 0
    with frozen(model) as network, torch.no_grad():
        for first in range(0, len(data), BATCH):
            images, labels = to_unit(data.images[first : first + BATCH]), data.labels[first : first + BATCH]
            noise = ExampleNoise(seed, "measure noise", range(first, first + len(labels)))
            right += int((network(noisy_copies(images, sigma, 1, noise)).argmax(1) == labels).sum())
    return right / len(data)


def robust_accuracy(model: nn.Module, data: Dataset, eps: float, sigma: float | None, seed: int) -> float:
    """Robust accuracy under ten steps of PGD, or of EOT-PGD for a method with noise: an estimate."""
    images, y = to_unit(data.images[:ROBUST_IMAGES]), data.labels[:ROBUST_IMAGES]
    noise = ExampleNoise(seed, "measure", range(len(y)))
    attack = PGD(steps=10, restarts=0) if sigma is None else EOT(steps=10, restarts=0, draws=DRAWS)
    adversarial = attack(model, images, y, eps=eps, sigma=sigma, rng=noise)
    with frozen(model) as network, torch.no_grad():
        copies = adversarial if sigma is None else noisy_copies(adversarial, sigma, DRAWS, noise)
        predictions = network(copies).softmax(1).view(-1, len(y), data.num_classes).mean(0).argmax(1)
    return int((predictions == y).sum()) / len(y)
