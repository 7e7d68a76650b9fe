"""Bounded losses, and their samples under noise."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rhobust.certificates.independence import Repeats
from rhobust.certificates.sampling import VoteCounter
from rhobust.certificates.schedule import UniformSchedule, check_names
from rhobust.certificates.spec import Smoothing
from rhobust.noise import stream_key
from rhobust.settings import check_count


class BoundedLoss(Protocol):
    """A loss with values in [0, bound]."""

    @property
    def bound(self) -> float:
        """M, the largest loss."""
        ...

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        """Loss per row, `(n,)`."""
        ...


@dataclass(frozen=True)
class ZeroOne:
    """1 if the prediction is wrong, else 0."""

    @property
    def bound(self) -> float:
        return 1.0

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        return (logits.argmax(1) != y).double()


@dataclass(frozen=True)
class ClippedCrossEntropy:
    """min(cross-entropy, bound), in float64."""

    bound: float

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits.double(), y, reduction="none").clamp(0.0, self.bound)


@dataclass(frozen=True, slots=True)
class SampledLosses:
    """Losses and wrong predictions of each point under its noise samples."""

    values: np.ndarray
    """Losses, float64 `(points, draws)`, in sampling order."""
    errors: np.ndarray
    """Wrong predictions per point."""


def sample_logits(
    model: nn.Module,
    images: Tensor,
    smoothing: Smoothing,
    *,
    indices: Sequence[int],
    draws: int,
    purpose: str,
    repeats: Repeats | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits of every noise sample, image by image: (place of each row's image, logits); arguments of `count_votes`.

    Raises:
        ValueError: The network's logits are not numbers.
        BatchDependenceError: Inputs that were evaluated again have other logits.
    """
    check_count("draws", draws)
    check_names(indices, images)
    counter = VoteCounter(model, images, smoothing, repeats)
    schedule = UniformSchedule(indices, draws, purpose, smoothing.num_classes)
    while blocks := schedule.next_blocks(counter.room):
        sizes = torch.tensor([len(block) for block in blocks])
        owner = torch.tensor([block.position for block in blocks]).repeat_interleave(sizes).to(images.device)
        logits = counter.logits(blocks)
        if logits.isnan().any():
            raise ValueError("logits must be numbers, but the network returned NaN: no loss was counted")
        yield owner, logits


def sample_votes(model: nn.Module, images: Tensor, smoothing: Smoothing, **options: Any) -> np.ndarray:
    """The class voted for under every noise sample, `(points, draws)`; options of `sample_logits`."""
    found = [logits.argmax(1) for _, logits in sample_logits(model, images, smoothing, **options)]
    return torch.cat(found).view(len(images), -1).cpu().numpy()


@torch.no_grad()
def sample_losses(
    model: nn.Module,
    images: Tensor,
    y: Tensor,
    loss: BoundedLoss,
    smoothing: Smoothing,
    *,
    indices: Sequence[int],
    draws: int,
    purpose: str,
    repeats: Repeats | None = None,
) -> SampledLosses:
    """Loss of every noise sample at every point, under the same noise that `count_votes` uses for these names.

    `y` are the labels. The other arguments are those of `count_votes`.

    Raises:
        ValueError: The network's logits are not numbers, or a loss is outside [0, bound].
        BatchDependenceError: Inputs that were evaluated again have other logits.
    """
    values: list[Tensor] = []
    wrong = torch.zeros(len(images), dtype=torch.int64, device=images.device)
    for owner, logits in sample_logits(
        model, images, smoothing, indices=indices, draws=draws, purpose=purpose, repeats=repeats
    ):
        values.append(loss(logits, y[owner]).double())
        wrong += torch.bincount(owner[logits.argmax(1) != y[owner]], minlength=len(images))
    found = torch.cat(values).view(len(images), draws).cpu().numpy()
    outside = ~((found >= 0) & (found <= loss.bound))
    if outside.any():
        raise ValueError(f"losses must be in [0, {loss.bound:.6g}], their bound, got {found[outside][0]:.6g}")
    return SampledLosses(found, wrong.cpu().numpy())


def rounding_noise(seed: int, purpose: str, indices: Sequence[int], draws: int) -> np.ndarray:
    """Uniform numbers for randomized rounding, in [0, 1) and multiples of 2^-53, one per noise sample per example."""
    keys = [stream_key(seed, f"{purpose}:dither", int(index)) for index in indices]
    return np.stack([np.random.Generator(np.random.SFC64(np.random.SeedSequence(key))).random(draws) for key in keys])
