"""Networks to attack, trained in a moment."""

import torch

from rhobust.data import to_unit
from rhobust.models import build_model
from rhobust.noise import BatchNoise, stream


def trained(method, data, *, model="cnn-small", epochs=1, images=None, size=50, lr=3e-3):
    """A network after some passes over the first images of a data set, in evaluation mode."""
    network = build_model(
        model, shape=data.shape, classes=10, mean=[0.3], deviation=[0.37], activation="relu", seed=0
    ).train()
    optimizer = torch.optim.Adam(network.parameters(), lr=lr)
    noise = BatchNoise(stream(0, "oracle"))
    for _ in range(epochs):
        for x, y in zip(data.images[:images].split(size), data.labels[:images].split(size), strict=True):
            optimizer.zero_grad()
            method.loss(network, to_unit(x), y, noise).value.backward()
            optimizer.step()
    return network.eval().requires_grad_(False)
