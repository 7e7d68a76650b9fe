"""How long work takes on this device: a few real steps of each network, timed."""

import tempfile
import time
from collections.abc import Callable
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from rhobust.attacks import PGD
from rhobust.certificates import Evidence, ShiftClaim, ShiftSurvey, Smoothing, count_votes
from rhobust.certificates.sampling import batch_rows
from rhobust.data import Dataset, to_unit
from rhobust.methods import Gaussian
from rhobust.noise import ExampleNoise
from rhobust.paper.cost import INPUT_GRADIENT, SIZES, WEIGHT_GRADIENT, Work
from rhobust.paper.drawing import draw, to_bytes
from rhobust.training import Run, TrainConfig
from rhobust.training.distributed import Processes
from rhobust.training.loop import Trainer
from rhobust.training.run import WEIGHTS, save_weights

ENOUGH = 0.2
"""Seconds after which a timing is not repeated."""
SLOW = 0.05
"""Seconds of a small step above which a network is timed on fewer images."""


class Rate(Work):
    """Seconds of a unit of each kind of work, with one network."""

    def seconds(self, work: Work) -> float:
        """How long work takes."""
        return sum(amount * each for amount, each in zip(astuple(work), astuple(self), strict=True))


def calibrate(run: TrainConfig, device: torch.device) -> Rate:
    """Time the network of a run on made-up images of its data's shape.

    Args:
        run: Names the network and the data; its method does not matter.
        device: Where to work.
    """
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(run, device, Path(folder))
        few, many = (16, 128) if device.type == "cpu" else (128, 1024)
        if device.type == "cpu" and bench.update(2) > SLOW:
            few, many = 2, 8
        training_call, training_row = _line(bench.update, few, many, WEIGHT_GRADIENT)
        call, row = _line(bench.gradient, few, many, INPUT_GRADIENT)
        return Rate(
            epochs=max(0.0, bench.epoch(few) - bench.update(few)),
            training_calls=training_call,
            training_rows=training_row,
            evaluations=bench.evaluation(),
            calls=call,
            rows=row,
            votes=bench.vote(),
            streams=bench.stream(),
            bounds=bound_seconds(),
        )


class Bench:
    """One network on made-up images, and its pieces of work to be timed."""

    def __init__(self, run: TrainConfig, device: torch.device, folder: Path) -> None:
        self.run, self.device, self.folder = run, device, folder
        self.trainers: dict[int, Trainer] = {}

    def trainer(self, images: int) -> Trainer:
        """A training on so many images, all in one batch."""
        if images not in self.trainers:
            size = SIZES[self.run.data]
            generator = torch.Generator().manual_seed(0)
            pixels = torch.randint(256, (images, *size.shape), generator=generator, dtype=torch.uint8)
            labels = torch.randint(size.classes, (images,), generator=generator)
            data = Dataset(self.run.data, "train", pixels, labels, tuple(map(str, range(size.classes))))
            config = replace(self.run, method=Gaussian(), batch_size=images, validation=0, keep="last")
            parts = (data.to(self.device), data.to(self.device), self.device, Processes())
            self.trainers[images] = Trainer.start(Run(self.folder, config), *parts)
        return self.trainers[images]

    def update(self, images: int) -> float:
        """Seconds of one weight update, as the training takes it."""
        trainer = self.trainer(images)
        trainer.noise.batch = images
        trainer.model.train()
        x, y, share = to_unit(trainer.fitting.images), trainer.fitting.labels, torch.ones((), device=self.device)
        return _seconds(lambda: trainer.step(x, y, share), self.device)

    def epoch(self, images: int) -> float:
        """Seconds of an epoch of one update, with everything that is measured and saved after it."""
        return _seconds(self.trainer(images).epoch, self.device)

    def gradient(self, images: int) -> float:
        """Seconds of one step of an attack."""
        trainer, steps = self.trainer(images), 4
        x, y = to_unit(trainer.fitting.images), trainer.fitting.labels
        noise = ExampleNoise(0, "calibration", range(images))
        work = partial(PGD(steps=steps), trainer.model, x, y, eps=1.0, sigma=None, rng=noise)
        return _seconds(work, self.device) / steps

    def vote(self) -> float:
        """Seconds of a noisy image that votes."""
        trainer = self.trainer(2)
        rows = batch_rows(self.device, trainer.fitting.shape)
        smoothing = Smoothing(0.1, trainer.fitting.num_classes, noise="float")
        named = {"indices": range(2), "draws": rows // 2, "purpose": "calibration"}
        work = partial(count_votes, trainer.model, to_unit(trainer.fitting.images), smoothing, **named)
        return _seconds(work, self.device) / rows

    def stream(self) -> float:
        """Seconds of a named stream with a few draws."""
        x = to_unit(self.trainer(2).fitting.images)
        return _seconds(lambda: ExampleNoise(0, "calibration", range(2)).normal(x, 4), self.device) / 2

    def evaluation(self) -> float:
        """Seconds before an evaluation looks at its first image: the weights are read, the data is named."""
        trainer = self.trainer(2)
        save_weights(self.folder / WEIGHTS, trainer.model, trainer.fitting, trainer.run.config)
        size = SIZES[self.run.data]
        pixels = torch.zeros((size.test, *size.shape), dtype=torch.uint8)
        test = Dataset(
            self.run.data, "test", pixels, torch.zeros(size.test, dtype=torch.int64), trainer.fitting.classes
        )

        def work() -> None:
            Run(self.folder, trainer.run.config).load_model(self.device)
            test.fingerprint()

        return _seconds(work, self.device)


def bound_seconds() -> float:
    """Seconds of a distributional certificate for one radius, once the votes are there."""
    eps, errors = (0.05, 0.1), np.resize(np.arange(5), 500)
    survey = ShiftSurvey(ShiftClaim(), Smoothing(0.1, 2, noise="float"), points=len(errors), dimension=64)
    work = partial(survey.certificate, Evidence(errors), eps)
    return _seconds(work, torch.device("cpu")) / len(eps)


def drawing_seconds() -> float:
    """Seconds of a figure of two panels, drawn and written twice."""
    curve = {
        "colour": "NAL",
        "kind": "",
        "dash": "solid",
        "label": "",
        "falling": False,
        "x": [0, 1],
        "y": [0, 1],
        "low": [0, 0],
        "high": [1, 1],
        "n": 1,
    }
    panel = {"title": "", "x": "", "y": "", "curves": [curve] * 6}
    document = {"name": "", "title": "", "notes": [], "columns": 2, "panels": [panel, panel]}

    def work() -> None:
        figure = draw(document)
        to_bytes(figure, "svg")
        to_bytes(figure, "pdf")

    return _seconds(work, torch.device("cpu"))


def _line(seconds: Callable[[int], float], few: int, many: int, cost: int) -> tuple[float, float]:
    """Seconds of a call and of a row in it, from two sizes; neither is negative."""
    short, long = seconds(few), seconds(many)
    row = max((long - short) / (many - few), long / many / 10)
    return max(0.0, short - few * row), row / cost


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """The mean of a few timings after one that is not counted."""
    work()
    times: list[float] = []
    while sum(times) < ENOUGH:
        _wait(device)
        start = time.perf_counter()
        work()
        _wait(device)
        times.append(time.perf_counter() - start)
    return sum(times) / len(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
