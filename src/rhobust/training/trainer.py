"""A training in progress: its state, its epochs, and its checkpoints."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rhobust.data import Dataset, augment, channel_statistics, cutmix, epoch_batches, to_unit
from rhobust.lock import Ownership
from rhobust.models import Mirrored, build_model, start_from
from rhobust.models.inference import load_state, move_to, output_width, own_inputs, state_of
from rhobust.noise import BatchNoise, stream, stream_key
from rhobust.records import RESUME
from rhobust.training.distributed import ProcessGroup, ShardNoise
from rhobust.training.metrics import (
    accuracy_under_noise,
    clean_accuracy,
    robust_accuracy,
)
from rhobust.training.run import (
    Run,
    load_checkpoint,
    save_checkpoint,
    save_metrics,
)
from rhobust.training.step import CompiledStep, TrainingStep, learning_rate, make_optimizer, set_learning_rate
from rhobust.training.teacher import Teacher
from rhobust.user_code import UserCode

CHECKPOINT_SHARE = 0.01
"""Largest fraction of the time spent on checkpoints; an epoch that was not saved is repeated after a kill."""
STATISTICS = 50
"""Batches that renew the batch norm statistics of averaged weights; at torch's momentum of 0.1 the old ones keep a
weight of 0.005."""


@dataclass
class Trainer:
    """A run in progress: the network, its optimizer, and the metrics so far."""

    run: Run
    fitting: Dataset
    measured: Dataset
    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: TrainingStep
    noise: ShardNoise
    processes: ProcessGroup
    owner: Ownership | None
    """Writes the run's files; None in all processes but the first."""
    metrics: list[dict[str, Any]]
    average: dict[str, Tensor]
    """Exponential moving average of the weights; empty without one."""
    kept: dict[str, Tensor]
    """The weights of the best epoch so far; empty if the last epoch is kept."""
    teacher: Teacher | None = None
    """Gives a part of each label; None without one."""
    saved_at: float = -math.inf
    saving_seconds: float = 0.0

    @classmethod
    def start(
        cls,
        run: Run,
        fitting: Dataset,
        measured: Dataset,
        device: torch.device,
        processes: ProcessGroup,
        owner: Ownership | None = None,
    ) -> "Trainer":
        """Build everything, and load the last checkpoint if there is one."""
        config = run.config
        mean, deviation = channel_statistics(fitting.images)
        model = build_model(
            config.model,
            shape=fitting.shape,
            classes=fitting.num_classes,
            mean=mean,
            deviation=deviation,
            activation=config.activation,
            seed=config.seed,
            normalisation=config.normalisation,
            pretrained=config.init is not None and config.weights is None,
        )
        if config.weights is not None:
            start_from(model, config.weights)
        move_to(device, model)
        if config.factory is not None:
            width = output_width(model, fitting.images[:1].to(device))
            if width != fitting.num_classes:
                raise ValueError(
                    f"{config.factory} must return a logit for each of the {fitting.num_classes} classes, got {width}"
                )
            own_inputs(model)
        optimizer = make_optimizer(config, model, device)
        noise = ShardNoise(BatchNoise(stream(config.seed, "noise", device=device)), processes)
        parts = (model, config.method, optimizer, noise, processes, config.clip, config.weight_perturbation)
        step = TrainingStep(*parts)
        if config.fast and device.type == "cuda":
            step = CompiledStep(*parts, size=len(processes.rows(torch.arange(config.batch_size))))
        trainer = cls(run, fitting, measured, model, optimizer, step, noise, processes, owner, [], {}, {})
        if config.average:
            trainer.average = _copy(model)
        if config.teacher:
            trainer.teacher = Teacher.load(config.teacher, fitting, config.sigma, device, fast=config.fast)
        saved = load_checkpoint(run.folder / RESUME, device)
        if saved is not None:
            load_state(model, saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            trainer.average, trainer.kept, trainer.metrics = saved["average"], saved["kept"], saved["metrics"]
        return trainer

    def epoch(self) -> dict[str, Any]:
        """Train one epoch, measure, and save."""
        config, number = self.run.config, len(self.metrics) + 1
        start = time.perf_counter()
        steps = math.ceil(len(self.fitting) / config.batch_size)
        losses, squares = [], []
        with UserCode("the network must have a training mode, but it raised"):
            self.model.train()
        self.step.use(config.method_of(number), config.weight_perturbation if number > config.attack_after else 0.0)
        for index, (x, y, share) in enumerate(self.batches(number)):
            set_learning_rate(
                self.optimizer, learning_rate(config, (number - 1) * steps + index, config.epochs * steps)
            )
            loss = self.step(x, y, share)
            losses.append(loss.value * share * self.noise.batch)
            squares.append(loss.squared_distance.sum())
            self._add_to_average()
        totals = self.processes.total(torch.stack([torch.stack(losses), torch.stack(squares)]))
        self._check_finite(totals[0], number)
        loss, square = (totals.sum(1) / len(self.fitting)).tolist()
        seconds = time.perf_counter() - start
        row = {
            "epoch": number,
            "loss": loss,
            **self._measure(number),
            "distance_rms": math.sqrt(square),
            "seconds": seconds,
            "images_per_second": len(self.fitting) / seconds,
        }
        if config.keep != "last" and self.is_best(row):
            self.kept = {name: tensor.clone() for name, tensor in self.deployed().items()}
        self.metrics.append(row)
        if self.owner is not None:
            save_metrics(self.run, self.metrics, self.owner)
            self._checkpoint(self.owner)
        return row

    def _checkpoint(self, owner: Ownership) -> None:
        """Save a checkpoint, unless saving took more than its fraction of the time recently."""
        start = time.perf_counter()
        if start - self.saved_at < self.saving_seconds / CHECKPOINT_SHARE:
            return
        save_checkpoint(self.run, self.model, self.optimizer, self.average, self.kept, self.metrics, owner)
        self.saved_at = time.perf_counter()
        self.saving_seconds = self.saved_at - start

    def batches(self, epoch: int, *purpose: str) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """This process's rows of each batch, and their fraction of it; another purpose has streams of its own."""
        config, device = self.run.config, self.fitting.images.device
        order = stream(config.seed, "order", *purpose, epoch)
        crops = stream(config.seed, "augment", *purpose, epoch, device=device)
        mixing = stream(config.seed, "cutmix", *purpose, epoch, device=device)
        teaching = stream(config.seed, "teacher", *purpose, epoch, device=device)
        self.noise.whole.generator.manual_seed(stream_key(config.seed, "noise", *purpose, epoch) % 2**63)
        for indices in epoch_batches(len(self.fitting), config.batch_size, rng=order, device=device):
            images = self.fitting.images[indices]
            if config.augment:
                images = augment(images, crop=self.fitting.crop, flip=self.fitting.flip, rng=crops)
            y, classes = self.fitting.labels[indices], self.fitting.num_classes
            if config.cutmix:
                images, y = cutmix(images, y, classes=classes, probability=config.cutmix, rng=mixing)
            if y.dim() == 1 and (config.label_smoothing or self.teacher is not None):
                y = F.one_hot(y, classes)
            if config.label_smoothing:
                y = y * (1 - config.label_smoothing) + config.label_smoothing / classes
            if self.teacher is not None:
                taught = self.teacher(to_unit(images), BatchNoise(teaching))
                y = y * (1 - config.teacher_weight) + config.teacher_weight * taught
            rows = self.processes.rows(torch.arange(len(indices), device=device))
            self.noise.batch = len(indices)
            # Filled on the device: a copy from the host would wait for all steps before it.
            share = torch.full((), len(rows) / len(indices), dtype=torch.float32, device=device)
            yield to_unit(images[rows]), y[rows], share

    def deployed(self) -> dict[str, Tensor]:
        """The weights that would be saved now."""
        return self.average if self.run.config.average else state_of(self.model)

    def _measure(self, epoch: int) -> dict[str, Any]:
        """Measure the weights that would be saved, then restore those in training."""
        config = self.run.config
        training = self.step.state() if config.average else None
        if training:
            load_state(self.model, self.average)
            self._renew_statistics(epoch)
        network = Mirrored(self.model) if config.mirror else self.model
        row: dict[str, Any] = {
            "accuracy": clean_accuracy(network, self.measured),
            "accuracy_on": "validation" if config.validation else "training",
        }
        if config.sigma is not None:
            row["accuracy_under_noise"] = accuracy_under_noise(network, self.measured, config.sigma, config.seed)
        if config.measure_eps is not None:
            row["robust_accuracy"] = robust_accuracy(
                network, self.measured, config.measure_eps, config.sigma, config.seed
            )
        if training:
            self.step.restore(training)
        return row

    def _renew_statistics(self, epoch: int) -> None:
        """Give the averaged weights, which are in the network, their own batch norm statistics.

        An average of statistics belongs to no weights. These come from training steps with learning rate zero: fewer
        of them, a tenth of the epoch, if the weights are only measured and not kept.
        """
        if not any(isinstance(module, nn.modules.batchnorm._NormBase) for module in self.model.modules()):
            return
        config, count = self.run.config, STATISTICS
        if epoch < config.epochs and config.keep == "last":
            count = min(count, math.ceil(len(self.fitting) / config.batch_size / 10))
        set_learning_rate(self.optimizer, 0.0)
        passes = (self.batches(epoch, f"statistics {number}") for number in range(count))
        for x, y, share in islice(chain.from_iterable(passes), count):
            self.step(x, y, share)
        self.average = _copy(self.model)

    def is_best(self, row: dict[str, Any]) -> bool:
        """Whether an epoch is better than all before, by the accuracy that `keep` names."""
        key = {"best-clean": "accuracy", "best-robust": "robust_accuracy"}[self.run.config.keep]
        return all(row[key] > earlier[key] for earlier in self.metrics)

    def _add_to_average(self) -> None:
        decay = self.run.config.average
        if not decay:
            return
        for name, tensor in state_of(self.model).items():
            if tensor.is_floating_point():
                self.average[name].lerp_(tensor, 1 - decay)
            else:
                self.average[name].copy_(tensor)

    def _check_finite(self, losses: Tensor, epoch: int) -> None:
        wrong = (~losses.isfinite()).nonzero()
        if len(wrong):
            saved = f"{self.run.folder / RESUME} holds the epoch before" if epoch > 1 else "nothing was saved yet"
            raise FloatingPointError(
                f"the loss must stay finite, but was not in epoch {epoch}, step {int(wrong[0]) + 1}; {saved}"
            )


def _copy(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in state_of(model).items()}
