"""The training loop."""

import math
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch

from rhobust.cores import watched_cores
from rhobust.data import Dataset, ImageSet, load
from rhobust.lock import Ownership, owned, tidy
from rhobust.memory import kept_memory
from rhobust.methods import WRM
from rhobust.models.inference import load_state
from rhobust.noise import stream
from rhobust.progress import ProgressCallback, ProgressEvent, no_progress, progress_or_default
from rhobust.records import CONFIG, settings_hash
from rhobust.settings import check_instance
from rhobust.training.config import TrainConfig, config_to_json, train_command
from rhobust.training.distributed import ProcessGroup, join_processes, resolve_device
from rhobust.training.metrics import (
    LogCallback,
    check_tracker,
    numbers_of,
    tracker,
)
from rhobust.training.run import (
    LOCK,
    Run,
    check_folder,
    create_run_folder,
    describe_environment,
    save_weights,
)
from rhobust.training.trainer import Trainer

MEASURED = 2000
"""Training images on which accuracy is measured if no validation images are held out."""


@kept_memory
@watched_cores
def train(
    config: TrainConfig,
    out: Path | str,
    *,
    device: torch.device | str = "auto",
    root: Path | str | None = None,
    resume: bool = False,
    progress: ProgressCallback | None = None,
    wait: bool = False,
    log: LogCallback | str | None = None,
) -> Run:
    """Train a network into a run folder; a finished run of the same config is returned unchanged.

    A failure before the first epoch is done creates no folder and leaves an existing one unchanged.

    Every random choice comes from a stream named by (seed, purpose, epoch), so an epoch does not depend on
    interruptions, nor on the number of processes started by torchrun.

    A run folder has one writer at a time, over all machines that share it.

    Args:
        config: The training configuration.
        out: The run folder.
        device: Torch device; "auto": the GPU if there is one.
        root: Folder of the data sets; default: $RHOBUST_DATA or the cache folder.
        resume: Continue an unfinished run in the folder.
        progress: Progress callback; default: progress bars on stderr.
        wait: If another process is training in the folder, wait for it and use what it left.
        log: Where each epoch's numbers go: a function of the epoch and the numbers, or a tracker, `tensorboard:FOLDER`,
            `trackio:PROJECT`, `wandb:PROJECT`, `mlflow:EXPERIMENT`; default: `metrics.jsonl` only.

    Raises:
        ValueError: The config does not fit the data or the folder, another process is training in it (`BusyError`), or
            one took it over (`LostError`).
        FloatingPointError: The loss became infinite or not a number.
    """
    check_instance("config", config, TrainConfig, "a TrainConfig")
    out, device = Path(out), resolve_device(device)
    run, processes = Run(out, config), join_processes(device)
    if run.finished:
        check_folder(run, resume=resume)
        tidy(out / LOCK)
        return run
    _check_method(config)
    if isinstance(log, str):
        check_tracker(log)
    with ExitStack() as stack:
        notify = stack.enter_context(progress_or_default(progress if processes.first else no_progress))
        owners: list[Ownership] = []

        def own() -> None:
            patience = math.inf if wait else 0.0
            owners.append(stack.enter_context(owned(out / LOCK, out, wait=patience, notify=notify)))
            if (out / CONFIG).exists():
                check_folder(run, resume=resume)

        processes.after_first(own)
        if not run.finished:  # another process may have finished it meanwhile
            if isinstance(log, str) or log is None:
                spec = log if processes.first else None
                log = stack.enter_context(tracker(spec, config.run_id, config_to_json(config)))
            _train(run, device, root, processes, owners[0] if owners else None, notify, log)
    processes.wait()
    return run


def _train(
    run: Run,
    device: torch.device,
    root: Path | str | None,
    processes: ProcessGroup,
    owner: Ownership | None,
    notify: ProgressCallback,
    log: LogCallback,
) -> None:
    config = run.config
    data = load(config.data, "train", root=root, progress=notify, resize=config.resize, crop=config.crop)
    fitting, measured = split_validation(_augmented(data, config), config)
    trainer = Trainer.start(run, fitting.to(device), measured.to(device), device, processes, owner)
    environment = {**describe_environment(device), "command": train_command(config)}
    if trainer.teacher is not None:
        environment["teachers"] = list(trainer.teacher.hashes)  # the config names their folders alone
        environment["teachers_data"] = list(trainer.teacher.data)
    with ExitStack() as stack:
        if owner is not None:
            held_out = ImageSet.of(measured.images) if config.validation else None
            stack.enter_context(create_run_folder(run, environment, ImageSet.of(data.images), held_out, owner))
        if isinstance(config.method, WRM) and config.activation != "elu":
            notify("warning: WRM's theory needs a smooth network; activation elu is the paper's choice")
        while len(trainer.metrics) < config.epochs:
            row = trainer.epoch()
            note = f"loss {row['loss']:.4f}  accuracy {row['accuracy']:.3f}"
            if "accuracy_under_noise" in row:
                note += f", under noise {row['accuracy_under_noise']:.3f}"
            notify(ProgressEvent(f"train {config.run_id}", row["epoch"], config.epochs, "epochs", note))
            log(row["epoch"], numbers_of(row))
    if owner is not None:
        load_state(trainer.model, trainer.kept or trainer.deployed())
        save_weights(run, trainer.model, data, owner)


def _augmented(data: Dataset, config: TrainConfig) -> Dataset:
    """The data with the crops and flips of the config, where it asks for some."""
    side = min(data.shape[1:])
    if config.crop_padding >= side:
        raise ValueError(f"crop_padding must be less than the image's side {side}, got {config.crop_padding}")
    return replace(data, crop=config.crop_padding or data.crop, flip=config.flip or data.flip)


def _check_method(config: TrainConfig) -> None:
    """Raise if a user-defined method has no loss function or cannot be written to config.json."""
    method = config.method
    if isinstance(method, type) or not callable(getattr(method, "loss", None)):
        raise ValueError(f"method must be a dataclass instance with a function loss(model, x, y, rng), got {method!r}")
    try:
        settings_hash(config_to_json(config))
    except TypeError as error:
        raise ValueError(f"method must hold JSON values only, for config.json, but {error}") from None


def split_validation(data: Dataset, config: TrainConfig) -> tuple[Dataset, Dataset]:
    """The training images and the images on which accuracy is measured: the held-out ones where there are any."""
    if config.validation >= len(data):
        raise ValueError(f"validation must leave images to train on ({len(data)}), got {config.validation}")
    order = torch.randperm(len(data), generator=stream(config.seed, "validation"))
    if not config.validation:
        return data, data.select(order[:MEASURED])
    held_out = replace(data.select(order[: config.validation]), split="validation")
    return data.select(order[config.validation :]), held_out
