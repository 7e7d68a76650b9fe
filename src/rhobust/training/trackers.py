"""Experiment trackers: each epoch's numbers go to TensorBoard, trackio, W&B or MLflow, if one is installed.

`metrics.jsonl` is always written; a tracker gets the same numbers.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

LogCallback = Callable[[int, Mapping[str, float]], None]
"""Receives the number of each epoch and its measured numbers by name."""
TRACKERS = {
    "tensorboard": "torch.utils.tensorboard",
    "trackio": "trackio",
    "wandb": "wandb",
    "mlflow": "mlflow",
}
"""Trackers by name, and the module that each one needs."""


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
    flat = dict(_flat(settings))
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


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
