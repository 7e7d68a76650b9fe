"""The training loop."""

import io
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rhobust.data import Dataset, augment, channel_statistics, epoch_batches, load, to_unit
from rhobust.models import build_model
from rhobust.noise import BatchNoise, stream
from rhobust.progress import Report, Step, telling
from rhobust.records import write_whole

from .config import TrainConfig
from .environment import describe_environment
from .run import METRICS, RESUME, WEIGHTS, Run, create_run, save_weights

MEASURED = 2000
"""Images on which an epoch's accuracy is measured."""


def train(
    config: TrainConfig,
    out: Path,
    *,
    device: torch.device,
    root: Path | None = None,
    resume: bool = False,
    report: Report | None = None,
) -> Run:
    """Train a network into a run folder; a finished run of the same config is returned as it is.

    Every random choice is a stream named by (seed, purpose, epoch), so an epoch is the same whether the run was
    interrupted before it or not.

    Args:
        config: What decides the weights.
        out: The run folder.
        device: Where to train.
        root: Where the data sets lie.
        resume: Go on with an unfinished run in the folder.
        report: Told of progress; None shows it on stderr.

    Raises:
        ValueError: The config does not fit the data or the folder.
        FloatingPointError: The loss became infinite or not a number.
    """
    if (run := _finished(config, out)) is not None:
        return run
    data = load(config.data, "train", root=root)
    fitting, held_out = _split(data, config)
    mean, deviation = channel_statistics(fitting.images)
    model = build_model(
        config.model,
        shape=data.shape,
        classes=data.num_classes,
        mean=mean,
        deviation=deviation,
        activation=config.activation,
        seed=config.seed,
    ).to(device)
    run = create_run(out, config, describe_environment(device), resume=resume)
    optimizer = _optimizer(config, model)
    metrics = _restore(run, model, optimizer, device)
    fitting, held_out = fitting.to(device), held_out.to(device)
    steps = math.ceil(len(fitting) / config.batch_size)
    with telling(report) as tell:
        for epoch in range(len(metrics) + 1, config.epochs + 1):
            start = time.perf_counter()
            losses, squares = [], []
            for number, (x, y, rng) in enumerate(_batches(fitting, config, epoch, device)):
                _set_lr(optimizer, config, ((epoch - 1) * steps + number) / (config.epochs * steps))
                model.train()
                loss, squared_distance = config.method.loss(model, x, y, rng)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                losses.append(loss.detach() * len(x))
                squares.append(squared_distance.detach().sum())
            mean_loss = (torch.stack(losses).sum() / len(fitting)).item()
            seconds = time.perf_counter() - start
            if not math.isfinite(mean_loss):
                raise FloatingPointError(
                    f"the loss must stay finite, but was {mean_loss} in epoch {epoch}; "
                    f"{run.folder / RESUME} holds epoch {len(metrics)}"
                )
            metrics.append(
                {
                    "epoch": epoch,
                    "loss": mean_loss,
                    "accuracy": clean_accuracy(model, held_out),
                    "accuracy_on": "validation" if config.validation else "training",
                    "distance_rms": (torch.stack(squares).sum() / len(fitting)).sqrt().item(),
                    "seconds": seconds,
                    "images_per_second": len(fitting) / seconds,
                }
            )
            _checkpoint(run, model, optimizer, metrics)
            note = f"loss {mean_loss:.4f}  accuracy {metrics[-1]['accuracy']:.3f}"
            tell(Step(f"train {config.run_id}", epoch, config.epochs, "epochs", note))
    save_weights(run.folder / WEIGHTS, model, data, config)
    (run.folder / RESUME).unlink(missing_ok=True)
    return run


@torch.no_grad()
def clean_accuracy(model: nn.Module, data: Dataset, batch_size: int = 500) -> float:
    """Share of images that the base network gets right; the model's mode is put back."""
    mode = model.training
    model.eval()
    right = sum(
        (model(to_unit(images)).argmax(1) == labels).sum().item()
        for images, labels in zip(data.images.split(batch_size), data.labels.split(batch_size), strict=True)
    )
    model.train(mode)
    return right / len(data)


def _finished(config: TrainConfig, out: Path) -> Run | None:
    """The run in the folder if it is finished, before any data set is looked for."""
    if not (out / WEIGHTS).exists():
        return None
    run = create_run(out, config, {}, resume=True)
    return run if run.finished else None


def _split(data: Dataset, config: TrainConfig) -> tuple[Dataset, Dataset]:
    """The images to fit and the images to measure on."""
    if config.validation >= len(data):
        raise ValueError(f"validation must leave images to train on ({len(data)}), got {config.validation}")
    order = torch.randperm(len(data), generator=stream(config.seed, "validation"))
    if not config.validation:
        return data, data.select(order[:MEASURED])
    return data.select(order[config.validation :]), data.select(order[: config.validation])


def _batches(
    data: Dataset, config: TrainConfig, epoch: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor, BatchNoise]]:
    order = stream(config.seed, "order", epoch)
    crops = stream(config.seed, "augment", epoch, device=device)
    noise = BatchNoise(stream(config.seed, "noise", epoch, device=device))
    for indices in epoch_batches(len(data), config.batch_size, rng=order, device=device):
        images = data.images[indices]
        if config.augment:
            images = augment(images, crop=data.crop, flip=data.flip, rng=crops)
        yield to_unit(images), data.labels[indices], noise


def _optimizer(config: TrainConfig, model: nn.Module) -> torch.optim.Optimizer:
    if config.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    return torch.optim.SGD(
        model.parameters(), lr=config.lr, momentum=0.9, nesterov=True, weight_decay=config.weight_decay
    )


def _set_lr(optimizer: torch.optim.Optimizer, config: TrainConfig, progress: float) -> None:
    """Set the learning rate for a share of the run that is done, in [0, 1)."""
    factor = 1.0 if config.schedule == "constant" else 0.5 * (1 + math.cos(math.pi * progress))
    for group in optimizer.param_groups:
        group["lr"] = config.lr * factor


def _checkpoint(run: Run, model: nn.Module, optimizer: torch.optim.Optimizer, metrics: list[dict[str, Any]]) -> None:
    buffer = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "metrics": metrics}, buffer)
    write_whole(run.folder / RESUME, buffer.getvalue())
    write_whole(run.folder / METRICS, "".join(json.dumps(row) + "\n" for row in metrics))


def _restore(
    run: Run, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
) -> list[dict[str, Any]]:
    """Load the last whole epoch, if there is one, and return the metrics up to it."""
    path = run.folder / RESUME
    if not path.exists():
        return []
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:
        raise ValueError(f"{path} must be a checkpoint of this run, but {str(error).splitlines()[0]}") from None
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["metrics"]
