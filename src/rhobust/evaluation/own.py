"""What a folder of records says of the user's own network: enough to load it again."""

from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from torch import nn

from rhobust.data.sizing import Sizing
from rhobust.files import read_json
from rhobust.models import load_model
from rhobust.records import is_own
from rhobust.settings import check_positive_number, sizes
from rhobust.training.run import CONFIG
from rhobust.version import VERSION

IN_MEMORY = "in memory"
"""What a folder says of a network that was handed over as a module: no name leads to it."""


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

    def load(self, weights: Path | str | None, *, num_classes: int) -> nn.Module:
        """The network, with these weights; None: what the factory or the hub loads itself."""
        return load_model(self.model, weights, num_classes=num_classes, mean=self.mean, std=self.std)


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
