"""What is evaluated: a network, its smoothing noise, its test data, and the folder for the records."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from rhobust.certificates import native_dtype
from rhobust.data import Dataset, load
from rhobust.models import load_factory_model
from rhobust.progress import Report
from rhobust.records import read_json, write_json
from rhobust.training import describe_environment
from rhobust.training.run import CONFIG, ENVIRONMENT, file_hash, fill_weights, open_run
from rhobust.version import VERSION


@dataclass(frozen=True)
class Target:
    """A trained network with everything an evaluation needs."""

    name: str
    model: nn.Module
    """In evaluation mode, on `device`."""
    model_hash: str
    """Names the weights in the records."""
    sigma: float | None
    """The smoothing noise; None for a plain network."""
    data: Dataset
    """Test images and labels, on the CPU."""
    folder: Path
    """Where the records go."""
    device: torch.device
    climbed: nn.Module | None = None
    """A faster copy of the network that ascents climb in its place."""
    trained_sigma: float | None = None
    """The noise that the network was trained with; None where there was none, or where nobody knows."""

    def __post_init__(self) -> None:
        if self.sigma is not None and not self.sigma > 0:
            raise ValueError(f"sigma must be > 0, got {self.sigma}")

    def smoothing(self) -> float:
        """The smoothing noise, or a plain refusal where the network has none."""
        if self.sigma is None:
            raise ValueError(f"{self.name} was trained without noise, or nobody knows, so --sigma must be given")
        return self.sigma

    def sigma_warnings(self) -> list[str]:
        """A line where the network was trained with other noise than it is smoothed with."""
        if self.trained_sigma is None or self.trained_sigma == self.sigma:
            return []
        return [f"the network was trained with noise {self.trained_sigma:g} and is smoothed with {self.sigma:g}"]

    def identity(self) -> dict[str, object]:
        """What every record says of its target."""
        return {
            "model_hash": self.model_hash,
            "data": self.data.name,
            "split": self.data.split,
            "data_fingerprint": self.data.fingerprint(),
            "sigma": self.sigma,
            "device": self.device.type,
            "dtype": native_dtype(self.device),
        }


def target_from_run(
    folder: Path,
    *,
    device: torch.device,
    sigma: float | None = None,
    data: str | None = None,
    root: Path | None = None,
    report: Report | None = None,
) -> Target:
    """The network of a run folder, with its own noise and test data unless others are given."""
    run = open_run(folder)
    model = run.load_model(device)
    test = load(data or run.config.data, "test", root=root, report=report)
    if test.shape != run.shape:
        wanted, found = ("x".join(map(str, shape)) for shape in (run.shape, test.shape))
        raise ValueError(f"{test.name} must hold images of shape {wanted}, which {folder} was trained for, got {found}")
    return Target(
        name=run.config.run_id,
        model=model,
        model_hash=run.model_hash,
        sigma=run.config.sigma if sigma is None else sigma,
        data=_in_classes_of(test, run.classes, folder),
        folder=folder,
        device=device,
        trained_sigma=run.config.sigma,
    )


def _in_classes_of(data: Dataset, classes: tuple[str, ...], folder: Path) -> Dataset:
    """The data with a run's classes, found by their names; bare numbers are places among them."""
    names = classes if set(data.classes) <= set(classes) else tuple(map(str, range(len(classes))))
    if strange := [name for name in data.classes if name not in names]:
        raise ValueError(
            f"{data.name} must hold classes that {folder} was trained for, by name or as numbers from 0,"
            f" got {', '.join(strange[:3])}"
        )
    places = torch.tensor([names.index(name) for name in data.classes])
    return replace(data, labels=places[data.labels], classes=classes)


def source_from_run(folder: Path, target: Target) -> Target:
    """The network of a run folder, attacked in a target's place: on its data, with its noise where it has none."""
    run = open_run(folder)
    sigma = target.sigma if run.config.sigma is None else run.config.sigma
    model = run.load_model(target.device)
    return Target(run.config.run_id, model, run.model_hash, sigma, target.data, folder, target.device)


def target_from_folder(
    folder: Path,
    *,
    device: torch.device,
    sigma: float,
    data: str | None = None,
    root: Path | None = None,
    report: Report | None = None,
) -> Target:
    """The network that a folder of records is about: that of the run, or the user's own that its config names."""
    config = read_json(folder / CONFIG)
    if config.get("weights") is None:
        return target_from_run(folder, device=device, sigma=sigma, data=data, root=root, report=report)
    weights, test = Path(config["weights"]), load(data or config["data"], "test", root=root, report=report)
    model = fill_weights(load_factory_model(config["model"], test.num_classes), weights).to(device).eval()
    return Target(config["model"], model, file_hash(weights), sigma, test, folder, device)


def target_from_weights(
    factory: str,
    weights: Path,
    *,
    data: str,
    folder: Path,
    device: torch.device,
    sigma: float | None = None,
    root: Path | None = None,
    report: Report | None = None,
) -> Target:
    """The user's own network: `package.module:factory` and a safetensors file.

    The folder gets a small `config.json` that says so, which the report reads.
    """
    test = load(data, "test", root=root, report=report)
    model = fill_weights(load_factory_model(factory, test.num_classes), weights).to(device).eval()
    config = {"rhobust": VERSION, "model": factory, "weights": str(weights), "data": data}
    if (folder / CONFIG).exists() and read_json(folder / CONFIG).get("weights") is None:
        raise ValueError(f"{folder} must not be the folder of a training run: choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / CONFIG, config)
    write_json(folder / ENVIRONMENT, describe_environment(device))
    return Target(factory, model, file_hash(weights), sigma, test, folder, device)
