"""Weights files as people have them, and those of this project's pretrained networks by name, `rhobust:NAME`.

A file is safetensors, or what torch.save wrote, under whatever prefix.

Guarantee: no pickle is executed (`weights_only`), and a network is filled only if every one of its tensors was found.
Pretrained weights are those that were published, to the last bit (SHA-256), or nothing is loaded.
"""

import hashlib
import json
import os
import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rhobust.models.inference import load_state, state_of
from rhobust.models.networks import Normalised, own_network

NESTED = ("state_dict", "model_state_dict", "model", "net", "network", "module", "params", "weights")
"""Keys under which checkpoints keep the weights, the usual ones first."""
COUNTERS = "num_batches_tracked"
"""Buffers of batch normalisation that no evaluation reads; old checkpoints lack them."""
SCHEME = "rhobust"
"""Prefix of the names of pretrained networks."""
PRETRAINED = {
    "cifar10-nal-0.25": "aeb4c6075139d1abc43d0ca8f9f366c6c2ea5a38997f595b34d905a390dee8fd",
    "cifar10-nal-distilled-0.25": "bffcaff9ce0f6d097087559fd6dc65fbfd60f3960226479ebb90961edafb4611",
    "cifar10-nal-taught-0.25": "eb7f75efe1a084db861b84c3f0147b8790b3c7baa4a84fd5adae6067c368036a",
    "mnist-nal": "89c06cd340717a04e0e18da77f842011397d4601adeb8f5091c90f82d2a30be8",
}
"""SHA-256 of the weights file of each pretrained network; the folders hold cards that say how they were trained."""
MIRRORED = frozenset({"cifar10-nal-distilled-0.25", "cifar10-nal-taught-0.25"})
"""Pretrained networks that answer with the mean of an image and its mirror image, as they were certified."""
FOLDER = "RHOBUST_PRETRAINED"
"""Environment variable that names the folder of pretrained networks."""


@dataclass(frozen=True)
class Pretrained:
    """A pretrained network as its weights file describes it."""

    path: Path
    """The weights file, in the run folder of its training."""
    model: str
    """One of `MODELS`."""
    activation: str
    shape: tuple[int, int, int]
    """Channels, height and width of its images."""
    classes: tuple[str, ...]
    """Names of its classes."""
    sigma: float
    """Noise that it was trained with."""


def check_weights_file(path: Path) -> None:
    """Raise if there is no such file."""
    if not path.is_file():
        raise ValueError(f"{path} must be a weights file, but there is no such file")


def read_weights(path: Path | str) -> dict[str, Tensor]:
    """The tensors of a weights file by name, on the CPU.

    Args:
        path: A safetensors file, or a file of torch.save: a state dict, or a checkpoint that holds one.
    """
    path = Path(path)
    check_weights_file(path)
    with path.open("rb") as file:
        head = file.read(9)
    # The eight bytes before a safetensors header are its length, and may begin as a pickle does.
    if head.startswith(b"PK") and not zipfile.is_zipfile(path):
        raise ValueError(
            f"{path} must be a whole file of torch.save, but its end is missing: copy or download it again"
        )
    if zipfile.is_zipfile(path) or (head[:1] == b"\x80" and head[8:] != b"{"):
        return _state_dict(_read_torch(path), path)
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is no mapping
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} must be a safetensors file or one of torch.save, but {error}") from None


def _read_torch(path: Path) -> Any:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if any("/code/" in name for name in archive.namelist()):
                raise ValueError(
                    f"{path} must hold weights, but it is a TorchScript program: torch.jit.load it yourself and pass"
                    " the module, or save its state_dict()"
                )
    try:
        with path.open("rb") as file:  # by a path that ends in .safetensors torch reads another format
            return torch.load(file, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        found = re.search(r"GLOBAL ([\w.]+) was not an allowed global", str(error))
        what = f"a pickled {found.group(1)}" if found else "pickled objects"
        raise ValueError(
            f"{path} must hold weights only, but it holds {what}, and loading that would run code: if you trust it,"
            " load it in Python yourself, and torch.save(model.state_dict(), FILE) writes the weights alone"
        ) from None
    except (RuntimeError, OSError, EOFError, ValueError, KeyError, AttributeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path} must be a file of torch.save, but {reason}") from None


def _state_dict(document: Any, path: Path) -> dict[str, Tensor]:
    """The state dict in a checkpoint: the document, or what lies under one of the usual keys."""
    if not isinstance(document, Mapping):
        raise ValueError(f"{path} must hold a state dict, but it holds a {type(document).__name__}")
    tensors = {str(name): value for name, value in document.items() if isinstance(value, Tensor)}
    if tensors and len(tensors) == len(document):
        return tensors
    nested = {str(name): value for name, value in document.items() if isinstance(value, Mapping) and value}
    for name in NESTED:
        if name in nested:
            form = _shapes(nested[name])
            alike = [other for other, value in nested.items() if other != name and form and _shapes(value) == form]
            if alike:
                raise ValueError(
                    f"{path} must hold one state dict, but it has some of the same form under"
                    f" {' and '.join([name, *alike])}: torch.save(torch.load(FILE, weights_only=True)[{alike[0]!r}],"
                    " NEW) keeps one"
                )
            return _state_dict(nested[name], path)
    holding = [name for name, value in nested.items() if _holds_tensors(value)]
    if len(holding) == 1 and not tensors:
        return _state_dict(nested[holding[0]], path)
    if tensors and not holding:
        return tensors
    raise ValueError(
        f"{path} must hold one state dict, by itself or under {', '.join(NESTED)}, but its keys are"
        f" {', '.join(map(str, list(document)[:8]))}"
    )


def _shapes(value: Mapping[Any, Any]) -> list[tuple[int, ...]]:
    """The shapes of a state dict's tensors but for single numbers; a prefix or a counter makes no other network."""
    return sorted(tuple(tensor.shape) for tensor in value.values() if isinstance(tensor, Tensor) and tensor.dim())


def _holds_tensors(value: Mapping[Any, Any]) -> bool:
    return any(isinstance(tensor, Tensor) for tensor in value.values())


class WidthError(ValueError):
    """Weights fit a network but for the number of its outputs."""

    def __init__(self, line: str, saved: int, wanted: int) -> None:
        super().__init__(line)
        self.saved, self.wanted = saved, wanted
        """The outputs of the network that was saved, and of the one to fill."""


def fill_weights(model: nn.Module, path: Path | str) -> nn.Module:
    """Load a weights file into a network; every tensor must be there, under some prefix, in its shape.

    Prefixes that a wrapper added (`module.`, `_orig_mod.`, `model.`, ...) or that the network adds are found: the saved
    names without one prefix must be the network's names without another.
    """
    path = Path(path)
    saved, wanted = read_weights(path), state_of(model)
    found = match_names(saved, wanted)
    if found is None:
        missing, strange = sorted(wanted.keys() - saved.keys()), sorted(saved.keys() - wanted.keys())
        raise ValueError(
            f"{path} must hold the tensors of the network by name, but it lacks {_some(missing)}, and has"
            f" {_some(strange)}{_hint(missing)}"
        )
    others = [
        (source, tuple(saved[source].shape), tuple(wanted[name].shape))
        for name, source in found.items()
        if not is_lazy(wanted[name]) and saved[source].shape != wanted[name].shape
    ]
    if others:
        source, shape, asked = others[0]
        line = (
            f"{path} must fit the network, but {source} has the shape {shape} and the network wants {asked}: is it"
            " another architecture, or another number of classes?"
        )
        if all(a and b and (a[0], b[0], a[1:]) == (shape[0], asked[0], b[1:]) for _, a, b in others):
            raise WidthError(line, shape[0], asked[0])
        raise ValueError(line)
    filled = {name: saved[found[name]] if name in found else tensor for name, tensor in wanted.items()}
    load_state(model, filled)
    return model


def match_names(saved: Iterable[str], wanted: Iterable[str]) -> dict[str, str] | None:
    """For each name of a network the name in a file that stands for it, up to one prefix on either side.

    Counters of batch normalisation may be missing. Saved names outside the prefix (a loss, a teacher) are left out;
    under the prefix all must be wanted. None if the names do not agree.
    """
    plain = {name.replace("_orig_mod.", ""): name for name in saved}
    names = list(wanted)
    needed = [name for name in names if not name.endswith(COUNTERS)]
    if not needed:
        return None if plain else {}
    best: dict[str, str] | None = None
    for theirs, ours in _prefixes(plain, needed):
        if not all(name.startswith(ours) for name in needed):
            continue
        renamed = {name: theirs + name.removeprefix(ours) for name in names}
        if not all(renamed[name] in plain for name in needed):
            continue
        under = {name for name in plain if name.startswith(theirs) and not name.endswith(COUNTERS)}
        if under != {renamed[name] for name in needed}:
            continue
        found = {name: plain[source] for name, source in renamed.items() if source in plain}
        if best is not None and best != found:
            return None  # two networks in the file fit, for example a student and a teacher
        best = found
    return best


def _prefixes(saved: Iterable[str], wanted: list[str]) -> set[tuple[str, str]]:
    """Pairs of prefixes, the file's and the network's, that make some saved name the network's first one."""
    first = wanted[0].split(".")
    pairs = set()
    for name in saved:
        parts = name.split(".")
        common = 0
        while common < min(len(parts), len(first)) and parts[-1 - common] == first[-1 - common]:
            common += 1
            theirs, ours = parts[: len(parts) - common], first[: len(first) - common]
            pairs.add(("".join(f"{part}." for part in theirs), "".join(f"{part}." for part in ours)))
    return pairs


def _some(names: list[str]) -> str:
    return f"{names[0]} and {len(names) - 1} more" if names[1:] else "".join(names) or "nothing else"


def _hint(missing: list[str]) -> str:
    """What to do where only the constants of a normalisation are missing."""
    if missing and all(re.search(r"(^|\.)(mean|std|deviation)$", name) for name in missing):
        return ": take the network without its normalisation, and pass mean and std"
    return ""


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


def describe_pretrained(name: str) -> Pretrained:
    """What a pretrained network was trained for, by its weights file, after a check of the file's content."""
    path = pretrained_weights(name)
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["rhobust"])
    channels, height, width = about["shape"]
    shape, classes = (channels, height, width), tuple(about["classes"])
    return Pretrained(path, about["model"], about["activation"], shape, classes, about["sigma"])


def build_pretrained(name: str, *, filled: bool = True) -> tuple[nn.Module, tuple[list[float], list[float]]]:
    """A pretrained network without its normalisation, and the normalisation's mean and deviation per channel."""
    about = describe_pretrained(name)
    described = about.model, about.shape, len(about.classes), about.activation
    channels = about.shape[0]
    model = Normalised(own_network(*described), [0.0] * channels, [1.0] * channels)  # the saved buffers replace both
    fill_weights(model, about.path)
    return model.network if filled else own_network(*described), model.constants()
