"""Image files and a network by name: what predict and certify answer without a record."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rhobust.certificates import Dtype, NoiseKind, Smoothing
from rhobust.commands.options import Common
from rhobust.commands.target import NetworkOptions, check_named
from rhobust.data import load, read_image, to_unit
from rhobust.data.images import check_image_files
from rhobust.data.labels import fit_classes
from rhobust.data.sizing import Sizing
from rhobust.evaluation import Target
from rhobust.evaluation.own_network import OwnNetwork, as_trained
from rhobust.models.inference import for_evaluation, output_width
from rhobust.models.sources import SOURCES, check_names, known_network, label_names, load_with_classes, take_logits
from rhobust.training import open_run
from rhobust.training.distributed import resolve_device
from rhobust.user_code import UserCodeError


@dataclass(frozen=True)
class OpenedImages:
    """Image files as a batch for a network, with the noise by which it is smoothed and the names of its classes."""

    model: nn.Module
    images: Tensor
    """uint8 (n, channels, height, width), on the network's device."""
    sigma: float
    classes: tuple[str, ...]
    """Their numbers where no names are known."""
    sizing: Sizing
    """How images come to the network's size."""
    files: tuple[Path, ...] = ()
    warnings: tuple[str, ...] = ()

    def smoothing(
        self, *, seed: int, dtype: Dtype | None, compiled: bool | None, noise: NoiseKind = "grid"
    ) -> Smoothing:
        """The smoothed classifier that answers."""
        device, classes = self.images.device, len(self.classes)
        return Smoothing.on(device, self.sigma, classes, noise=noise, seed=seed, dtype=dtype, compiled=compiled)

    def name(self, prediction: int | None) -> str | None:
        """The name of a class; None for none."""
        return None if prediction is None else self.classes[prediction]


def split_names(names: Sequence[Path], model: str | None) -> tuple[Path | None, tuple[Path, ...]]:
    """The folder of a network, if the first name is one, and the image files."""
    if names and (names[0].is_dir() or model is None):
        return names[0], tuple(names[1:])
    return None, tuple(names)


Reader = Callable[[tuple[int, ...] | None, int | None, Sizing], Tensor]
"""From the network's shape and its channels, as far as known, and how images are sized, to images."""


def open_images(asked: NetworkOptions, folder: Path | None, files: Sequence[Path], common: Common) -> OpenedImages:
    """Load a network and read image files of the size that it was trained or evaluated for."""

    def read(shape: tuple[int, ...] | None, channels: int | None, sizing: Sizing) -> Tensor:
        return _read(files, shape, channels, sizing)

    return replace(open_network(asked, folder, read, common, files=files), files=tuple(files))


def open_network(
    asked: NetworkOptions,
    folder: Path | None,
    read: Reader,
    common: Common,
    *,
    num_classes: int | None = None,
    files: Sequence[Path] = (),
) -> OpenedImages:
    """Load a network, and images for it.

    `read` makes them as soon as the network's shape is known, from `files`: one that is missing is said before a data
    set is decoded. A factory without data is asked for `num_classes`.
    """
    _check(asked, folder)
    device = resolve_device(common.device)
    if folder is None:
        return _open_named(asked, read, device, common, num_classes, files)
    if (own := OwnNetwork.read(folder)) is not None:
        check_image_files(files)
        target = _own_target(asked, folder, common)
        model, shape, classes = target.model, target.data.shape, target.data.classes
        trained, sigma, sizing = target.trained_sigma, target.sigma, own.sizing
    else:
        run = open_run(folder)
        for name in ("data", "weights"):
            if getattr(asked, name) is not None:
                raise ValueError(f"--{name} must be left out with image files for {run.folder}, a training run")
        check_named([run.folder], asked.model, trust=asked.trust)
        model = run.load_model(device, trust=asked.trust, model=asked.model)
        shape, classes, trained, sizing = run.shape, run.classes, run.config.sigma, run.config.sizing
        sigma = trained if asked.sigma is None else asked.sigma
    sizing = asked.sizing or sizing
    return _opened(model, read(shape, shape[0], sizing).to(device), trained, sigma, classes, sizing)


def _open_named(
    asked: NetworkOptions,
    read: Reader,
    device: torch.device,
    common: Common,
    num_classes: int | None,
    files: Sequence[Path],
) -> OpenedImages:
    """A network by name; its classes and its shape are those of the data, or what its package says."""
    assert asked.model is not None
    check_names(asked.model, asked.weights, asked.mean, asked.std)
    check_image_files(files)
    known, data = known_network(asked.model, asked.weights), None
    if asked.data is not None:
        data = load(asked.data, "test", root=asked.root, progress=common.progress, **vars(asked.sizing))
        data = as_trained(data, known, asked.model)
        num_classes = data.num_classes
    model = load_with_classes(asked.model, asked.weights, num_classes, mean=asked.mean, std=asked.std)
    model = for_evaluation(model, device)
    trained, shape, classes = (None, None, None) if known is None else (known.sigma, known.shape, known.classes)
    shape = shape if data is None else data.shape
    channels = _channels(asked) if shape is None else shape[0]
    model, images, width = _ask(model, channels, lambda channels: read(shape, channels, asked.sizing).to(device))
    warnings: tuple[str, ...] = ()
    if data is not None:
        classes = fit_classes(data, width, asked.model).classes
    elif asked.model.startswith("hf:"):
        classes = label_names(model, width)
    if classes is None:
        classes = tuple(map(str, range(width)))
        warnings = ("classes are the numbers of the network's outputs, from 0: --data DATA gives their names",)
    sigma = trained if asked.sigma is None else asked.sigma
    return _opened(model, images, trained, sigma, classes, asked.sizing, warnings)


def _opened(
    model: nn.Module,
    images: Tensor,
    trained: float | None,
    sigma: float | None,
    classes: tuple[str, ...],
    sizing: Sizing,
    warnings: tuple[str, ...] = (),
) -> OpenedImages:
    if sigma is None:
        raise ValueError("the network has no training noise on record: pass --sigma")
    if trained is not None and trained != sigma:
        warnings = (*warnings, f"the network was trained with noise {trained:g} and is smoothed with {sigma:g}")
    return OpenedImages(model, images, sigma, classes, sizing, warnings=warnings)


def _check(asked: NetworkOptions, folder: Path | None) -> None:
    """Refuse options that would not be used."""
    if folder is not None:
        asked.check_alone()
    elif asked.model is None:
        given = [f"--{name}" for name in ("weights", "mean", "std") if getattr(asked, name) is not None]
        if given:
            raise ValueError(f"{given[0]} must come with --model, got no --model")
        raise ValueError("a run folder, or --model, must be given with image files, got neither")


def _own_target(asked: NetworkOptions, folder: Path, common: Common) -> Target:
    """The network that a folder of records is about; refused if it answers otherwise than they say."""
    check_named([folder], asked.model, trust=asked.trust)
    target = asked.open(folder, common, model=asked.model, weights=asked.weights)
    target.check_unchanged()
    return target


def _channels(asked: NetworkOptions) -> int | None:
    """How many channels a network by name takes, where its name or its normalisation says so.

    One number is subtracted from every channel, of grey and of coloured images.
    """
    if asked.mean is not None and len(asked.mean) > 1:
        return len(asked.mean)
    return 3 if asked.model is not None and asked.model.partition(":")[0] in SOURCES else None


def _ask(model: nn.Module, channels: int | None, read: Callable[[int | None], Tensor]) -> tuple[nn.Module, Tensor, int]:
    """The network with its logits taken, images of as many channels as it takes, and the number of its classes.

    Where nobody says how many channels that is, the network is asked: what it refuses as it is may be grey images for
    a network of colours, or the reverse.
    """
    images = read(channels)
    try:
        return _answered(model, images)
    except UserCodeError as error:
        if channels is not None:
            raise
        refused = error
    try:
        others = read(1 if images.shape[1] == 3 else 3)
    except ValueError:  # colours are not made grey
        raise refused from None
    try:
        return _answered(model, others)
    except UserCodeError as error:
        raise ValueError(f"the network must take grey or coloured images, but {refused}; {error}") from None


def _answered(model: nn.Module, images: Tensor) -> tuple[nn.Module, Tensor, int]:
    model = take_logits(model, to_unit(images[:1]))
    return model, images, output_width(model, images)


def _read(files: Sequence[Path], shape: tuple[int, ...] | None, channels: int | None, sizing: Sizing) -> Tensor:
    """The images as one batch of the network's shape; without one, of the first image's size, in colour if any is."""
    stored = [read_image(path, channels) for path in files]
    most = max(len(image) for image in stored)
    stored = [image.expand(most, -1, -1) for image in stored]
    images = [sizing.images(image[None], str(path))[0] for path, image in zip(files, stored, strict=True)]
    wanted = images[0].shape if shape is None else torch.Size(shape)
    for path, image in zip(files, images, strict=True):
        if image.shape != wanted:
            sizes = ["x".join(map(str, size)) for size in (wanted, image.shape)]
            raise ValueError(f"{path} must be an image of shape {sizes[0]}, got {sizes[1]}: see --resize and --crop")
    return torch.stack(images)


def shown_images(opened: OpenedImages, smoothing: Smoothing) -> dict[str, Any]:
    """What every answer about image files says of the classifier."""
    return {
        "sigma": opened.sigma,
        "shape": list(opened.images.shape[1:]),
        "noise": smoothing.noise,
        "dtype": smoothing.dtype,
    }
