"""Networks by name, of this package, the user or a hub: built for training, or loaded ready for use."""

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from rhobust.models.inference import for_evaluation, state_of
from rhobust.models.named_code import FORMS, from_factory, place_of, run_named
from rhobust.models.networks import MODELS, Mirrored, Normalised, own_network
from rhobust.models.weights import (
    MIRRORED,
    SCHEME,
    Pretrained,
    WidthError,
    build_pretrained,
    check_weights_file,
    describe_pretrained,
    fill_weights,
    match_names,
    read_weights,
)
from rhobust.noise import stream_key
from rhobust.user_code import UserCode, UserCodeError, import_extra

SOURCES = {"hf": "transformers", "timm": "timm", "torchvision": "torchvision"}
"""Prefixes of names that another package resolves, and that package."""

Normalisation = tuple[Sequence[float], Sequence[float]]
"""Mean and deviation per channel."""
Activation = Literal["relu", "elu"]


class TakeLogits(nn.Module):
    """A network whose output holds the logits under that name, as in `transformers`: returns the logits."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x).logits


def take_logits(model: nn.Module, x: Tensor) -> nn.Module:
    """The network itself, or wrapped in `TakeLogits` where its output for x has logits under that name."""
    modes: list[tuple[nn.Module, bool]] = []
    try:
        with torch.no_grad(), UserCode("the network raised", x):
            modes += [(module, module.training) for module in model.modules()]
            output = model.eval()(x.clone())
    except UserCodeError:  # whatever is wrong with it is said where its logits are looked at
        return model
    finally:
        for module, mode in modes:
            module.training = mode
    return TakeLogits(model) if isinstance(getattr(output, "logits", None), Tensor) else model


def label_names(model: nn.Module, width: int) -> tuple[str, ...] | None:
    """The names of the classes that a network of `transformers` has in its config; None where it has none.

    Args:
        model: The network, as `load_model` returns it.
        width: Number of its classes.
    """
    for module in model.modules():
        labels = getattr(getattr(module, "config", None), "id2label", None)
        if isinstance(labels, dict) and set(labels) == set(range(width)):
            return tuple(str(labels[number]) for number in range(width))
    return None


def load_model(
    name: str,
    weights: Path | str | None = None,
    *,
    num_classes: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> nn.Module:
    """A network by name, in evaluation mode, from images in [0, 1] to logits.

    Nothing but what is named is executed: weights are never unpickled as code, and code that a hub repository brings
    is never run.

    Args:
        name: `package.module:factory`, `file.py:factory`, `rhobust:NAME` (one of `PRETRAINED`), `hf:ID` (a hub id or a
            folder of `transformers`), `timm:NAME` or `torchvision:NAME`.
        weights: A safetensors file or one of torch.save; default: what the factory or the hub loads itself.
        num_classes: Number of classes, for factories that take one.
        mean: Mean per channel that the network subtracts from images in [0, 1]; default: what the hub says of the
            model, and no normalisation for a factory.
        std: Deviation per channel by which it divides.

    Raises:
        ValueError: It cannot be built or filled; the line says why.
    """
    check_names(name, weights, mean, std)
    offered: dict[str, Any] = {} if num_classes is None else {"num_classes": num_classes}
    # Factories initialise weights from torch's global generator: its state is restored afterwards.
    with torch.random.fork_rng(devices=[]):
        network, found = build_network(name, pretrained=weights is None, **offered)
    if weights is not None:
        fill_weights(network.network if isinstance(network, TakeLogits) else network, weights)
    if mean is not None and std is not None:
        found = (mean, std)
    return for_evaluation(network if found is None else Normalised(network, *found))


def check_names(
    name: str, weights: Path | str | None, mean: Sequence[float] | None, std: Sequence[float] | None
) -> None:
    """Raise what `load_model` says of its arguments before it builds anything: images may take long to decode.

    Args:
        name: As in `load_model`.
        weights: Likewise.
        mean: Likewise.
        std: Likewise.
    """
    if (mean is None) != (std is None):
        raise ValueError("mean and std must be given together, got one of them")
    if weights is not None:
        check_weights_file(Path(weights))
    if not has_weights(name):
        place_of(name, "model")


def load_with_classes(
    name: str,
    weights: Path | str | None,
    num_classes: int | None,
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> nn.Module:
    """As `load_model`, where labels say how many classes there are, or nobody does: its weights know better.

    A few labels need not have every class, and a factory's own number of classes may be another one.
    """
    try:
        return load_model(name, weights, num_classes=num_classes, mean=mean, std=std)
    except WidthError as error:
        if num_classes not in (None, error.wanted):
            raise
        return load_model(name, weights, num_classes=error.saved, mean=mean, std=std)


def known_network(name: str, weights: Path | str | None = None) -> Pretrained | None:
    """What is known of a network of this project: its noise, images and classes; None of any other.

    Args:
        name: As in `load_model`.
        weights: Weights that are loaded into it; with these nothing is known of it.
    """
    scheme, _, rest = name.partition(":")
    return describe_pretrained(rest) if scheme == SCHEME and weights is None else None


def has_weights(name: str) -> bool:
    """Whether a network's name stands for weights too, those of this project or of a hub."""
    return name.partition(":")[0] in (*SOURCES, SCHEME)


def build_network(
    name: str, *, pretrained: bool, new_head: bool = False, **offered: Any
) -> tuple[nn.Module, Normalisation | None]:
    """The network that a name stands for, and the normalisation that its package says it was trained with.

    Args:
        name: As in `load_model`.
        pretrained: Whether a hub loads its weights too.
        new_head: Whether a pretrained network may get a new, untrained last layer for `num_classes`: for training only.
        offered: Arguments of the user's factory, `num_classes` among them.
    """
    scheme, _, rest = name.partition(":")
    if not scheme or not rest:
        raise ValueError(f"model must have the form {FORMS}, got {name}")
    hubs = {SCHEME: _from_rhobust, "hf": _from_transformers, "timm": _from_timm, "torchvision": _from_torchvision}
    if scheme in hubs:
        wanted = None if pretrained and not new_head else offered.get("num_classes")
        return hubs[scheme](rest, wanted, pretrained)
    return from_factory(name, **offered), None


def _from_rhobust(name: str, num_classes: int | None, pretrained: bool) -> tuple[nn.Module, Normalisation]:
    """A network of this project, whose last layer is its last module; as it was certified, so perhaps mirrored."""
    network, found = build_pretrained(name, filled=pretrained)
    assert isinstance(network, nn.Sequential)
    last = network[-1]
    assert isinstance(last, nn.Linear)
    if num_classes is not None and num_classes != last.out_features:
        network[-1] = nn.Linear(last.in_features, num_classes)
    return Mirrored(network) if name in MIRRORED else network, found


def _from_transformers(name: str, num_classes: int | None, pretrained: bool) -> tuple[nn.Module, Normalisation | None]:
    """An image classifier of a hub id or a folder. Only configs and weights are read: repositories' code never runs."""
    transformers = _package("hf")
    transformers.utils.logging.disable_progress_bar()
    auto = transformers.AutoModelForImageClassification
    sized = {} if num_classes is None else {"num_labels": num_classes}
    if pretrained:
        sized |= {"ignore_mismatched_sizes": True} if sized else {}
        network = run_named(f"model hf:{name}", lambda: auto.from_pretrained(name, trust_remote_code=False, **sized))
    else:
        config = run_named(
            f"hf:{name}", lambda: transformers.AutoConfig.from_pretrained(name, trust_remote_code=False, **sized)
        )
        network = run_named(f"model hf:{name}", lambda: auto.from_config(config, trust_remote_code=False))
    try:
        settings = transformers.ImageProcessingMixin.get_image_processor_dict(name)[0]
    except Exception:  # a folder without a preprocessor, in whatever way the hub says so
        settings = {}
    mean, std = settings.get("image_mean"), settings.get("image_std")
    wanted = settings.get("do_normalize", True) and mean is not None and std is not None
    return TakeLogits(network), (mean, std) if wanted else None


def _from_timm(name: str, num_classes: int | None, pretrained: bool) -> tuple[nn.Module, Normalisation | None]:
    timm = _package("timm")
    sized = {} if num_classes is None else {"num_classes": num_classes}
    network = run_named(f"model timm:{name}", lambda: timm.create_model(name, pretrained=pretrained, **sized))
    known = getattr(network, "pretrained_cfg", None) or {}
    return network, (known["mean"], known["std"]) if "mean" in known and "std" in known else None


def _from_torchvision(name: str, num_classes: int | None, pretrained: bool) -> tuple[nn.Module, Normalisation | None]:
    _package("torchvision")
    models = importlib.import_module("torchvision.models")
    if pretrained:
        network = run_named(f"model torchvision:{name}", lambda: models.get_model(name, weights="DEFAULT"))
        if num_classes is not None:
            _replace_last_layer(network, num_classes, f"torchvision:{name}")
    else:
        sized = {} if num_classes is None else {"num_classes": num_classes}
        network = run_named(f"model torchvision:{name}", lambda: models.get_model(name, **sized))
    transforms = models.get_model_weights(name).DEFAULT.transforms()
    mean, std = getattr(transforms, "mean", None), getattr(transforms, "std", None)
    return network, None if mean is None or std is None else (mean, std)


def _replace_last_layer(network: nn.Module, num_classes: int, name: str) -> None:
    """Give a network whose last layer is linear another one of this width, if it has another width."""
    path, last = [(path, layer) for path, layer in network.named_modules() if isinstance(layer, nn.Linear)][-1]
    if last.out_features == num_classes:
        return
    if path.split(".")[0] not in ("fc", "classifier", "head", "heads"):
        raise ValueError(f"model {name} must end in a linear layer to be trained for other classes, got {path}")
    parent, _, attribute = path.rpartition(".")
    setattr(network.get_submodule(parent), attribute, nn.Linear(last.in_features, num_classes))


def _package(scheme: str) -> Any:
    """The package that resolves names of a scheme."""
    return import_extra(SOURCES[scheme], "hub", f"{scheme}: models need")


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
        if has_weights(name):
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
