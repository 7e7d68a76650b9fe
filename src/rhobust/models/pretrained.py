"""Pretrained networks of this project by name, `rhobust:NAME`.

Guarantee: the weights are those that were published, to the last bit (SHA-256), or nothing is loaded.
"""

import hashlib
import json
import os
from pathlib import Path

from safetensors import safe_open
from torch import nn

from rhobust.models.networks import Normalised, own_network
from rhobust.models.weights import fill_weights

SCHEME = "rhobust"
"""Prefix of their names."""
PRETRAINED = {
    "cifar10-nal-0.25": "aeb4c6075139d1abc43d0ca8f9f366c6c2ea5a38997f595b34d905a390dee8fd",
    "mnist-nal": "89c06cd340717a04e0e18da77f842011397d4601adeb8f5091c90f82d2a30be8",
}
"""SHA-256 of the weights file of each, by name; the folders hold cards that say how they were trained."""
FOLDER = "RHOBUST_PRETRAINED"
"""Environment variable that names the folder in which they are."""


def pretrained_weights(name: str) -> Path:
    """The weights file of a pretrained network, after a check of its content.

    It is looked for in $RHOBUST_PRETRAINED, else in `results/pretrained` of the checkout that rhobust runs from, else
    in the platform's cache folder. Nothing is downloaded.

    Args:
        name: One of `PRETRAINED`.
    """
    if name not in PRETRAINED:
        raise ValueError(f"{SCHEME}: models must be one of {', '.join(PRETRAINED)}, got {name}")
    folders = _folders()
    path = next((found for folder in folders if (found := folder / name / "model.safetensors").is_file()), None)
    if path is None:
        raise ValueError(
            f"{SCHEME}:{name} must be in {' or '.join(map(str, folders))}, but it is not: copy the folder"
            f" results/pretrained/{name} of the repository there, or set {FOLDER} to the folder that holds it"
        )
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != PRETRAINED[name]:
        raise ValueError(
            f"{path} must be the published file, but its SHA-256 begins with {found[:16]} and not with"
            f" {PRETRAINED[name][:16]}: copy it again"
        )
    return path


def _folders() -> list[Path]:
    """Where pretrained networks may be."""
    if named := os.environ.get(FOLDER):
        return [Path(named)]
    import platformdirs

    checkout = Path(__file__).parents[3] / "results" / "pretrained"
    return [*([checkout] if checkout.is_dir() else []), platformdirs.user_cache_path("rhobust") / "pretrained"]


def build_pretrained(name: str, *, filled: bool = True) -> tuple[nn.Module, tuple[list[float], list[float]]]:
    """A pretrained network without its normalisation, and the normalisation's mean and deviation per channel.

    Args:
        name: One of `PRETRAINED`.
        filled: Whether it gets its weights.
    """
    path = pretrained_weights(name)
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["rhobust"])

    channels, height, width = about["shape"]
    described = about["model"], (channels, height, width), len(about["classes"]), about["activation"]
    model = Normalised(own_network(*described), [0.0] * channels, [1.0] * channels)  # the saved buffers replace both
    fill_weights(model, path)
    return model.network if filled else own_network(*described), model.constants()
