"""rhobust predict."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from torch import Tensor, nn

from rhobust.certificates import (
    Dtype,
    Repeats,
    Smoothing,
    VoteCounter,
    check_batch_independence,
    native_dtype,
    predict_inputs,
)
from rhobust.commands.options import Common, CommonOptions, print_table, print_warnings
from rhobust.commands.target import check_named
from rhobust.data import read_image
from rhobust.data.sizing import Sizing
from rhobust.models import load_model
from rhobust.models.guarded import for_evaluation
from rhobust.models.inference import output_width
from rhobust.settings import check_at_least, check_declared, check_level, check_positive_number
from rhobust.training import open_run, resolve_device


@dataclass(frozen=True)
class Predict:
    """Classify image files by the vote of the smoothed classifier, or abstain where the vote is close."""

    names: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN IMAGE [IMAGE ...]")]
    """A run folder and image files; with --model and --weights, image files alone."""
    model: str | None = None
    """The user's own network, package.module:factory; with a run folder, the code that it may run."""
    weights: Path | None = None
    """Its weights, a safetensors file."""
    trust: bool = False
    """Run the code that the run folder names, whatever it is."""
    resize: int | None = None
    """Pixels of the shorter side that images are resized to; default: as in the run's training, else as stored."""
    crop: int | None = None
    """Side of the central square that is kept of each image, after resizing; default: likewise."""
    sigma: float | None = None
    """Smoothing noise; default: the run's own."""
    n: int = 1000
    """Noise samples per image."""
    alpha: float = 1e-3
    """Probability that an answer is not the class most probable under noise."""
    dtype: Dtype | None = None
    """Arithmetic of the network; to use a certificate, take that of its record."""
    compiled: bool = False
    """Compile the network; to use a certificate, do as its record says."""
    seed: int = 0
    """Random seed."""
    common: CommonOptions = Common()

    def __post_init__(self) -> None:
        check_declared(self)
        check_at_least(1, self, "n")
        check_level(self.alpha)
        if self.sigma is not None:
            check_positive_number("sigma", self.sigma)

    def run(self) -> dict[str, Any]:
        device = resolve_device(self.common.device)
        if self.model is None and self.weights is not None:
            raise ValueError("--weights must come with --model, got no --model")
        if self.model is not None and self.weights is None and not (self.names and self.names[0].is_dir()):
            raise ValueError("--model must come with --weights or with a run folder, got neither")
        if self.model is None or self.weights is None:
            if len(self.names) < 2:
                raise ValueError(f"a run folder and at least one image must be given, got {len(self.names)} names")
            run, files = open_run(self.names[0]), self.names[1:]
            check_named([run.folder], self.model, trust=self.trust)
            network, trained = run.load_model(device, trust=self.trust, model=self.model), run.config.sigma
            shape, classes = run.shape, run.classes
            sizing = Sizing(self.resize, self.crop) or run.config.sizing
        else:
            if not self.names:
                raise ValueError("at least one image must be given, got none")
            files, trained, shape, classes = self.names, None, None, None
            sizing = Sizing(self.resize, self.crop)
            network = for_evaluation(load_model(self.model, self.weights), device)
        sigma = trained if self.sigma is None else self.sigma
        if sigma is None:
            raise ValueError("the network has no training noise on record: pass --sigma")
        images = _read(files, shape, sizing).to(device)
        smoothing = Smoothing(
            sigma,
            output_width(network, images) if classes is None else len(classes),
            seed=self.seed,
            dtype=self.dtype or native_dtype(device),
            compiled=self.compiled,
        )
        repeats = Repeats()
        check_batch_independence(VoteCounter(network, images, smoothing, repeats))
        return {
            "sigma": sigma,
            "n": self.n,
            "alpha": self.alpha,
            "dtype": smoothing.dtype,
            "predictions": _answers(network, images, smoothing, files, classes, repeats, n=self.n, alpha=self.alpha),
            "warnings": [f"the network was trained with noise {trained:g} and is smoothed with {sigma:g}"]
            if trained is not None and trained != sigma
            else [],
        }

    def show(self, result: dict[str, Any]) -> None:
        rows = []
        for answer in result["predictions"]:
            votes = ", ".join(f"{name} {count}" for name, count in answer["votes"] if count)
            rows.append([answer["image"], "abstains" if answer["class"] is None else answer["class"], votes])
        print_table(["image", "class", f"votes of {result['n']}"], rows, left=3)
        other = f"with probability {result['alpha']:g} at most"
        print(f"{other} an image gets another class than the class most probable under noise")
        print_warnings(result["warnings"])


def _read(files: tuple[Path, ...], shape: tuple[int, int, int] | None, sizing: Sizing) -> Tensor:
    """The images as one batch of the network's shape; without one, of the first image's."""
    stored = [read_image(path, None if shape is None else shape[0]) for path in files]
    images = [sizing.images(image[None], str(path))[0] for path, image in zip(files, stored, strict=True)]
    wanted = images[0].shape if shape is None else torch.Size(shape)
    for path, image in zip(files, images, strict=True):
        if image.shape != wanted:
            sizes = ("x".join(map(str, size)) for size in (wanted, image.shape))
            raise ValueError(f"{path} must be an image of shape {next(sizes)}, got {next(sizes)}")
    return torch.stack(images)


def _answers(
    network: nn.Module,
    images: Tensor,
    smoothing: Smoothing,
    files: tuple[Path, ...],
    classes: tuple[str, ...] | None,
    repeats: Repeats,
    *,
    n: int,
    alpha: float,
) -> list[dict[str, Any]]:
    names = classes or tuple(map(str, range(smoothing.num_classes)))
    found = predict_inputs(network, images, smoothing, indices=range(len(images)), n=n, alpha=alpha, repeats=repeats)
    return [
        {
            "image": str(path),
            "prediction": answer.prediction,
            "class": None if answer.prediction is None else names[answer.prediction],
            "votes": [[names[number], votes] for number, votes in answer.votes],
        }
        for path, answer in zip(files, found, strict=True)
    ]


COMMAND = Predict
