"""Losses of the base network under noise, bounded and one for each draw."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rhobust.attacks.ascent import frozen
from rhobust.declared import check_count
from rhobust.noise import stream_key

from rhobust.certificates.smoothing import Smoothing, arithmetic
from rhobust.certificates.votes import Lot, VoteCounter, check_names, next_lot


class BoundedLoss(Protocol):
    """A loss with values in [0, bound]."""

    @property
    def bound(self) -> float:
        """M, the largest loss."""
        ...

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        """The loss of each row, `(n,)`."""
        ...


@dataclass(frozen=True)
class ZeroOne:
    """1 where the network errs."""

    @property
    def bound(self) -> float:
        return 1.0

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        return (logits.argmax(1) != y).double()


@dataclass(frozen=True)
class ClippedCrossEntropy:
    """The cross-entropy where it is below the bound, else the bound; in float64."""

    bound: float

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits.double(), y, reduction="none").clamp(0.0, self.bound)


@dataclass(frozen=True, slots=True)
class DrawnLosses:
    """Losses and wrong answers of each point under its draws."""

    values: np.ndarray
    """Losses, float64 `(points, draws)`, in sampling order."""
    errors: np.ndarray
    """Wrong answers of each point."""


@torch.no_grad()
def draw_losses(
    model: nn.Module,
    images: Tensor,
    y: Tensor,
    loss: BoundedLoss,
    smoothing: Smoothing,
    *,
    indices: Sequence[int],
    draws: int,
    purpose: str,
) -> DrawnLosses:
    """The loss of every draw at every point, under the noise that `count_votes` names in the same way.

    Args:
        model: The base network, from inputs in [0, 1] to logits.
        images: uint8 or float images, `(n, channels, height, width)`, on the network's device.
        y: Their labels.
        loss: A loss with values in [0, bound].
        smoothing: The noise and the arithmetic.
        indices: The examples' names in their data set, one a row.
        draws: Draws an example.
        purpose: What the draws are for.

    Raises:
        ValueError: The network's logits are not numbers, or a loss lies outside [0, bound].
    """
    check_count("draws", draws)
    check_names(indices, images)
    values: list[Tensor] = []
    wrong = torch.zeros(len(images), dtype=torch.int64, device=images.device)
    finite = torch.ones((), dtype=torch.bool, device=images.device)
    counter = VoteCounter(model, images, smoothing)
    with frozen(model) as lent, arithmetic(smoothing.dtype, images.device):
        for lots in _batches(indices, draws, purpose, counter.rows):
            sizes = torch.tensor([len(lot) for lot in lots])
            owner = torch.tensor([lot.position for lot in lots]).repeat_interleave(sizes).to(images.device)
            logits = lent(counter.fill(lots))[: len(owner)]
            finite &= ~logits.isnan().any()
            values.append(loss(logits, y[owner]).double())
            wrong += torch.bincount(owner[logits.argmax(1) != y[owner]], minlength=len(images))
    if not finite:
        raise ValueError("logits must be numbers, but the network returned NaN: no loss was counted")
    found = torch.cat(values).view(len(images), draws).cpu().numpy()
    outside = ~((found >= 0) & (found <= loss.bound))
    if outside.any():
        raise ValueError(f"losses must lie in [0, {loss.bound:.6g}], their bound, got {found[outside][0]:.6g}")
    return DrawnLosses(found, wrong.cpu().numpy())


def _batches(indices: Sequence[int], draws: int, purpose: str, rows: int) -> Iterator[list[Lot]]:
    """All draws of all examples in order, in batches of `rows`; the last may be smaller."""
    held: list[Lot] = []
    room = rows
    for position, index in enumerate(indices):
        issued = 0
        while issued < draws:
            lot = next_lot(position, int(index), purpose, start=issued, stop=draws, room=room)
            held, room, issued = [*held, lot], room - len(lot), issued + len(lot)
            if not room:
                yield held
                held, room = [], rows
    if held:
        yield held


def dither_noise(seed: int, purpose: str, indices: Sequence[int], draws: int) -> np.ndarray:
    """Uniform numbers in [0, 1), multiples of 2^-53, for each draw of each example; a stream of their own."""
    keys = [stream_key(seed, f"{purpose}:dither", int(index)) for index in indices]
    return np.stack([np.random.Generator(np.random.SFC64(np.random.SeedSequence(key))).random(draws) for key in keys])
