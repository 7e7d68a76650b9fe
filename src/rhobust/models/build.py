"""Networks by name: those of this package, or the user's own and those of hubs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import nn

from rhobust.models.guarded import state_of
from rhobust.models.networks import MODELS, Normalised, own_network
from rhobust.models.pretrained import SCHEME
from rhobust.models.sources import FORMS, SOURCES, Normalisation, TakeLogits, build_network
from rhobust.models.weights import fill_weights, match_names, read_weights
from rhobust.noise import stream_key

Activation = Literal["relu", "elu"]


def check_model_name(name: str) -> None:
    """Raise if a name is neither in `MODELS` nor of another form that names a network."""
    if name not in MODELS and ":" not in name:
        known = ", ".join(MODELS)
        raise ValueError(f"model must be one of {known}, or {FORMS}, got {name}")


def build_model(
    name: str,
    *,
    shape: tuple[int, int, int],
    classes: int,
    mean: Sequence[float],
    deviation: Sequence[float],
    activation: Activation,
    seed: int,
    normalisation: Normalisation | None = None,
    pretrained: bool = False,
) -> nn.Module:
    """Build a network for images of a shape; the seed determines its weights.

    A model in `MODELS` or of a hub includes the normalisation. A factory's network is used unchanged and must accept
    inputs in [0, 1]; the factory may take the keyword arguments `num_classes` and `activation`.

    Args:
        name: One of `MODELS`, or as in `load_model`.
        shape: Channels, height and width of an image.
        classes: Number of classes.
        mean: The data's mean, per channel.
        deviation: The data's standard deviation, per channel.
        activation: "relu" or "elu".
        seed: Random seed of the initial weights.
        normalisation: Mean and deviation per channel that the network expects; default: the data's for a model in
            `MODELS`, the hub's own, and none for a factory's network.
        pretrained: Start from the weights of a hub, with a new last layer where the number of classes differs.
    """
    check_model_name(name)
    if activation not in get_args(Activation):
        raise ValueError(f"activation must be one of {', '.join(get_args(Activation))}, got {activation!r}")
    # torch initialises weights from its global generator: seed it and restore its state afterwards.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_key(seed, "model") % 2**63)
        if name in MODELS:
            network = own_network(name, shape, classes, activation)
            return Normalised(network, *(normalisation or (mean, deviation)))
        network, found = build_network(
            name, pretrained=pretrained, new_head=True, num_classes=classes, activation=activation
        )
        if name.partition(":")[0] in (*SOURCES, SCHEME):
            return Normalised(network, *(normalisation or found or (mean, deviation)))
        return network if normalisation is None else Normalised(network, *normalisation)


def start_from(model: nn.Module, weights: Path | str) -> nn.Module:
    """Load a weights file into a network that is to be trained further, with or without its normalisation's constants.

    Args:
        model: The network, as `build_model` makes it.
        weights: As for `fill_weights`.
    """
    inner = model.network if isinstance(model, Normalised) else model
    inner = inner.network if isinstance(inner, TakeLogits) else inner
    bare = match_names(read_weights(weights), state_of(inner)) is not None
    fill_weights(inner if bare else model, weights)
    return model
