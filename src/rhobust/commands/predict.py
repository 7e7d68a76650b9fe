"""rhobust predict."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from rhobust.certificates import Dtype, Repeats, VoteCounter, check_batch_independence, predict_inputs
from rhobust.commands.images import open_images, shown_images, split_names
from rhobust.commands.options import Common, CommonOptions, print_table, print_warnings
from rhobust.commands.target import FLAT, NetworkOptions
from rhobust.settings import check_at_least, check_declared, check_level


@dataclass(frozen=True)
class ClassifierOptions(NetworkOptions):
    """Which network answers."""

    data: str | None = None
    """Data whose names of classes and size of images are those of the user's own network."""


@dataclass(frozen=True)
class Predict:
    """Classify image files by the vote of the smoothed classifier, or abstain where the vote is close.

    A network of a hub: rhobust predict --model hf:ID --sigma 0.25 --resize 256 --crop 224 photo.png
    """

    names: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN IMAGE [IMAGE ...]")]
    """A run folder, or the folder of your own network's records, and image files; with --model, image files alone."""
    network: Annotated[ClassifierOptions, FLAT] = field(default_factory=ClassifierOptions)
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

    def run(self) -> dict[str, Any]:
        folder, files = split_names(self.names, self.network.model)
        if not files:
            given = f"{self.names[0]} alone" if self.names else "no names"
            raise ValueError(f"a run folder and at least one image must be given, or --model and an image, got {given}")
        opened = open_images(self.network, folder, files, self.common)
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
