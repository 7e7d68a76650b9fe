"""Networks by name: those of this package, or a user's `package.module:factory`."""

import importlib
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from rhobust.models.networks import cnn, cnn_small, resnet18, vgg16
from rhobust.noise import stream_key

Activation = Literal["relu", "elu"]

MODELS = {"cnn": cnn, "cnn-small": cnn_small, "resnet18": resnet18, "vgg16": vgg16}


class Normalised(nn.Module):
    """A network with its input normalisation: takes inputs in [0, 1]; mean and deviation are saved with the weights."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, network: nn.Module, mean: Sequence[float], deviation: Sequence[float]) -> None:
        super().__init__()
        self.network = network
        for name, values in (("mean", mean), ("deviation", deviation)):
            self.register_buffer(name, torch.as_tensor(values, dtype=torch.float32).clone().view(1, -1, 1, 1))
        if self.mean.shape != self.deviation.shape or not (self.deviation > 0).all():
            raise ValueError(
                "mean and deviation must hold one number per channel, deviations > 0, got"
                f" {self.mean.flatten().tolist()} and {self.deviation.flatten().tolist()}"
            )

    def forward(self, x: Tensor) -> Tensor:
        return self.network((x - self.mean) / self.deviation)


def check_model_name(name: str) -> None:
    """Raise if a name is neither in `MODELS` nor of the form `package.module:factory`."""
    if name not in MODELS and ":" not in name:
        known = ", ".join(MODELS)
        raise ValueError(f"model must be one of {known}, or package.module:factory, got {name}")


def build_model(
    name: str,
    *,
    shape: tuple[int, int, int],
    classes: int,
    mean: Sequence[float],
    deviation: Sequence[float],
    activation: Activation,
    seed: int,
) -> nn.Module:
    """Build a network for images of a shape; the seed determines its weights.

    A model in `MODELS` includes the normalisation. A factory's network is used unchanged and must accept inputs in
    [0, 1]; the factory may take the keyword arguments `num_classes` and `activation`.

    Args:
        name: One of `MODELS`, or `package.module:factory`.
        shape: Channels, height and width of an image.
        classes: Number of classes.
        mean: The data's mean, per channel.
        deviation: The data's standard deviation, per channel.
        activation: "relu" or "elu".
        seed: Random seed of the initial weights.
    """
    check_model_name(name)
    if activation not in get_args(Activation):
        raise ValueError(f"activation must be one of {', '.join(get_args(Activation))}, got {activation!r}")
    make = {"relu": nn.ReLU, "elu": nn.ELU}[activation]
    # torch initialises weights from its global generator: seed it and restore its state afterwards.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_key(seed, "model") % 2**63)
        if name in MODELS:
            network = MODELS[name](*shape, classes, make)
            # Convolutions run in the layout of the weights; channels last is fastest on CPU and GPU.
            for parameter in network.parameters():
                if parameter.dim() == 4:
                    parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
            return Normalised(network, mean, deviation)
        return _from_factory(name, num_classes=classes, activation=activation)


def load_factory_model(name: str, num_classes: int | None = None) -> nn.Module:
    """Build a user's network from `package.module:factory`, to be loaded with saved weights."""
    with torch.random.fork_rng(devices=[]):
        return _from_factory(name, **({} if num_classes is None else {"num_classes": num_classes}))


def _from_factory(name: str, **offered: object) -> nn.Module:
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise ValueError(f"model must have the form package.module:factory, got {name}")
    # The user's module is usually in the current folder, which is not on the path of an installed command.
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        factory = getattr(importlib.import_module(module_name), attribute, None)
    except Exception as error:  # any error of the user's module at import
        raise ValueError(f"model {name} must be importable, but {type(error).__name__}: {error}") from error
    if not callable(factory):
        raise ValueError(f"model {name}: {module_name} must define a function {attribute}, but it does not")
    try:
        accepted = inspect.signature(factory).parameters
        network = factory(**{key: value for key, value in offered.items() if key in accepted})
    except Exception as error:  # any error of the factory
        raise ValueError(f"model {name} must build a network, but {type(error).__name__}: {error}") from error
    if not isinstance(network, nn.Module):
        raise ValueError(f"model {name} must return a torch.nn.Module, got {type(network).__name__}")
    return network
