"""Whether a network is one function of one input: checked before any certificate, and while votes are counted."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rhobust.certificates.blocks import SampleBlock, next_block
from rhobust.certificates.passes import FEWEST
from rhobust.certificates.spec import Dtype

if TYPE_CHECKING:
    from rhobust.certificates.sampling import VoteCounter  # it watches inputs by `Repeats`

TOLERANCE: dict[Dtype, float] = {"float32": 1e-4, "tf32": 1e-2, "float16": 2e-2, "bfloat16": 1e-1}
"""Change of a logit, relative to the gap of the two largest ones, that rounding explains in each arithmetic."""
_STORAGE = {torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Change of a logit, relative to itself or to the largest one, that rounding explains in the type of the logits."""
_WIDE = 4e-6
"""The same for float32 and wider types."""
GROUPS = 16
"""Passes whose watched inputs are remembered, besides those of the check."""
EVERY = 8
"""One pass in so many watches inputs and evaluates earlier ones again; so does each of the first ones."""
PROBES = 16
"""Images on which batch independence is checked."""
ALONE = 3
"""Inputs that are evaluated one by one."""
SMALL = 17
"""Inputs of the one batch that is smaller than those of the counting."""
SPARED = 8
"""Part of a batch that a compiled network's original is checked on: the compiled one is checked on whole batches."""
KEPT = 4
"""Passes' worth of watched inputs that the check leaves to the counting."""


class BatchDependenceError(ValueError):
    """A network whose logits are no function of one input: nothing that was counted with it proves anything."""


@dataclass(frozen=True)
class LogitChange:
    """The largest change of a logit between two evaluations of the same inputs, in units of its tolerance."""

    ratio: float
    """Change over tolerance: 0 where nothing changed, above 1 where rounding cannot explain it."""
    change: float
    tolerance: float

    def refuse(self, where: str) -> None:
        """Raise unless rounding explains the change."""
        if self.ratio > 1:
            raise BatchDependenceError(
                "the network must be batch-independent, but its logits depend on the other inputs of the batch, on its"
                f" earlier passes or on chance: {where} a logit changes by {self.change:.2g}, where rounding explains"
                f" {self.tolerance:.2g}"
            )


def top_gaps(logits: np.ndarray) -> np.ndarray:
    """Difference of the two largest finite logits of each row, `(n,)`; 0 where there are fewer than two."""
    finite = np.where(np.isfinite(logits), logits, -np.inf)
    two = np.partition(finite, -2, axis=1)[:, -2:] if logits.shape[1] > 1 else np.zeros((len(logits), 2))
    known = np.isfinite(two).all(axis=1)
    return np.where(known, np.subtract(two[:, 1], two[:, 0], where=known, out=np.zeros(len(two))), 0.0)


def logit_change(
    once: np.ndarray, again: np.ndarray, *, dtype: Dtype, storage: torch.dtype, typical: np.ndarray | float
) -> LogitChange:
    """Compare two evaluations of the same inputs, row by row and logit by logit.

    The tolerance of logit j of row i is T max(gap_i, typical_i) + F max(|z_ij|, |z_i,top|): gap_i is the difference of
    the two largest finite logits, so neither a masked class (-inf, -1e9) nor a common offset widens it for the others;
    the second term is the rounding of the number itself. Logits that are not finite must be so, and equal, in both.

    Args:
        once: Logits, `(n, classes)`.
        again: Logits of the same inputs in another pass.
        dtype: Arithmetic of the network.
        storage: Type in which the network returned the logits.
        typical: Usual gap of such rows, so that a near tie is not held to a smaller rounding than the rows around it.
    """
    once, again = np.asarray(once, dtype=np.float64), np.asarray(again, dtype=np.float64)
    finite = np.isfinite(once)
    both = finite & np.isfinite(again)
    strange = ~both & ~((once == again) | (np.isnan(once) & np.isnan(again)))
    if strange.any():
        return LogitChange(np.inf, np.inf, 0.0)
    size = np.where(finite, np.abs(once), 0.0)
    # The largest logit, not the largest magnitude: that of a masked class is no measure of the others.
    top = np.take_along_axis(size, np.where(finite, once, -np.inf).argmax(axis=1)[:, None], axis=1)
    scale = np.maximum(top_gaps(once), typical)[:, None]
    tolerance = TOLERANCE[dtype] * scale + _STORAGE.get(storage, _WIDE) * np.maximum(size, top)
    change = np.abs(np.subtract(once, again, where=both, out=np.zeros_like(once)))
    ratio = np.divide(change, tolerance, where=change > 0, out=np.zeros_like(change))
    worst = np.unravel_index(ratio.argmax(), ratio.shape)
    return LogitChange(float(ratio[worst]), float(change[worst]), float(tolerance[worst]))


@dataclass(eq=False)
class WatchedInputs:
    """A few inputs of one pass, and the logits that they had in it."""

    inputs: Tensor
    """`(rows, ...)`, on the device."""
    logits: np.ndarray | None = None
    """`(rows, classes)`; None until the pass has been read."""


class Repeats:
    """Inputs of earlier passes, which are evaluated again at other places of later batches.

    One pass in eight, and each of the first eight, watches rows at random places and evaluates as many watched rows of
    an earlier pass again: 16 of 256 on a CPU, 64 of 8,192 on a GPU, 2 of 256 compiled on a CPU. The logits of both must
    be equal up to rounding (`logit_change`): otherwise the votes are not those of one function.

    Detection: if the logits of a share q of the inputs change from pass to pass (chance, place, other inputs), this is
    missed with probability at most (1 - q)^m after m repeated rows: one per 127 votes on a CPU, per 1,016 on a GPU or
    compiled. If from some pass on a share q has other logits than before (state), it is missed with probability at most
    (1 - q)^r in the next pass that repeats, r its 16 or 64 rows, and about (1 - q)^10r after 128 passes. The inputs of
    the check before the counting are never dropped, so slow drifts show too.

    One object serves one network in one arithmetic, over any number of images and calls; the network must not be
    trained in between.
    """

    def __init__(self) -> None:
        self.kept: list[WatchedInputs] = []
        """Inputs of the check."""
        self.recent: list[WatchedInputs] = []
        self.compared = 0
        """Rows that were evaluated again."""
        self._passes = 0
        self._random = np.random.default_rng(0)

    @property
    def due(self) -> bool:
        """Whether the next pass watches inputs and evaluates earlier ones again."""
        return self._passes < EVERY or self._passes % EVERY == 0

    def next_pass(self) -> bool:
        """Begin a pass; returns whether it was due."""
        due = self.due
        self._passes += 1
        return due

    def choose(self) -> WatchedInputs | None:
        """The inputs that the next pass evaluates again; None in the first pass."""
        known = [*self.kept, *self.recent]
        return known[self._random.integers(len(known))] if known else None

    def places(self, used: int, number: int) -> np.ndarray:
        """Rows of the next pass to watch, of those in use."""
        return self._random.integers(used, size=number)

    def watch(self, inputs: Tensor, chosen: WatchedInputs | None) -> WatchedInputs:
        """Remember inputs of a pass; if there are enough, in the place of those that it evaluated again."""
        watched = WatchedInputs(inputs)
        if len(self.recent) < GROUPS:
            self.recent.append(watched)
        else:
            dropped = self.recent.index(chosen) if chosen in self.recent else self._random.integers(GROUPS)
            self.recent[dropped] = watched
        return watched

    def compare(self, chosen: WatchedInputs, again: np.ndarray, *, dtype: Dtype, storage: torch.dtype) -> None:
        """Raise unless inputs that were evaluated again have the logits that they had, up to rounding."""
        if chosen.logits is None:
            return  # their own pass was abandoned
        self.compared += len(again)
        if np.array_equal(chosen.logits, again):
            return
        known = [group.logits for group in (*self.kept, *self.recent) if group.logits is not None]
        typical = float(np.median(top_gaps(np.concatenate(known))))
        found = logit_change(chosen.logits, again, dtype=dtype, storage=storage, typical=typical)
        found.refuse("evaluated again in another batch, the same input gets other logits;")


def check_batch_independence(counter: "VoteCounter") -> list[str]:
    """Check batch independence: evaluate the same noisy inputs in different batches and positions, compare the logits.

    A certificate is about a function of one input; votes of a batch-dependent network prove nothing about it. A batch
    of the certified shape holds different noise samples of up to 16 images. They are evaluated again in reverse order;
    shifted, with every second input replaced by others (zeros, ones, values far outside [0, 1], a ramp, negatives);
    with all but one in 16 replaced by zeros, as a last batch is; three of them one by one and 17 together. A compiled
    network is evaluated as in counting, in two orders, and before it is compiled as above on an eighth of the batch.

    Detection: a dependence on place, batch size, the other inputs or earlier passes is found surely if it changes a
    logit of one of these inputs, in one of these batches, by more than the tolerance (`logit_change`); if it changes a
    share q of the inputs, it is missed with probability at most (1 - q)^r, r = 256 rows on a CPU; on a GPU
    8,192 for a dependence of the compiled network on places and order, an eighth of that for any other. One that
    appears later, or more rarely, is left to the repeated inputs of the counting (`Repeats`).

    Returns:
        A warning if the logits differ by no more than rounding can explain; none if they do not differ.

    Raises:
        BatchDependenceError: They differ by more, so the network is batch-dependent, keeps state or is random.
    """
    rows, probes = counter.rows, min(PROBES, len(counter.images))
    blocks = _probe_blocks(probes, rows)
    # Neighbours are of different images; a batch has no run of rows that belong together.
    order = np.random.default_rng(0).permutation(rows)
    names = np.repeat([block.position for block in blocks], [len(block) for block in blocks])[order]
    whole = counter.noisy_batch(blocks)[torch.from_numpy(order).to(counter.device)]
    batch = whole
    if counter.smoothing.compiled and rows // SPARED >= FEWEST:
        rows //= SPARED
        batch = whole[:rows]
    usual = counter.plain_logits(batch.clone())
    compare = _Comparison(_numbers(usual), names[:rows], counter, usual.dtype)
    compare(counter.plain_logits(batch.flip(0)).flip(0), np.arange(rows), "in the reverse order")
    shift = rows // 3 + 1
    shifted = batch.roll(shift, 0)
    shifted[::2] = _others(batch)[::2]
    found = counter.plain_logits(shifted).roll(-shift, 0)
    compare(found, np.flatnonzero((np.arange(rows) + shift) % rows % 2), "among other inputs")
    few = torch.zeros_like(batch)
    few[: rows // 16] = batch[: rows // 16]
    compare(counter.plain_logits(few), np.arange(rows // 16), "among zeros")
    worst = compare.worst
    for first in range(ALONE):
        compare(counter.plain_logits(batch[first : first + 1].clone()), np.arange(first, first + 1), "alone")
    small = min(SMALL, rows - ALONE)
    compare(counter.plain_logits(batch[ALONE:][:small].clone()), np.arange(ALONE, ALONE + small), "in a small batch")
    if counter.smoothing.compiled:
        compare, worst = _check_compiled(counter, blocks, order, names, whole)
    _keep(counter, whole, compare)
    if worst.ratio == 0:
        return []
    return [
        f"the network's logits depend on an input's place in the batch by up to {worst.change:.1g}, which is rounding:"
        " a vote this close to a tie may differ from batch to batch"
    ]


class _Comparison:
    """Logits of other batches against those of the first one; remembers the largest change."""

    def __init__(self, usual: np.ndarray, names: np.ndarray, counter: "VoteCounter", storage: torch.dtype) -> None:
        self.usual, self.dtype, self.storage = usual, counter.smoothing.dtype, storage
        gaps = top_gaps(usual)
        # By image: an image with small logits is not measured by one with large ones.
        typical = {name: np.median(gaps[names == name]) for name in np.unique(names)}
        self.typical = np.array([typical[name] for name in names])
        self.worst = LogitChange(0.0, 0.0, 0.0)

    def __call__(self, logits: Tensor, places: np.ndarray, where: str) -> None:
        again = _numbers(logits)
        found = logit_change(
            self.usual[places],
            again[places] if len(again) == len(self.usual) else again,
            dtype=self.dtype,
            storage=self.storage,
            typical=self.typical[places],
        )
        found.refuse(where)
        if found.ratio > self.worst.ratio:
            self.worst = found


def _check_compiled(
    counter: "VoteCounter", blocks: list[SampleBlock], order: np.ndarray, names: np.ndarray, batch: Tensor
) -> tuple[_Comparison, LogitChange]:
    """The same samples in two orders, in the pass that is certified; only its last rows can hold other inputs."""
    spare = counter.rows - counter.room  # the same in every pass
    usual = counter.certified_logits(blocks, order, batch[counter.room :])
    compare = _Comparison(_numbers(usual), names, counter, usual.dtype)
    later = counter.certified_logits(blocks, order[::-1].copy(), _others(batch)[2::2][:spare])
    compare(later.flip(0), np.arange(spare, counter.rows), "compiled, in the reverse order")
    return compare, compare.worst


def _keep(counter: "VoteCounter", batch: Tensor, compare: _Comparison) -> None:
    """Leave inputs and logits to the counting; those that an earlier check left must have the same logits now."""
    if counter.repeats is None:
        return
    size = counter.repeated_rows
    groups = [
        WatchedInputs(batch[at : at + size].clone(), compare.usual[at : at + size])
        for at in range(0, KEPT * size, size)
    ]
    for before, now in zip(counter.repeats.kept, groups, strict=False):
        if torch.equal(before.inputs, now.inputs) and now.logits is not None:
            counter.repeats.compare(before, now.logits, dtype=compare.dtype, storage=compare.storage)
    counter.repeats.kept = counter.repeats.kept or groups


def _probe_blocks(probes: int, rows: int) -> list[SampleBlock]:
    """Noise samples of each probe image, together as many as a batch has rows."""
    blocks: list[SampleBlock] = []
    for probe, size in enumerate(np.diff(np.linspace(0, rows, probes + 1).astype(int)).tolist()):
        start = 0
        while start < size:
            blocks.append(next_block(probe, probe, "alone", start=start, stop=size, room=rows))
            start += len(blocks[-1])
    return blocks


def _others(batch: Tensor) -> Tensor:
    """Inputs unlike those of the batch: what a statistic over the batch would notice."""
    ramp = torch.linspace(0, 1, batch[0].numel(), dtype=torch.float32, device=batch.device).view(batch[0].shape)
    kinds = torch.stack([torch.zeros_like(ramp), ramp - 3, 4 - ramp, torch.ones_like(ramp), ramp, 1 - batch[0]])
    # The step of the kinds and that of the places have no common factor: all kinds appear at even places.
    return kinds[torch.arange(len(batch), device=batch.device) // 2 % len(kinds)]


def _numbers(logits: Tensor) -> np.ndarray:
    return logits.double().cpu().numpy()
