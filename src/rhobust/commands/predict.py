"""rhobust predict."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from rhobust.certificates import Dtype, Repeats, VoteCounter, check_batch_independence, predict_inputs
from rhobust.commands.images import NetworkAsked, open_images, shown_images, split_names
from rhobust.commands.options import Common, CommonOptions, check_smoothing, print_table, print_warnings
from rhobust.settings import check_at_least, check_declared, check_level


@dataclass(frozen=True)
class Predict:
    """Classify image files by the vote of the smoothed classifier, or abstain where the vote is close.

    Example: rhobust predict --model hf:ID --sigma 0.25 --resize 256 --crop 224 photo.png
    """

    names: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN IMAGE [IMAGE ...]")]
    """A run folder, or the folder of your own network's records, and image files; with --model, image files alone."""
    model: str | None = None
    """The network: package.module:factory, file.py:factory, rhobust:NAME, hf:ID, timm:NAME or torchvision:NAME; with a
    run folder, the code that it may run."""
    weights: Path | None = None
    """Its weights, safetensors or a file of torch.save; default: what the factory or the hub loads itself."""
    mean: tuple[float, ...] | None = None
    """Mean per channel that the user's own network expects to be subtracted from images in [0, 1]."""
    std: tuple[float, ...] | None = None
    """Deviation per channel that it expects to be divided by."""
    data: str | None = None
    """Data whose names of classes and size of images are those of the user's own network."""
    root: Path | None = None
    """Folder of the data sets; default: $RHOBUST_DATA, else a cache folder."""
    trust: bool = False
    """Run the code and read the files that the folder names, whatever they are."""
    resize: int | None = None
    """Pixels of the shorter side that images are resized to; default: as in the run's training, else as stored."""
    crop: int | None = None
    """Side of the central square that is kept of each image, after resizing; default: likewise."""
    sigma: float | None = None
    """Smoothing noise; default: that of the network's training, of a run or `rhobust:NAME`."""
    n: int = 1000
    """Noise samples per image; --samples is the same."""
    alpha: float = 1e-3
    """Probability that an answer is not the class most probable under noise."""
    dtype: Dtype | None = None
    """Arithmetic of the network; to use a certificate, take that of its record."""
    compiled: bool | None = None
    """Compile the network; to use a certificate, do as its record says."""
    seed: int = 0
    """Random seed."""
    common: CommonOptions = Common()

    def __post_init__(self) -> None:
        check_declared(self)
        check_at_least(1, self, "n")
        check_level(self.alpha)
        check_smoothing(self)

    def run(self) -> dict[str, Any]:
        folder, files = split_names(self.names, self.model)
        if not files:
            raise ValueError(
                "a run folder and at least one image must be given, or --model and an image,"
                f" got {len(self.names)} names"
            )
        asked = NetworkAsked.by(self, folder)
        opened = open_images(asked, files, self.common)
        smoothing = opened.smoothing(seed=self.seed, dtype=self.dtype, compiled=self.compiled)
        repeats = Repeats()
        check_batch_independence(VoteCounter(opened.model, opened.images, smoothing, repeats))
        found = predict_inputs(
            opened.model,
            opened.images,
            smoothing,
            indices=range(len(files)),
            n=self.n,
            alpha=self.alpha,
            repeats=repeats,
        )
        answers = [
            {
                "image": str(path),
                "prediction": answer.prediction,
                "class": opened.name(answer.prediction),
                "votes": [[opened.name(number), votes] for number, votes in answer.votes],
            }
            for path, answer in zip(files, found, strict=True)
        ]
        said = {"n": self.n, "alpha": self.alpha, "predictions": answers, "warnings": list(opened.warnings)}
        return {**shown_images(opened, smoothing), **said}

    def show(self, result: dict[str, Any]) -> None:
        rows = []
        for answer in result["predictions"]:
            votes = ", ".join(f"{name} {count}" for name, count in answer["votes"] if count)
            rows.append([answer["image"], "abstains" if answer["class"] is None else answer["class"], votes])
        print_table(["image", "class", f"votes of {result['n']}"], rows, left=3)
        other = f"with probability {result['alpha']:g} at most"
        print(f"{other} an image gets another class than the class most probable under noise")
        print_warnings(result["warnings"])


COMMAND = Predict
