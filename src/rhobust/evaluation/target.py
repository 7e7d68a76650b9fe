"""What is evaluated: a network, its smoothing noise, its test data, and the folder for the records."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from rhobust.certificates import native_dtype
from rhobust.data import Dataset, load
from rhobust.evaluation.answers import check_answers
from rhobust.models import load_factory_model
from rhobust.models.inference import output_width
from rhobust.progress import ProgressCallback
from rhobust.records import RecordWriter, Row, read_json, write_json
from rhobust.training import describe_environment, resolve_device
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
    factory: str | None = None
    """The user's own code that builds the network; None for a network of ours."""

    def __post_init__(self) -> None:
        if self.sigma is not None and not self.sigma > 0:
            raise ValueError(f"sigma must be > 0, got {self.sigma}")

    def smoothing(self) -> float:
        """The smoothing noise, or a plain refusal where the network has none."""
        if self.sigma is None:
            raise ValueError(f"{self.name} was trained without noise, or nobody knows, so sigma must be given")
        return self.sigma

    def sigma_warnings(self) -> list[str]:
        """A line where the network was trained with other noise than it is smoothed with."""
        if self.trained_sigma is None or self.trained_sigma == self.sigma:
            return []
        return [f"the network was trained with noise {self.trained_sigma:g} and is smoothed with {self.sigma:g}"]

    def writer(self, kind: str, label: str, settings: Row) -> RecordWriter:
        """Where an evaluation of this network is recorded; its folder must not be about another one."""
        check_answers(self)
        return RecordWriter(self.folder, kind, label, settings)

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
    folder: Path | str,
    *,
    device: torch.device | str,
    sigma: float | None = None,
    data: str | None = None,
    root: Path | str | None = None,
    progress: ProgressCallback | None = None,
) -> Target:
    """The network of a run folder, with its own noise and test data unless others are given."""
    run, device = open_run(folder), resolve_device(device)
    model = run.load_model(device)
    test = load(data or run.config.data, "test", root=root, progress=progress)
    if test.shape != run.shape:
        wanted, found = ("x".join(map(str, shape)) for shape in (run.shape, test.shape))
        raise ValueError(f"{test.name} must hold images of shape {wanted}, which {folder} was trained for, got {found}")
    return Target(
        name=run.config.run_id,
        model=model,
        model_hash=run.model_hash,
        sigma=run.config.sigma if sigma is None else sigma,
        data=_in_classes_of(test, run.classes, run.folder),
        folder=run.folder,
        device=device,
        trained_sigma=run.config.sigma,
        factory=run.config.factory,
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


def source_from_run(folder: Path | str, target: Target) -> Target:
    """The network of a run folder, attacked in a target's place: on its data, with its noise where it has none."""
    run = open_run(folder)
    sigma = target.sigma if run.config.sigma is None else run.config.sigma
    return Target(
        name=run.config.run_id,
        model=run.load_model(target.device),
        model_hash=run.model_hash,
        sigma=sigma,
        data=target.data,
        folder=run.folder,
        device=target.device,
        factory=run.config.factory,
    )


def target_from_folder(
    folder: Path | str,
    *,
    device: torch.device | str,
    sigma: float | None = None,
    data: str | None = None,
    root: Path | str | None = None,
    progress: ProgressCallback | None = None,
) -> Target:
    """The network that a folder of records is about: that of the run, or the user's own that its config names."""
    folder, device = Path(folder), resolve_device(device)
    config = _own_config(folder)
    if config is None:
        return target_from_run(folder, device=device, sigma=sigma, data=data, root=root, progress=progress)
    test = load(data or config["data"], "test", root=root, progress=progress)
    return _own_target(config["model"], Path(config["weights"]), test, folder, device, sigma)


def target_from_weights(
    factory: str,
    weights: Path | str,
    *,
    data: str,
    folder: Path | str,
    device: torch.device | str,
    sigma: float | None = None,
    root: Path | str | None = None,
    progress: ProgressCallback | None = None,
) -> Target:
    """The user's own network: `package.module:factory` and a safetensors file.

    The folder gets a small `config.json` that says so, which the report reads.
    """
    weights, folder, device = Path(weights), Path(folder), resolve_device(device)
    if (folder / CONFIG).exists() and _own_config(folder) is None:
        raise ValueError(f"{folder} must not be the folder of a training run: choose another")
    test = load(data, "test", root=root, progress=progress)
    target = _own_target(factory, weights, test, folder, device, sigma)
    folder.mkdir(parents=True, exist_ok=True)
    check_answers(target)
    write_json(folder / CONFIG, {"rhobust": VERSION, "model": factory, "weights": str(weights), "data": data})
    write_json(folder / ENVIRONMENT, describe_environment(device))
    return target


def _own_config(folder: Path) -> dict[str, str] | None:
    """What a folder says of the user's own network; None where it is not about one."""
    config = read_json(folder / CONFIG) if (folder / CONFIG).exists() else None
    return config if isinstance(config, dict) and config.get("weights") is not None else None


def _own_target(
    factory: str, weights: Path, test: Dataset, folder: Path, device: torch.device, sigma: float | None
) -> Target:
    model = fill_weights(load_factory_model(factory, test.num_classes), weights).to(device).eval()
    data = _in_outputs_of(test, output_width(model, test.images[:1].to(device)), factory)
    return Target(factory, model, file_hash(weights), sigma, data, folder, device, factory=factory)


def _in_outputs_of(data: Dataset, width: int, factory: str) -> Dataset:
    """The data with a class for each output of the user's own network; numbered classes may leave out the last ones."""
    numbers = tuple(map(str, range(width)))
    if data.num_classes != width and data.classes != numbers[: data.num_classes]:
        raise ValueError(
            f"{data.name} must hold the classes of {factory}, which returns {width} logits an image, got"
            f" {data.num_classes} classes; an .npz file with class numbers may leave some out"
        )
    return data if data.num_classes == width else replace(data, classes=numbers)
