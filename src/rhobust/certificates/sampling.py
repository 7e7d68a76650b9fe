"""Votes of the base network under noise: the sampling that every certificate rests on."""

import copy
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from rhobust.certificates.spec import Dtype, Smoothing, arithmetic, check_dtype, noise_kind
from rhobust.data import to_unit
from rhobust.models.fused import EvalCopy
from rhobust.models.inference import frozen
from rhobust.noise import (
    LEVELS,
    grid_block,
    grid_steps,
    grid_thresholds,
    grid_values,
    key_words,
    normal_block,
    stream_key,
)
from rhobust.settings import check_count

CHUNK = 128
"""Draws of an example that share a stream; part of the noise's name, so it never changes."""
ROWS = {"cpu": 256, "cuda": 8192}
"""Rows of a forward pass: one fixed shape, so that an example's votes do not depend on what it is batched with."""
PIXELS = 3 * 32 * 32
"""Numbers in an image up to which a GPU takes all rows; larger images get fewer, to spare its memory."""
BY_ROWS = {"cpu": False, "cuda": True}
"""Whether grid noise is drawn for all rows of a batch at once, by a counter, or stream by stream."""
AHEAD = {"cpu": 0, "cuda": 2}
"""Forward passes that may be under way before the first one's votes are looked at."""
WARM_UP = 3
"""Passes before a capture: compilation and allocation happen in them."""


@dataclass(frozen=True, slots=True)
class Lot:
    """Draws `first` to `stop` of one chunk of one example's stream."""

    position: int
    """Which image."""
    index: int
    """The image's name in its data set."""
    purpose: str
    """What the draws are for; stages with different purposes are independent."""
    chunk: int
    first: int
    stop: int
    end: int
    """Draws of the chunk that are needed in all: this lot may be cut short by the end of a batch."""

    def __len__(self) -> int:
        return self.stop - self.first


def next_lot(position: int, index: int, purpose: str, *, start: int, stop: int, room: int) -> Lot:
    """The draws from `start` on, as many as one chunk and the room in the batch allow."""
    chunk, first = divmod(start, CHUNK)
    end = min(CHUNK, stop - chunk * CHUNK)
    return Lot(position, index, purpose, chunk, first, min(end, first + room), end)


@dataclass(frozen=True)
class Counted:
    """The votes of a batch of lots, perhaps still on their way from the device."""

    votes: Tensor
    ready: torch.cuda.Event | None

    def result(self) -> np.ndarray:
        """Votes of each lot for each class, int64 `(lots, classes)`."""
        if self.ready is not None:
            self.ready.synchronize()
        votes = self.votes.numpy()
        if votes[:, -1].any():
            raise ValueError("logits must be numbers, but the network returned NaN: no vote was counted")
        return votes[:, :-1]


class VoteCounter:
    """Asks the network about noisy images and counts its answers.

    Every forward pass has one fixed shape, in evaluation mode and in the arithmetic of the smoothing. The draws of an
    example come from the streams (seed, purpose, index, chunk), so the votes of a lot do not depend on the batch it
    stands in. Noise, network and count stay on the device; the votes are copied to the host without waiting for them.

    Args:
        model: The base network, from inputs in [0, 1] to logits.
        images: uint8 or float images, `(n, ...)`, on the network's device; multiples of 1/255 for grid noise.
        smoothing: The noise and the arithmetic.
    """

    def __init__(self, model: nn.Module, images: Tensor, smoothing: Smoothing) -> None:
        check_dtype(smoothing.dtype, images.device)
        if smoothing.noise == "grid" and noise_kind(images) != "grid":
            raise ValueError(
                "images must be uint8, or multiples of 1/255 in [0, 1], for grid noise, got others: take float noise"
            )
        self.model, self.smoothing, self.device = model, smoothing, images.device
        self.shape = tuple(images.shape[1:])
        self.rows = batch_rows(self.device, self.shape)
        self.real = images
        self.graph: torch.cuda.CUDAGraph | None = None
        self._held: tuple[int, Tensor] = (-1, images[:0])
        self._by_rows = BY_ROWS[self.device.type] and smoothing.noise == "grid"
        if smoothing.noise == "grid":
            self.base = (images * LEVELS).round().to(torch.int16) if images.is_floating_point() else images
        if self._by_rows:
            self.base = self.base.flatten(1)
            self.thresholds = grid_thresholds(smoothing.sigma, self.device)
            self.values = grid_values(smoothing.sigma, self.device)
        self._step: Callable[[Tensor], Tensor] = self._draw_and_vote
        self._ask: Callable[[Tensor, Tensor], Tensor] = self._vote
        if smoothing.compiled:
            self.model = _fast_copy(model, smoothing.dtype)
            # Fixed shapes and no fallback: what was compiled is what is certified.
            self._step = torch.compile(self._step, dynamic=False)
            self._ask = torch.compile(self._ask, dynamic=False)

    def count(self, lots: Sequence[Lot]) -> Counted:
        """Draw, ask and count; together the lots may have at most `rows` draws."""
        with torch.no_grad(), ExitStack() as stack:
            if self.device.type == "cuda":
                stack.enter_context(torch.cuda.device(self.device))
            if self.graph is None:
                stack.enter_context(frozen(self.model))
                stack.enter_context(arithmetic(self.smoothing.dtype, self.device))
            if self._by_rows:
                votes = self._launch(self._describe(lots))
            else:
                owner = torch.full((self.rows,), len(lots))
                sizes = torch.tensor([len(lot) for lot in lots])
                owner[: int(sizes.sum())] = torch.arange(len(lots)).repeat_interleave(sizes)
                votes = self._answers(self._ask, self.fill(lots), owner.to(self.device))
            return self._fetch(votes[: len(lots)])

    def warm_up(self) -> None:
        """Compile and capture, before anybody looks at the clock."""
        self.count([Lot(0, 0, "warm-up", 0, 0, 1, 1)]).result()

    def seconds_a_draw(self) -> float:
        """How long a draw takes, by one full batch; an estimate."""
        lots = [Lot(0, 0, "warm-up", chunk, 0, CHUNK, CHUNK) for chunk in range(self.rows // CHUNK)]
        start = time.perf_counter()
        self.count(lots).result()
        return (time.perf_counter() - start) / self.rows

    def logits(self, noisy: Tensor) -> Tensor:
        """What the network answers to a batch; one that fails on it says so in one line."""
        return self._checked(self._answers(self.model, noisy))

    def fill(self, lots: Sequence[Lot]) -> Tensor:
        """The noisy images of the lots, row by row, then padding."""
        if self._by_rows:
            return self._noisy_rows(self._describe(lots))
        batch = torch.zeros(self.rows, *self.shape, device=self.device)
        at = 0
        for lot in lots:
            batch[at : at + len(lot)] = self._noisy(lot)
            at += len(lot)
        return _channels_last(batch)

    def _noisy(self, lot: Lot) -> Tensor:
        smoothing = self.smoothing
        key = stream_key(smoothing.seed, lot.purpose, lot.index, lot.chunk)
        if self._held[0] != key or len(self._held[1]) < lot.stop:
            # A CPU's stream may be cut short; a GPU's float noise is a function of the whole block's shape.
            shape = (lot.end if self.device.type == "cpu" else CHUNK, *self.shape)
            block = (
                grid_block(key, shape, smoothing.sigma, self.device)
                if smoothing.noise == "grid"
                else normal_block(key, shape, self.device)
            )
            self._held = key, block
        noise = self._held[1][lot.first : lot.stop]
        if smoothing.noise == "grid":
            # One rounding of an integer over 255: the network sees a function of the grid point alone.
            return (self.base[lot.position].to(torch.int16) + noise).float() / LEVELS
        image = self.real[lot.position]
        return (image if image.is_floating_point() else to_unit(image)) + smoothing.sigma * noise

    def _describe(self, lots: Sequence[Lot]) -> Tensor:
        """For every row of a batch its image, its place in its stream, its lot and its stream's key."""
        sizes = [len(lot) for lot in lots]
        keys = [stream_key(self.smoothing.seed, lot.purpose, lot.index, lot.chunk) for lot in lots]
        columns = np.array(
            [
                [lot.position, 0, number, *key_words(key)]
                for number, (lot, key) in enumerate(zip(lots, keys, strict=True))
            ]
        )
        plan = np.zeros((7, self.rows), dtype=np.int64)
        plan[2] = len(lots)
        used = sum(sizes)
        plan[:, :used] = np.repeat(columns, sizes, axis=0).T
        plan[1, :used] = np.concatenate([np.arange(lot.first, lot.stop) for lot in lots])
        described = torch.from_numpy(plan)
        return described if self.device.type == "cpu" else described.pin_memory().to(self.device, non_blocking=True)

    def _launch(self, plan: Tensor) -> Tensor:
        if self.device.type == "cpu" or not self.smoothing.compiled:
            return self._answers(self._step, plan)
        if self.graph is None:
            self._capture(plan)
            if self.graph is None:
                return self._answers(self._step, plan)
        self.plan.copy_(plan)
        self.graph.replay()
        return self.output

    def _capture(self, plan: Tensor) -> None:
        """Record one whole pass, so that it takes one launch; the kernels, and so the votes, stay the same."""
        self.plan = plan.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self._answers(self._step, self.plan)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.output = self._step(self.plan)
            self.graph = graph
        except RuntimeError as error:
            reason = " ".join(str(error).split()[:40])
            warnings.warn(f"the votes could not be captured and come slower: {reason}", stacklevel=4)

    def _draw_and_vote(self, plan: Tensor) -> Tensor:
        return self._vote(self._noisy_rows(plan), plan[2])

    def _noisy_rows(self, plan: Tensor) -> Tensor:
        """The noisy images that `_describe` describes."""
        steps = grid_steps(plan[3:].T, plan[1], self.base.shape[1], self.thresholds)
        return _channels_last(self.values[steps + self.base[plan[0]]].view(self.rows, *self.shape))

    def _vote(self, noisy: Tensor, owner: Tensor) -> Tensor:
        """Votes of each lot; a last column counts answers that are not a number, a last row the padding."""
        width = self.smoothing.num_classes
        logits = self._checked(self.model(noisy))
        answer = torch.where(logits.isnan().any(1), width, logits.argmax(1))
        cell = owner * (width + 1) + answer
        votes = torch.zeros((self.rows + 1) * (width + 1), dtype=torch.int64, device=self.device)
        return votes.scatter_add(0, cell, torch.ones_like(cell)).view(-1, width + 1)

    def _checked(self, logits: Tensor) -> Tensor:
        width = self.smoothing.num_classes
        if not isinstance(logits, Tensor):
            raise ValueError(f"logits must be a tensor of shape (n, {width}), got a {type(logits).__name__}")
        if logits.dim() != 2 or logits.shape[1] != width:
            raise ValueError(f"logits must have the shape (n, {width}), got {tuple(logits.shape)}")
        return logits

    def _answers(self, ask: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
        try:
            return ask(*arguments)
        except torch.OutOfMemoryError:
            raise ValueError(
                f"the device must hold {self.rows} images in the network, but it is out of memory"
            ) from None
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0]
            hint = "; without compiling it may run" if self.smoothing.compiled else ""
            raise ValueError(
                f"the network must take inputs of shape {self.shape}, but it fails: {reason}{hint}"
            ) from error

    def _fetch(self, votes: Tensor) -> Counted:
        if self.device.type == "cpu":
            return Counted(votes, None)
        copied = torch.empty(votes.shape, dtype=votes.dtype, pin_memory=True)
        copied.copy_(votes, non_blocking=True)
        ready = torch.cuda.Event()
        ready.record()
        return Counted(copied, ready)


class Source(Protocol):
    """Decides what is drawn next from what has been counted."""

    def lots(self, room: int) -> list[Lot]:
        """The next lots, with at most `room` draws; none while it waits for votes, or when it is done."""
        ...

    def take(self, lots: Sequence[Lot], votes: np.ndarray) -> None:
        """Learn the votes of lots, in the order in which they were given out."""
        ...


def conduct(counter: VoteCounter, source: Source) -> Iterator[None]:
    """Keep the counter busy until the source is done; a step after each batch of votes that the source has taken."""
    ahead = AHEAD[counter.device.type]
    under_way: deque[tuple[list[Lot], Counted]] = deque()
    while True:
        lots = source.lots(counter.rows)
        if lots:
            under_way.append((lots, counter.count(lots)))
        elif not under_way:
            return
        if not lots or len(under_way) > ahead:
            asked, counted = under_way.popleft()
            source.take(asked, counted.result())
            yield


def count_votes(
    model: nn.Module, images: Tensor, smoothing: Smoothing, *, indices: Sequence[int], draws: int, purpose: str
) -> Tensor:
    """How often the base network answers each class under noise, int64 `(n, num_classes)`, on the images' device.

    Args:
        model: The base network, from inputs in [0, 1] to logits.
        images: uint8 or float images, `(n, channels, height, width)`, on the network's device.
        smoothing: The noise and the arithmetic.
        indices: The examples' names in their data set, one a row.
        draws: Draws an example.
        purpose: What the draws are for; stages with different purposes are independent.

    Raises:
        ValueError: The network's logits are not numbers, or of the wrong shape.
    """
    check_count("draws", draws)
    check_names(indices, images)
    source = _Fixed(indices, draws, purpose, smoothing.num_classes)
    for _ in conduct(VoteCounter(model, images, smoothing), source):
        pass
    return torch.from_numpy(source.votes).to(images.device)


class _Fixed:
    """The same number of draws for every example, one after the other."""

    def __init__(self, indices: Sequence[int], draws: int, purpose: str, num_classes: int) -> None:
        self.indices, self.draws, self.purpose = indices, draws, purpose
        self.votes = np.zeros((len(indices), num_classes), dtype=np.int64)
        self.position, self.issued = 0, 0

    def lots(self, room: int) -> list[Lot]:
        found = []
        while room and self.position < len(self.indices):
            name = int(self.indices[self.position])
            lot = next_lot(self.position, name, self.purpose, start=self.issued, stop=self.draws, room=room)
            found.append(lot)
            room, self.issued = room - len(lot), self.issued + len(lot)
            if self.issued == self.draws:
                self.position, self.issued = self.position + 1, 0
        return found

    def take(self, lots: Sequence[Lot], votes: np.ndarray) -> None:
        np.add.at(self.votes, [lot.position for lot in lots], votes)


def check_names(indices: Sequence[int], images: Tensor) -> None:
    """Refuse names of the noise that are not one an image."""
    if len(indices) != len(images):
        raise ValueError(f"indices must name every image ({len(images)}), got {len(indices)}")


def batch_rows(device: torch.device, shape: Sequence[int]) -> int:
    """Rows of a forward pass for images of a shape."""
    if device.type == "cpu":
        return ROWS["cpu"]
    size = int(np.prod(shape))
    return max(CHUNK, ROWS["cuda"] * PIXELS // max(size, PIXELS) // CHUNK * CHUNK)


def _channels_last(batch: Tensor) -> Tensor:
    return batch.contiguous(memory_format=torch.channels_last) if batch.is_cuda and batch.dim() == 4 else batch


def _fast_copy(model: nn.Module, dtype: Dtype) -> nn.Module:
    """A copy for one arithmetic and one shape: batch norm folded, convolutions in the layout that is fast on a GPU."""
    if dtype in ("bfloat16", "float16"):
        return EvalCopy(model, getattr(torch, dtype)).network
    network = copy.deepcopy(model).eval().requires_grad_(False)
    for parameter in network.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return network
