"""What goes into a pass of the network and what comes out: sample blocks, and their votes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rhobust.proofs.plan import CHUNK


@dataclass(frozen=True, slots=True)
class SampleBlock:
    """Noise samples `first` to `stop` of one chunk of one example's stream."""

    position: int
    """The image's position in the counter's images."""
    index: int
    """The image's name in its data set."""
    purpose: str
    """What the samples are for; samples of different purposes are independent."""
    chunk: int
    first: int
    stop: int
    end: int
    """Samples of the chunk that are needed in all: this block may be cut short by the end of a batch."""

    def __len__(self) -> int:
        return self.stop - self.first


def next_block(position: int, index: int, purpose: str, *, start: int, stop: int, room: int) -> SampleBlock:
    """The samples from `start` on, as many as one chunk and the room in the batch allow."""
    chunk, first = divmod(start, CHUNK)
    end = min(CHUNK, stop - chunk * CHUNK)
    return SampleBlock(position, index, purpose, chunk, first, min(end, first + room), end)


def cut_blocks(blocks: Sequence[SampleBlock], room: int) -> list[tuple[list[int], list[SampleBlock]]]:
    """The same samples in parts of at most `room`: the blocks of each part, and which of the given ones they are of."""
    parts: list[tuple[list[int], list[SampleBlock]]] = [([], [])]
    left = room
    for number, block in enumerate(blocks):
        first = block.first
        while first < block.stop:
            if not left:
                parts.append(([], []))
                left = room
            stop = min(block.stop, first + left)
            parts[-1][0].append(number)
            parts[-1][1].append(replace(block, first=first, stop=stop))
            left, first = left - (stop - first), stop
    return parts


@dataclass(frozen=True)
class PendingVotes:
    """The votes of a batch of sample blocks, possibly still being copied from the device."""

    predicted: Tensor
    """The prediction of each row; the number of classes where the logits are NaN."""
    owner: np.ndarray
    """The block of each row that votes."""
    size: tuple[int, int]
    """Number of blocks and of classes."""
    seen: Tensor
    """Logits of the watched and of the repeated rows."""
    compare: Callable[[Tensor], None]
    """Takes them, and raises if repeated inputs have other logits than before."""
    ready: torch.cuda.Event | None

    def result(self) -> np.ndarray:
        """Votes of each block for each class, int64 `(blocks, classes)`; waits for the device."""
        if self.ready is not None:
            self.ready.synchronize()
        blocks, width = self.size
        cells = self.owner * (width + 1) + self.predicted.numpy()[: len(self.owner)]
        votes = np.bincount(cells, minlength=blocks * (width + 1)).reshape(blocks, width + 1)
        if votes[:, -1].any():
            raise ValueError("logits must be numbers, but the network returned NaN: no vote was counted")
        self.compare(self.seen)
        return votes[:, :-1]


@dataclass(frozen=True)
class JoinedVotes:
    """The votes of a batch that was counted in parts."""

    parts: "Sequence[tuple[list[int], PendingVotes | JoinedVotes]]"
    """Of each part its votes, and which block of the batch each of its blocks is of."""
    blocks: int

    def result(self) -> np.ndarray:
        """Votes of each block for each class, int64 `(blocks, classes)`; waits for the device."""
        found = [(owners, part.result()) for owners, part in self.parts]
        votes = np.zeros((self.blocks, found[0][1].shape[1]), dtype=np.int64)
        for owners, counted in found:
            np.add.at(votes, owners, counted)
        return votes


class ForwardPass(NamedTuple):
    """What one pass of a fixed shape gives."""

    predicted: Tensor
    """The class of each row, `(rows,)`; the number of classes where the logits are NaN."""
    logits: Tensor
    """`(rows, classes)`."""
