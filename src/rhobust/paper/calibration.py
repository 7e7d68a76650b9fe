"""How long work takes on this device: a few real steps of each network, timed."""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from rhobust.attacks.ascent import ascend, frozen
from rhobust.certificates import Evidence, ShiftClaim, Smoothing, count_votes, shift_certificate
from rhobust.data import Dataset, to_unit
from rhobust.methods import Gaussian
from rhobust.noise import ExampleNoise
from rhobust.training import Run, TrainConfig
from rhobust.training.loop import Trainer
from rhobust.training.processes import Processes

from .cost import INPUT_GRADIENT, SIZES, WEIGHT_GRADIENT, Work
from .drawing import draw, to_bytes

ENOUGH = 0.2
"""Seconds after which a timing is not repeated."""


@dataclass(frozen=True)
class Rate:
    """Seconds of each kind of work with one network."""

    training_call: float
    training_row: float
    call: float
    row: float
    vote: float
    stream: float
    point: float

    def training(self, work: Work) -> float:
        """Seconds of a training."""
        return work.calls * self.training_call + work.rows * self.training_row

    def evaluation(self, work: Work) -> float:
        """Seconds of an evaluation."""
        network = work.calls * self.call + work.rows * self.row + work.votes * self.vote
        return network + work.streams * self.stream + work.points * self.point


def calibrate(run: TrainConfig, device: torch.device) -> Rate:
    """Time the network of a run on made-up images of its data's shape.

    Args:
        run: Names the network and the data; its method does not matter.
        device: Where to work.
    """
    size = SIZES[run.data]
    generator = torch.Generator().manual_seed(0)
    small, large = (16, 128) if device.type == "cpu" else (128, 1024)
    images = torch.randint(256, (large, *size.shape), generator=generator, dtype=torch.uint8)
    labels = torch.randint(size.classes, (large,), generator=generator)
    data = Dataset(run.data, "train", images, labels, tuple(map(str, range(size.classes))))
    training = _line(
        {rows: _training_step(run, data.select(torch.arange(rows)), device) for rows in (small, large)},
        WEIGHT_GRADIENT,
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = _trainer(run, data, device, Path(folder))
    model, x, y = trainer.model.eval(), to_unit(images).to(device), labels.to(device)

    def gradient(rows: int) -> float:
        def objective(point: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(model(point), y[:rows], reduction="none")

        with frozen(model):
            return _seconds(lambda: ascend(objective, x[:rows], steps=1, move=lambda point, *_: point), device)

    evaluation = _line({rows: gradient(rows) for rows in (small, large)}, INPUT_GRADIENT)
    smoothing, votes = Smoothing(0.1, size.classes, noise="float"), 32
    vote = _seconds(
        lambda: count_votes(model, x[:16], smoothing, indices=range(16), draws=votes, purpose="calibration"), device
    )
    stream = _seconds(lambda: ExampleNoise(0, "calibration", range(small)).normal(x[:small], 4), device)
    return Rate(*training, *evaluation, vote / (16 * votes), stream / small, _certificate_seconds(device))


def _certificate_seconds(device: torch.device) -> float:
    """Seconds a point of a distributional certificate, once the votes are there."""
    evidence, eps = Evidence(np.resize(np.arange(5), 500)), [0.0, 0.05, 0.1]
    named = {"draws": 20, "sigma": 0.1, "dimension": 64, "alpha": 1e-3, "seed": 0}
    work = partial(shift_certificate, evidence, claim=ShiftClaim(), eps=eps, noise="float", **named)
    return _seconds(work, device) / len(evidence.errors)


def drawing_seconds() -> float:
    """Seconds of a figure of two panels, drawn and written twice."""
    curve = {"colour": "NAL", "kind": "", "dash": "solid", "x": [0, 1], "y": [0, 1], "low": [0, 0], "high": [1, 1]}
    panel = {"title": "", "x": "", "y": "", "curves": [curve] * 6}
    document = {"title": "", "columns": 2, "panels": [panel, panel]}

    def work() -> None:
        figure = draw(document)
        to_bytes(figure, "svg")
        to_bytes(figure, "pdf")

    return _seconds(work, torch.device("cpu"))


def _trainer(run: TrainConfig, data: Dataset, device: torch.device, folder: Path) -> Trainer:
    config = replace(run, method=Gaussian(), batch_size=len(data), validation=0, keep="last")
    return Trainer.start(Run(folder, config), data.to(device), data.to(device), device, Processes())


def _training_step(run: TrainConfig, data: Dataset, device: torch.device) -> float:
    """Seconds of one weight update on the whole data, as the training takes it."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = _trainer(run, data, device, Path(folder))
        trainer.noise.batch = len(data)
        trainer.model.train()
        x, y = to_unit(trainer.fitting.images), trainer.fitting.labels
        share = torch.ones((), device=device)
        return _seconds(lambda: trainer.step(x, y, share), device)


def _line(seconds: dict[int, float], cost: int) -> tuple[float, float]:
    """Seconds of a call and of a row in it, from two sizes; neither is negative."""
    (few, short), (many, long) = seconds.items()
    row = max(0.0, (long - short) / (many - few))
    return max(0.0, short - few * row), max(row, long / many / 10) / cost


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """The best of a few timings after one that is not counted."""
    work()
    best, spent = float("inf"), 0.0
    while spent < ENOUGH:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - start
        best, spent = min(best, seconds), spent + seconds
    return best
