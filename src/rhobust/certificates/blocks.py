"""What goes into a pass of the network and what comes out: sample blocks, and their votes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rhobust.proofs.procedures import CHUNK


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


@dataclass(frozen=True)
class PendingVotes:
    """The votes of a batch of sample blocks, possibly still being copied from the device."""

    votes: Tensor
    seen: Tensor
    """Logits of the watched and of the repeated rows."""
    compare: Callable[[Tensor], None]
    """Takes them, and raises if repeated inputs have other logits than before."""
    ready: torch.cuda.Event | None

    def result(self) -> np.ndarray:
        """Votes of each block for each class, int64 `(blocks, classes)`; waits for the device."""
        if self.ready is not None:
            self.ready.synchronize()
        votes = self.votes.numpy()
        if votes[:, -1].any():
            raise ValueError("logits must be numbers, but the network returned NaN: no vote was counted")
        self.compare(self.seen)
        return votes[:, :-1]


class ForwardPass(NamedTuple):
    """What one pass of a fixed shape gives."""

    votes: Tensor
    """Votes of each block; the last column counts NaN logits, the last row the padding."""
    logits: Tensor
    """`(rows, classes)`."""
