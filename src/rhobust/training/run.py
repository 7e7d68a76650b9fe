"""A run folder: config, weights, metrics, environment, and one record file per evaluation."""

import hashlib
import io
import json
import platform
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from rhobust.data import Dataset, ImageSet
from rhobust.data.source import HELD_OUT_IMAGES, TRAINING_IMAGES
from rhobust.files import check_regular, format_json, open_regular, parse_json, read_json, write_json
from rhobust.lock import LostError, Ownership
from rhobust.models import Mirrored, build_model, fill_weights
from rhobust.models.inference import for_evaluation, state_of
from rhobust.records import CONFIG, ENVIRONMENT, FINGERPRINT, METRICS, RESUME, WEIGHTS, is_own, read_rows
from rhobust.training.config import TrainConfig, check_received, config_from_json, config_to_json
from rhobust.training.distributed import resolve_device
from rhobust.user_code import UserCode
from rhobust.version import VERSION

LOCK = "train.lock"
"""Lock of the training that writes a run folder."""
WIDEST = 100_000
"""Channels, height and width that a weights file may claim for the images of its network."""


@dataclass(frozen=True)
class Run:
    """A training run on disk; finished if its weights exist."""

    folder: Path
    config: TrainConfig

    @property
    def finished(self) -> bool:
        return (self.folder / WEIGHTS).exists()

    @property
    def published(self) -> bool:
        """Whether the run is finished and was published without its weights."""
        return not self.finished and (self.folder / FINGERPRINT).exists()

    @cached_property
    def model_hash(self) -> str:
        """Fingerprint of the weights, sixteen hex digits."""
        return self._metadata("model_hash") if self.published else file_hash(self.folder / WEIGHTS)

    def training_images(self) -> ImageSet | None:
        """The images that the run was trained on; None where an earlier release trained it, which kept no list."""
        return ImageSet.in_folder(self.folder)

    def held_out_images(self) -> ImageSet | None:
        """Those that it held out; None where it held nothing out, or where an earlier release kept no list."""
        return ImageSet.in_folder(self.folder, HELD_OUT_IMAGES)

    @property
    def only_data(self) -> str | None:
        """The data that decided its weights; None where other images may have, before it or through its teachers."""
        taught = _environment(self).get("teachers_data") if self.config.teacher else []
        # A folder that does not say it may have had any teachers.
        alone = isinstance(taught, list) and all(one == self.config.data for one in taught)
        return self.config.data if alone and self.config.init is None else None

    def metrics(self) -> list[dict[str, Any]]:
        """One dictionary per epoch."""
        path = self.folder / METRICS
        return read_rows(path) if path.exists() else []

    def load_model(
        self, device: torch.device | str = "cpu", *, trust: bool = False, model: str | None = None
    ) -> nn.Module:
        """The trained network in evaluation mode.

        Args:
            device: Where to load it.
            trust: Run the code that the folder names, `package.module:factory`, whatever it is.
            model: The code that the folder may run; not needed for a network of this package.
        """
        self._check_finished()
        self._check_weights()
        check_received(self.folder, code=self.config.model, trust=trust, model=model)
        network = build_model(
            self.config.model,
            shape=self.shape,
            classes=len(self.classes),
            mean=[0.0] * self.shape[0],  # the saved buffers replace both
            deviation=[1.0] * self.shape[0],
            activation=self.config.activation,
            seed=self.config.seed,
            normalisation=self.config.normalisation,
        )
        network = fill_weights(network, self.folder / WEIGHTS)
        network = Mirrored(network) if self.config.mirror else network
        return for_evaluation(network, resolve_device(device))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the network's images."""
        shape = self._metadata("shape")
        if not isinstance(shape, list) or len(shape) != 3 or not all(type(n) is int and 0 < n <= WIDEST for n in shape):
            self._refuse("shape", f"three whole numbers from 1 to {WIDEST:,}", shape)
        channels, height, width = shape
        return channels, height, width

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the network's classes."""
        classes = self._metadata("classes")
        if not isinstance(classes, list) or not classes or not all(isinstance(name, str) for name in classes):
            self._refuse("classes", "a list of names", classes)
        return tuple(classes)

    @property
    def _description(self) -> Path:
        """The file that says what the network was trained for."""
        return self.folder / (FINGERPRINT if self.published else WEIGHTS)

    def _refuse(self, key: str, wanted: str, got: object) -> None:
        raise ValueError(f"{self._description} must hold for {key} {wanted}, got {str(got)[:100]}")

    def _metadata(self, key: str) -> Any:
        path = self._description
        if not self.published:
            self._check_finished()
        description = read_json(path) if self.published else weights_metadata(path)
        if not isinstance(description, dict) or key not in description:
            raise ValueError(f"{path} must hold the {key} of its training data, but does not")
        return description[key]

    def _check_weights(self) -> None:
        """Raise if the weights are not those that the training wrote; a folder without a fingerprint is not checked."""
        if not (self.folder / FINGERPRINT).exists():
            return
        written = read_json(self.folder / FINGERPRINT)
        if not isinstance(written, dict) or written.get("model_hash") != self.model_hash:
            raise ValueError(
                f"{self.folder / WEIGHTS} must be as it was written, but its hash is not the one in {FINGERPRINT}:"
                f" delete {FINGERPRINT} if you changed the weights yourself"
            )

    def _check_finished(self) -> None:
        if not self.finished:
            raise ValueError(f"{self.folder} must hold a finished run, but {WEIGHTS} is missing: train it with resume")
        check_regular(self.folder / WEIGHTS, own=True)


def open_run(folder: Path | str) -> Run:
    """Read a run folder's config."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder} must be a run folder, but there is no such folder")
    path = folder / CONFIG
    if not path.exists():
        raise ValueError(f"{folder} must be a run folder, but it holds no {CONFIG}")
    document = read_json(path)
    if isinstance(document, dict):
        if is_own(document):
            raise ValueError(
                f"{folder} must be a training run, but it holds records of {document.get('model')}:"
                " pass its model and weights"
            )
        document.pop("rhobust", None)
    return Run(folder, config_from_json(document, str(path)))


def check_folder(run: Run, *, resume: bool) -> None:
    """Raise if a folder holds a run of another config, or an unfinished one without `resume`."""
    theirs, ours = config_to_json(open_run(run.folder).config), config_to_json(run.config)
    if theirs != ours:
        keys = ", ".join(key for key in ours | theirs if ours.get(key) != theirs.get(key))
        raise ValueError(
            f"{run.folder} must hold a run of the same config, but it differs in {keys}: choose another folder"
        )
    if not run.finished and not resume:
        raise ValueError(
            f"{run.folder} must be empty or finished, but holds an unfinished run: set resume to continue it"
        )


@contextmanager
def create_run_folder(
    run: Run, environment: dict[str, Any], images: ImageSet, held_out: ImageSet | None, owner: Ownership
) -> Iterator[None]:
    """Begin a run in its folder, or use the one that is there; a failure before the first epoch is saved undoes it.

    A run that is continued must have the training images and the teachers that it was begun with, and hold out the same
    images.
    """
    if (run.folder / CONFIG).exists():
        check_same_images(run, images, held_out, "continued")
        _check_same_teachers(run, environment)
        yield
        return
    try:
        owner.replace(run.folder / ENVIRONMENT, format_json(environment))
        owner.replace(run.folder / TRAINING_IMAGES, images.to_bytes())
        if held_out is not None:
            owner.replace(run.folder / HELD_OUT_IMAGES, held_out.to_bytes())
        # The config is written last: a folder with a config is complete.
        config = {"rhobust": environment["rhobust"], **config_to_json(run.config)}
        owner.replace(run.folder / CONFIG, format_json(config))
        yield
    except LostError:
        raise  # the files are another process's
    except BaseException:
        if not (run.folder / METRICS).exists():
            owner.check()
            for name in (CONFIG, ENVIRONMENT, TRAINING_IMAGES, HELD_OUT_IMAGES):
                (run.folder / name).unlink(missing_ok=True)
        raise


def _environment(run: Run) -> dict[str, Any]:
    """What the folder says of how the run was made; empty where it says nothing."""
    path = run.folder / ENVIRONMENT
    known = read_json(path) if path.exists() else None
    return known if isinstance(known, dict) else {}


def _check_same_teachers(run: Run, environment: dict[str, Any]) -> None:
    """Raise if the weights of the teachers are not those that a run was begun with; an older run is not checked."""
    begun = _environment(run).get("teachers")
    hashes = environment.get("teachers", ())
    for folder, before, now in zip(run.config.teacher, begun if isinstance(begun, list) else (), hashes, strict=False):
        if before != now:
            raise ValueError(
                f"{run.folder} must be continued with the teachers that it was begun with, but the weights of {folder}"
                f" are others: restore them, or train into another folder"
            )


def check_same_images(
    run: Run, images: ImageSet, held_out: ImageSet | None, use: Literal["continued", "evaluated"]
) -> None:
    """Raise if these are not the training images that a run was begun with, or not those of them that it held out.

    The second depends on their order: the images that are held out are chosen by their places. A run without a list is
    not checked.
    """
    for what, known, found, remedy in (
        ("training images that it was begun with", run.training_images(), images, "them"),
        ("images that it held out", run.held_out_images(), held_out, "the names and the order of its files"),
    ):
        if known is None or found is None or known.to_bytes() == found.to_bytes():
            continue
        new, gone = (len(np.setdiff1d(one.keys, other.keys)) for one, other in ((found, known), (known, found)))
        raise ValueError(
            f"{run.folder} must be {use} with the {what}, but of {run.config.data} {new:,} are new and {gone:,} are"
            f" gone: restore {remedy}, or train into another folder"
        )


def save_weights(run: Run, model: nn.Module, data: Dataset, owner: Ownership) -> None:
    """Write the weights and the metadata needed to rebuild the network, atomically: the run is finished."""
    config = run.config
    description = {
        "model": config.model,
        "activation": config.activation,
        "shape": list(data.shape),
        "classes": list(data.classes),
        "sigma": config.sigma,
    }
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state_of(model).items()}
    if config.round_weights:
        matrices = (name for name, parameter in model.named_parameters() if parameter.dim() > 1)
        tensors |= {name: tensors[name].bfloat16() for name in matrices}
    content = save(tensors, metadata={"rhobust": json.dumps(description)})
    owner.replace(run.folder / WEIGHTS, content)
    fingerprint = hashlib.sha256(content).hexdigest()[:16]
    # After the weights: a folder with a fingerprint alone counts as published without them.
    owner.replace(run.folder / FINGERPRINT, format_json({"model_hash": fingerprint, **description}))
    (run.folder / RESUME).unlink(missing_ok=True)


def weights_metadata(path: Path) -> dict[str, Any]:
    """The metadata of a weights file; empty for a file that rhobust did not write."""
    try:
        check_regular(path)
        with safe_open(path, framework="pt") as file:
            description = (file.metadata() or {}).get("rhobust", "{}")
    except FileNotFoundError:
        raise ValueError(f"{path} must exist, but there is no such file") from None
    except (SafetensorError, OSError) as error:
        reason = "torch.save wrote it" if zipfile.is_zipfile(path) else error
        raise ValueError(
            f"{path} must be a safetensors file, but {reason}; load it into your network, and"
            " safetensors.torch.save_file(model.state_dict(), FILE) writes one"
        ) from None
    try:
        document = parse_json(description)
    except ValueError as error:
        raise ValueError(f"{path} must have JSON for its metadata, but it is damaged: {error}") from None
    if not isinstance(document, dict):
        raise ValueError(f"{path} must have a JSON object for its metadata, got {type(document).__name__}")
    return document


def write_fingerprint(folder: Path, to: Path) -> None:
    """Write the fingerprint of a run's weights into another folder; raise if that folder has another one."""
    path, fingerprint = folder / WEIGHTS, to / FINGERPRINT
    document = {"model_hash": file_hash(path), **weights_metadata(path)}
    if fingerprint.exists() and read_json(fingerprint) != document:
        raise ValueError(f"{to} must hold records of the same weights as {folder}, but it holds those of others")
    write_json(fingerprint, document)


def file_hash(path: Path) -> str:
    """Sixteen hex digits of a file's SHA-256."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def weights_fingerprint(model: nn.Module) -> str:
    """Sixteen hex digits that name a module's parameters and buffers: equal weights, equal name, on any device."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state_of(model).items()):
        with UserCode(f"the network must have weights to read, but {name} raised"):
            content = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(content.data)
    return digest.hexdigest()[:16]


def save_checkpoint(
    run: Run,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: dict[str, Tensor],
    kept: dict[str, Tensor],
    metrics: list[dict[str, Any]],
    owner: Ownership,
) -> None:
    """Write a checkpoint, atomically."""
    buffer = io.BytesIO()
    state = {"model": state_of(model), "optimizer": optimizer.state_dict(), "metrics": metrics}
    torch.save({**state, "average": average, "kept": kept}, buffer)
    owner.replace(run.folder / RESUME, buffer.getvalue())


def save_metrics(run: Run, metrics: list[dict[str, Any]], owner: Ownership) -> None:
    """Write the metrics of all epochs so far, atomically."""
    owner.replace(run.folder / METRICS, "".join(json.dumps(row) + "\n" for row in metrics).encode())


def load_checkpoint(path: Path, device: torch.device) -> dict[str, Any] | None:
    """The last checkpoint, or None; nothing in the file is executed."""
    if not path.exists() and not path.is_symlink():
        return None
    check_regular(path, own=True)
    try:
        with zipfile.ZipFile(path) as archive:
            if (member := archive.testzip()) is not None:  # torch does not compare checksums
                raise ValueError(f"{member} in it is damaged")
        return torch.load(path, map_location=device, weights_only=True)
    except Exception as error:
        raise ValueError(f"{path} must be a checkpoint of this run, but {_first_line(error)}") from None


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Versions and hardware, as written to `environment.json`."""
    return {
        "rhobust": VERSION,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "cpu_threads": torch.get_num_threads(),
    }


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
