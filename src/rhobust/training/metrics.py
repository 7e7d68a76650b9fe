"""Numbers of each epoch: accuracies, and the experiment trackers that get them.

`metrics.jsonl` is always written; TensorBoard, trackio, W&B or MLflow get the same numbers, if one is installed.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from rhobust.attacks import EOT, PGD
from rhobust.data import Dataset, to_unit
from rhobust.models.inference import frozen
from rhobust.noise import ExampleNoise, noisy_copies
from rhobust.settings import flatten

BATCH = 500
ROBUST_IMAGES = 500
"""Images of the robust accuracy measured after each epoch."""
DRAWS = 4
"""Noise samples of the attack and of the prediction, for a method that trains for smoothing."""
LogCallback = Callable[[int, Mapping[str, float]], None]
"""Receives the number of each epoch and its measured numbers by name."""
TRACKERS = {"tensorboard": "torch.utils.tensorboard", "trackio": "trackio", "wandb": "wandb", "mlflow": "mlflow"}
"""Trackers by name, and the module that each one needs."""


@torch.no_grad()
def clean_accuracy(model: nn.Module, data: Dataset) -> float:
    """Accuracy of the base network."""
    with frozen(model) as network:
        right = [
            (network(to_unit(images)).argmax(1) == labels).sum()
            for images, labels in zip(data.images.split(BATCH), data.labels.split(BATCH), strict=True)
        ]
    return int(torch.stack(right).sum()) / len(data)


def accuracy_under_noise(model: nn.Module, data: Dataset, sigma: float, seed: int) -> float:
    """Accuracy of one prediction per image under the method's own noise: what a smoothed network is trained for."""
    right = 0
    with frozen(model) as network, torch.no_grad():
        for first in range(0, len(data), BATCH):
            images, labels = to_unit(data.images[first : first + BATCH]), data.labels[first : first + BATCH]
            noise = ExampleNoise(seed, "measure noise", range(first, first + len(labels)))
            right += int((network(noisy_copies(images, sigma, 1, noise)).argmax(1) == labels).sum())
    return right / len(data)


def robust_accuracy(model: nn.Module, data: Dataset, eps: float, sigma: float | None, seed: int) -> float:
    """Robust accuracy under ten steps of PGD, or of EOT-PGD for a method with noise: an estimate."""
    images, y = to_unit(data.images[:ROBUST_IMAGES]), data.labels[:ROBUST_IMAGES]
    noise = ExampleNoise(seed, "measure", range(len(y)))
    attack = PGD(steps=10, restarts=0) if sigma is None else EOT(steps=10, restarts=0, draws=DRAWS)
    adversarial = attack(model, images, y, eps=eps, sigma=sigma, rng=noise)
    with frozen(model) as network, torch.no_grad():
        copies = adversarial if sigma is None else noisy_copies(adversarial, sigma, DRAWS, noise)
        predictions = network(copies).softmax(1).view(-1, len(y), data.num_classes).mean(0).argmax(1)
    return int((predictions == y).sum()) / len(y)


def check_tracker(spec: str) -> tuple[str, str]:
    """The tracker and its place, from `NAME` or `NAME:PLACE`; raises if the name is unknown."""
    name, _, place = spec.partition(":")
    if name not in TRACKERS:
        raise ValueError(f"log must be one of {', '.join(TRACKERS)}, with :PLACE after it, got {spec}")
    return name, place


@contextmanager
def tracker(spec: str | None, run: str, settings: Mapping[str, Any]) -> Iterator[LogCallback]:
    """A callback that hands numbers to a tracker, which is closed at the end; without one it does nothing.

    Args:
        spec: `tensorboard:FOLDER`, `trackio:PROJECT`, `wandb:PROJECT` or `mlflow:EXPERIMENT`; default places: the
            folder `tensorboard`, the project `rhobust`.
        run: Name of the run.
        settings: Its hyper-parameters.
    """
    if spec is None:
        yield lambda epoch, numbers: None
        return
    name, place = check_tracker(spec)
    try:
        module = importlib.import_module(TRACKERS[name])
    except ImportError as error:
        raise ValueError(f"log {name} needs a package that is not installed: {error}") from None
    flat = dict(flatten(settings))
    if name == "tensorboard":
        writer = module.SummaryWriter(f"{place or 'tensorboard'}/{run}")
        writer.add_text("settings", "\n".join(f"    {key}: {value}" for key, value in flat.items()))

        def scalars(epoch: int, numbers: Mapping[str, float]) -> None:
            for key, value in numbers.items():
                writer.add_scalar(key, value, epoch)

        try:
            yield scalars
        finally:
            writer.close()
    elif name == "mlflow":
        module.set_experiment(place or "rhobust")
        with module.start_run(run_name=run):
            module.log_params(flat)
            yield lambda epoch, numbers: module.log_metrics(dict(numbers), step=epoch)
    else:
        started = module.init(project=place or "rhobust", name=run, config=flat)
        try:
            yield lambda epoch, numbers: started.log(dict(numbers), step=epoch)
        finally:
            started.finish()


def numbers_of(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an epoch's metrics, without its own number and its words."""
    return {
        key: float(value)
        for key, value in row.items()
        if key != "epoch" and isinstance(value, int | float) and not isinstance(value, bool)
    }
