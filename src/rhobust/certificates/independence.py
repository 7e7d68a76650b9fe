"""The check before any certificate: a network must be a function of one input, in the batches that are certified."""

import numpy as np
import torch
from torch import Tensor

from rhobust.certificates.blocks import SampleBlock, next_block
from rhobust.certificates.repeats import LogitChange, WatchedInputs, logit_change, top_gaps
from rhobust.certificates.sampling import VoteCounter

PROBES = 16
"""Images on which batch independence is checked."""
ALONE = 3
"""Inputs that are evaluated one by one."""
SMALL = 17
"""Inputs of the one batch that is smaller than those of the counting."""
KEPT = 4
"""Passes' worth of watched inputs that the check leaves to the counting."""


def check_batch_independence(counter: VoteCounter) -> list[str]:
    """Check batch independence: evaluate the same noisy inputs in different batches and positions, compare the logits.

    A certificate is about a function of one input; votes of a batch-dependent network prove nothing about it. A batch
    of the certified shape holds different noise samples of up to 16 images. They are evaluated again in reverse order;
    shifted, with every second input replaced by others (zeros, ones, values far outside [0, 1], a ramp, negatives);
    with all but one in 16 replaced by zeros, as a last batch is; three of them one by one and 17 together. A compiled
    network is evaluated as in counting, too, in two orders.

    Detection: a dependence on place, batch size, the other inputs or earlier passes is found surely if it changes a
    logit of one of these inputs, in one of these batches, by more than the tolerance (`logit_change`); if it changes a
    share q of the inputs, it is missed with probability at most (1 - q)^r, r = 256 rows on a CPU, 8,192 on a GPU. One
    that appears later, or more rarely, is left to the repeated inputs of the counting (`Repeats`).

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
    batch = counter.noisy_batch(blocks)[torch.from_numpy(order).to(counter.device)]
    usual = counter.plain_logits(batch.clone())
    compare = _Comparison(_numbers(usual), names, counter, usual.dtype)
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
        compare, worst = _check_compiled(counter, blocks, order, names, batch)
    _keep(counter, batch, compare)
    if worst.ratio == 0:
        return []
    return [
        f"the network's logits depend on an input's place in the batch by up to {worst.change:.1g}, which is rounding:"
        " a vote this close to a tie may differ from batch to batch"
    ]


class _Comparison:
    """Logits of other batches against those of the first one; remembers the largest change."""

    def __init__(self, usual: np.ndarray, names: np.ndarray, counter: VoteCounter, storage: torch.dtype) -> None:
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
    counter: VoteCounter, blocks: list[SampleBlock], order: np.ndarray, names: np.ndarray, batch: Tensor
) -> tuple[_Comparison, LogitChange]:
    """The same samples in two orders, in the pass that is certified; only its last rows can hold other inputs."""
    spare = counter.rows - counter.room  # the same in every pass
    usual = counter.certified_logits(blocks, order, batch[counter.room :])
    compare = _Comparison(_numbers(usual), names, counter, usual.dtype)
    later = counter.certified_logits(blocks, order[::-1].copy(), _others(batch)[2::2][:spare])
    compare(later.flip(0), np.arange(spare, counter.rows), "compiled, in the reverse order")
    return compare, compare.worst


def _keep(counter: VoteCounter, batch: Tensor, compare: _Comparison) -> None:
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
    ramp = torch.linspace(0, 1, batch[0].numel(), device=batch.device).view(batch[0].shape)
    kinds = torch.stack([torch.zeros_like(ramp), ramp - 3, 4 - ramp, torch.ones_like(ramp), ramp, 1 - batch[0]])
    # The step of the kinds and that of the places have no common factor: all kinds appear at even places.
    return kinds[torch.arange(len(batch), device=batch.device) // 2 % len(kinds)]


def _numbers(logits: Tensor) -> np.ndarray:
    return logits.double().cpu().numpy()
