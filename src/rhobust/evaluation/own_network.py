"""What a folder of records says of the user's own network: enough to load it again, and to know it again.

It is known again by its logits at fixed images.
"""

import math
import os
from collections.abc import Iterator
from contextlib import chdir, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import nn

from rhobust.certificates.independence import BatchDependenceError, top_gaps
from rhobust.certificates.spec import arithmetic
from rhobust.data import Dataset, ImageSet, to_unit
from rhobust.data.labels import are_numbers, check_shape, fit_classes, match_classes
from rhobust.data.sizing import Sizing
from rhobust.files import read_json, write_json
from rhobust.lock import owned
from rhobust.models import Normalised
from rhobust.models.inference import frozen, move_to, output_width
from rhobust.models.sources import known_network, load_with_classes, take_logits
from rhobust.models.weights import Pretrained
from rhobust.records import ANSWERS, CONFIG, ENVIRONMENT, Row, is_own, record_paths
from rhobust.settings import check_positive_number, sizes
from rhobust.training.run import describe_environment, file_hash
from rhobust.version import VERSION

IN_MEMORY = "in memory"
"""What a folder says of a network that was handed over as a module: no name leads to it."""
PATIENCE = 60.0
"""Seconds to wait for another process that compares its network with the folder's."""
DTYPE = "float32"
"""Arithmetic of those logits on every device; files of version 0.1 do not say theirs, and may hold TF32."""
TOLERANCE = {DTYPE: (1e-4, 2e-5), None: (1e-2, 1e-2)}
"""What devices and versions of torch explain, relative to the gap of the two largest logits, and to a logit's size."""


@dataclass(frozen=True)
class OwnNetwork:
    """The user's own network by name, with the data and the noise of its evaluation."""

    model: str
    """As in `load_model`."""
    weights: str | None
    """Its weights; None where the factory or the hub loads them itself."""
    data: str
    """Test data."""
    sigma: float | None = None
    """Smoothing noise; None where none was given."""
    mean: tuple[float, ...] | None = None
    """Mean per channel that it expects to be subtracted."""
    std: tuple[float, ...] | None = None
    """Deviation per channel that it expects to be divided by."""
    sizing: Sizing = field(default_factory=Sizing)
    """How its images are resized and cropped."""
    made_in: str | None = None
    """The folder from which its names lead to it; None where that is not known."""
    live: bool = False
    """Whether its records name it by its parameters, as `evaluate` does, and not by its file."""

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """What a folder says of the user's own network; None where it is not about one."""
        path = folder / CONFIG
        config = read_json(path) if path.exists() else None
        if not isinstance(config, dict) or not is_own(config):
            return None
        for key in ("model", "data", *(["weights"] if config["weights"] is not None else [])):
            if not isinstance(config.get(key), str):
                raise ValueError(f"{path} must name {key} as a string, got {config.get(key)!r}")
        try:
            return cls(
                config["model"],
                _inside(config["weights"], folder),
                config["data"],
                _noise(config.get("sigma")),
                _constants("mean", config.get("mean")),
                _constants("std", config.get("std")),
                Sizing(config.get("resize"), config.get("crop")),
                config["made_in"] if isinstance(config.get("made_in"), str) else None,
                live=config.get("live") is True,
            )
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def to_json(self) -> dict[str, Any]:
        """The config of the folder; what was not given is left out."""
        given = {"sigma": self.sigma, "mean": self.mean, "std": self.std, **vars(self.sizing), "made_in": self.made_in}
        given |= {"live": True} if self.live else {}
        described = {"rhobust": VERSION, "model": self.model, "weights": self.weights, "data": self.data}
        return described | {key: value for key, value in given.items() if value is not None}

    @contextmanager
    def where_made(self, *, trust: bool) -> Iterator[None]:
        """Work in the folder from which its names lead somewhere, if they do not from here and the user trusts them."""
        place = Path(self.made_in) if trust and self.made_in is not None else Path()
        if place == Path() or not place.is_dir() or all(Path(name).exists() for name in self._paths()):
            yield
            return
        with chdir(place):
            yield

    def _paths(self) -> list[str]:
        """Files and folders that its names stand for, from the folder in which they were given."""
        module, _, factory = self.model.rpartition(":")
        code = module if module.endswith(".py") else str(Path(*module.split(".")).with_suffix(".py"))
        named = [factory if module == "hf" else code, *([self.weights] if self.weights else []), self.data]
        return [name for name in named if Path(self.made_in or "", name).exists()]

    def fit(self, data: Dataset, device: torch.device, *, module: nn.Module | None = None, name: str = "") -> "Fitted":
        """The network on a device, and data whose classes are those of its outputs.

        Of a network of this project the noise and the images of its training are known, however it was asked for.

        Args:
            data: The data.
            device: The device.
            module: The network itself, where it was handed over in memory; default: loaded by its name.
            name: How messages call it; default: the name that leads to it.
        """
        name = name or self.model
        known = known_network(self.model, self.weights)
        data = as_trained(data, known, name)
        if module is None:
            model = load_with_classes(self.model, self.weights, data.num_classes, mean=self.mean, std=self.std)
        else:
            model = module if self.mean is None or self.std is None else Normalised(module, self.mean, self.std)
        first = to_unit(data.images[:1].to(device))
        model = take_logits(move_to(device, model), first)
        return Fitted(
            model,
            fit_classes(data, output_width(model, first), name),
            name,
            model_hash="" if self.live or self.weights is None else file_hash(Path(self.weights)),
            trained_sigma=None if known is None else known.sigma,
            trained_on=None if known is None else ImageSet.in_folder(known.path.parent),
        )

    def write(self, folder: Path, device: torch.device, **more: Any) -> None:
        """Say in a folder what its records are about, and where they are made."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / CONFIG, {**self.to_json(), **more})
        write_json(folder / ENVIRONMENT, describe_environment(device))


class Fitted(NamedTuple):
    """The user's own network, data for it, and what is known of its training."""

    model: nn.Module
    data: Dataset
    name: str
    model_hash: str
    """SHA-256 of its weights file; empty where its parameters name it."""
    trained_sigma: float | None
    trained_on: ImageSet | None


def as_trained(data: Dataset, known: Pretrained | None, name: str) -> Dataset:
    """The data with the classes of a network of this project; refused where it was trained for other images."""
    if known is None:
        return data
    check_shape(data, known.shape, name)
    return data if are_numbers(data.classes) else match_classes(data, known.classes, name)


def _inside(weights: str | None, folder: Path) -> str | None:
    """Weights as a path: those of a published folder are named without one, and are inside it."""
    published = weights is not None and Path(weights).name == weights and (folder / weights).is_file()
    return str(folder / weights) if published and weights is not None else weights


def _noise(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"sigma must be a number, got {value!r}")
    check_positive_number("sigma", value)
    return float(value)


def _constants(name: str, values: Any) -> tuple[float, ...] | None:
    if values is None:
        return None
    if not isinstance(values, list) or any(isinstance(value, bool | str) for value in values):
        raise ValueError(f"{name} must be a list of numbers, got {values!r}")
    return sizes(name, values)


def check_answers(folder: Path, here: np.ndarray | None, shape: tuple[int, ...], *, name: str, model_hash: str) -> None:
    """Refuse a folder whose records are of a network that answers otherwise than this one.

    A record is found by its settings and by the fingerprint of the weights. A change of the user's code leaves both
    unchanged, and would be answered with the certificate of another network. So the folder keeps the logits of the
    user's own network at fixed images. A change is noticed if it moves the largest logit of an image to another class,
    any logit by more than rounding, relative to the others of its image, or makes one finite or not finite, or if one
    of the two networks is randomised and the other is not.
    """
    # Two processes with different networks must not both find the folder empty; one that cannot write only reads.
    writable = not folder.exists() or os.access(folder, os.W_OK)
    path, key = folder / ANSWERS, "x".join(map(str, shape))
    with owned(path.with_suffix(".lock"), path, wait=PATIENCE) if writable else nullcontext():
        known = _read(path) if path.exists() else {"model_hash": model_hash, "dtype": DTYPE, "logits": {}}
        there = _numbers(path, known["logits"].get(key))
        if here is not None and there is not None:
            changed = _differ(here, there, known.get("dtype"))
        else:
            # A randomised network that was refused left no record, and files of version 0.1 have no logits where two
            # calls differ at all, be it by rounding.
            certain = there is not None or (known.get("dtype") is not None and bool(record_paths(folder)))
            changed = key in known["logits"] and certain and (here is None) != (there is None)
        if known["model_hash"] != model_hash or changed:
            why = (
                f"{name} answers otherwise than the one that they are about: its code, weights or normalisation were"
                " changed"
                if changed
                else f"the weights of {name} have another hash than those that they are about"
            )
            raise ValueError(
                f"{folder} must hold records of one network, but {why}; choose another folder, or remove the records"
                f" and {ANSWERS}"
            )
        if key not in known["logits"] or (here is not None and there is None):
            known["logits"][key] = None if here is None else [[_word(value) for value in row] for row in here.tolist()]
            folder.mkdir(parents=True, exist_ok=True)
            write_json(path, known)


def check_stateless(first: np.ndarray | None, here: np.ndarray | None) -> None:
    """Refuse a network whose `fixed_logits` are no longer what they were at first: it is not one function of one input.

    Inputs that are repeated while votes are counted show a change in between; this one shows a change before.
    """
    if first is not None and (here is None or _differ(here, first, DTYPE)):
        raise BatchDependenceError(
            "the network must be a function of its input, but its logits at fixed images are others now than before: it"
            " depends on its earlier passes"
        )


def _read(path: Path) -> Row:
    known = read_json(path)
    if not isinstance(known, dict) or not isinstance(known.get("logits"), dict) or "model_hash" not in known:
        raise ValueError(f"{path} must hold a model_hash and logits, but it was changed")
    if not isinstance(known.get("dtype"), str | None) or known.get("dtype") not in TOLERANCE:
        raise ValueError(f"{path} must hold logits in {DTYPE}, got {known['dtype']!r}")
    return known


def fixed_logits(model: nn.Module, shape: tuple[int, ...], device: torch.device) -> np.ndarray | None:
    """Logits at images that never change; None where they change from call to call by more than rounding.

    Noise leaves [0, 1], so what a network does to such inputs, for example a clamp, must show: two of the images
    are inside, two go beyond on either side.
    """
    ramp = torch.linspace(0, 1, math.prod(shape), dtype=torch.float32)
    inside = torch.stack([ramp, ramp * 7 % 1])
    images = torch.cat([inside, 3 * inside - 1]).view(4, *shape).to(device)
    with torch.no_grad(), frozen(model) as network, arithmetic(DTYPE, device):
        once, again = (network(images.clone()).double().cpu().numpy() for _ in range(2))
    return None if _differ(again, once, DTYPE) else once


def _word(value: float) -> float | str:
    """A number as JSON has it; infinity and NaN, for which it has none, as words."""
    return value if math.isfinite(value) else str(value)


def _numbers(path: Path, logits: Any) -> np.ndarray | None:
    try:
        return None if logits is None else np.array([[float(value) for value in row] for row in logits])
    except (TypeError, ValueError):
        raise ValueError(f"{path} must hold rows of logits, but they were changed") from None


def _differ(ours: np.ndarray, theirs: np.ndarray, dtype: str | None) -> bool:
    """Whether logits differ by more than rounding, image by image and up to a common offset.

    The scale is the gap of the two largest finite logits, which neither a masked class nor an offset widens.
    """
    finite = np.isfinite(theirs)
    if ours.shape != theirs.shape or not np.array_equal(ours[~finite], theirs[~finite], equal_nan=True):
        return True
    if np.abs(theirs[finite]).max(initial=0.0) > np.finfo(np.float32).max:  # no network wrote such logits
        return True
    if not np.isfinite(ours[finite]).all():
        return True
    to_gap, to_size = TOLERANCE[dtype]
    gaps = top_gaps(theirs)
    scale = to_gap * np.maximum(gaps, np.median(gaps))
    for our, their, known, allowed in zip(ours, theirs, finite, scale, strict=True):
        if not known.any():
            continue
        our, their = our[known], their[known]
        top = their.argmax()
        # An offset of the largest logit is common to all; its size still counts as rounding.
        size = np.abs(their - their[top]) if dtype is None else np.abs(their) + abs(their[top])
        if (np.abs((our - our[top]) - (their - their[top])) > allowed + to_size * size).any():
            return True
        other = our.argmax()
        if their[top] - their[other] > to_size * size[other]:
            return True
    return False
