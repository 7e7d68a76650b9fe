"""Monte Carlo votes of the base network under noise, and the check that the network is batch-independent.

A noise sample is named by (seed, purpose, index, chunk) and its place in the chunk, so no count depends on batches.
"""

import copy
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from rhobust.certificates.spec import Dtype, Smoothing, arithmetic, check_dtype, noise_kind
from rhobust.data import to_unit
from rhobust.models.foreign import Foreign, guard
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
from rhobust.proofs.procedures import CHUNK

ROWS = {"cpu": 256, "cuda": 8192}
"""Rows of a forward pass: one fixed shape, so that an example's votes do not depend on what it is batched with."""
PIXELS = 3 * 32 * 32
"""Input dimension up to which a GPU takes all rows; larger images get fewer rows, to save its memory."""
BY_ROWS = {"cpu": False, "cuda": True}
"""Whether grid noise is generated for all rows of a batch at once (counter-based), or stream by stream."""
WARM_UP = 3
"""Passes before a CUDA graph capture: compilation and allocation happen in them."""
PROBES = 16
"""Images on which batch independence is checked."""
TOLERANCE = {"float32": 1e-4, "tf32": 1e-2, "float16": 2e-2, "bfloat16": 1e-1}
"""Change of a logit, relative to the largest one, that rounding can explain in each arithmetic."""


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
    ready: torch.cuda.Event | None

    def result(self) -> np.ndarray:
        """Votes of each block for each class, int64 `(blocks, classes)`; waits for the device."""
        if self.ready is not None:
            self.ready.synchronize()
        votes = self.votes.numpy()
        if votes[:, -1].any():
            raise ValueError("logits must be numbers, but the network returned NaN: no vote was counted")
        return votes[:, :-1]


class VoteCounter:
    """Counts the base network's predictions on noisy images.

    Every forward pass has one fixed shape, in evaluation mode and in the arithmetic of the smoothing. The samples of an
    example come from the streams (seed, purpose, index, chunk), so the votes of a block do not depend on the rest of
    its batch. Noise, network and counts stay on the device; the votes are copied to the host asynchronously.

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
        self.model, self.smoothing, self.device = guard(model), smoothing, images.device
        self.shape = tuple(images.shape[1:])
        self.rows = batch_rows(self.device, self.shape)
        self.images = images
        self.graph: torch.cuda.CUDAGraph | None = None
        self._cached_noise: tuple[int, Tensor] = (-1, images[:0])
        self._noise_by_rows = BY_ROWS[self.device.type] and smoothing.noise == "grid"
        if smoothing.noise == "grid":
            self.base = (images * LEVELS).round().to(torch.int16) if images.is_floating_point() else images
        if self._noise_by_rows:
            self.base = self.base.flatten(1)
            self.thresholds = grid_thresholds(smoothing.sigma, self.device)
            self.values = grid_values(smoothing.sigma, self.device)
        self._step: Callable[[Tensor], Tensor] = self._draw_and_vote
        self._vote_step: Callable[[Tensor, Tensor], Tensor] = self._vote
        if smoothing.compiled:
            with Foreign("the network must be compiled from a copy, but copying it raised"):
                self.model = _fast_copy(model, smoothing.dtype)
            # Fixed shapes and no fallback: what was compiled is what is certified.
            self._step = torch.compile(self._step, dynamic=False)
            self._vote_step = torch.compile(self._vote_step, dynamic=False)

    def count(self, blocks: Sequence[SampleBlock]) -> PendingVotes:
        """Generate the noise, evaluate the network and count; together the blocks may have at most `rows` samples."""
        with torch.no_grad(), ExitStack() as stack:
            if self.device.type == "cuda":
                stack.enter_context(torch.cuda.device(self.device))
            if self.graph is None:
                stack.enter_context(frozen(self.model))
                stack.enter_context(arithmetic(self.smoothing.dtype, self.device))
            if self._noise_by_rows:
                votes = self._launch(self._row_plan(blocks))
            else:
                owner = torch.full((self.rows,), len(blocks))
                sizes = torch.tensor([len(block) for block in blocks])
                owner[: int(sizes.sum())] = torch.arange(len(blocks)).repeat_interleave(sizes)
                votes = self._evaluate(self._vote_step, self.noisy_batch(blocks), owner.to(self.device))
            return self._fetch(votes[: len(blocks)])

    def warm_up(self) -> None:
        """Compile and capture before anything is timed."""
        self.count([SampleBlock(0, 0, "warm-up", 0, 0, 1, 1)]).result()

    def seconds_per_sample(self) -> float:
        """Time per noise sample, estimated from one full batch."""
        blocks = [SampleBlock(0, 0, "warm-up", chunk, 0, CHUNK, CHUNK) for chunk in range(self.rows // CHUNK)]
        start = time.perf_counter()
        self.count(blocks).result()
        return (time.perf_counter() - start) / self.rows

    def logits(self, noisy: Tensor) -> Tensor:
        """The network's logits for a batch; a failure is raised as a ValueError of one line."""
        return self._checked(self._evaluate(self.model, noisy))

    def noisy_batch(self, blocks: Sequence[SampleBlock]) -> Tensor:
        """The noisy images of the blocks, row by row, then padding."""
        if self._noise_by_rows:
            return self._noisy_rows(self._row_plan(blocks))
        batch = torch.zeros(self.rows, *self.shape, device=self.device)
        at = 0
        for block in blocks:
            batch[at : at + len(block)] = self._noisy(block)
            at += len(block)
        return _channels_last(batch)

    def _noisy(self, block: SampleBlock) -> Tensor:
        smoothing = self.smoothing
        key = stream_key(smoothing.seed, block.purpose, block.index, block.chunk)
        if self._cached_noise[0] != key or len(self._cached_noise[1]) < block.stop:
            # A CPU's stream may be cut short; a GPU's float noise is a function of the whole chunk's shape.
            shape = (block.end if self.device.type == "cpu" else CHUNK, *self.shape)
            drawn = (
                grid_block(key, shape, smoothing.sigma, self.device)
                if smoothing.noise == "grid"
                else normal_block(key, shape, self.device)
            )
            self._cached_noise = key, drawn
        noise = self._cached_noise[1][block.first : block.stop]
        if smoothing.noise == "grid":
            # One rounding of an integer over 255: the network sees a function of the grid point alone.
            return (self.base[block.position].to(torch.int16) + noise).float() / LEVELS
        image = self.images[block.position]
        return (image if image.is_floating_point() else to_unit(image)) + smoothing.sigma * noise

    def _row_plan(self, blocks: Sequence[SampleBlock]) -> Tensor:
        """For every row of a batch: its image, its place in its stream, its sample block and its stream's key."""
        sizes = [len(block) for block in blocks]
        keys = [stream_key(self.smoothing.seed, block.purpose, block.index, block.chunk) for block in blocks]
        columns = np.array(
            [
                [block.position, 0, number, *key_words(key)]
                for number, (block, key) in enumerate(zip(blocks, keys, strict=True))
            ]
        )
        plan = np.zeros((7, self.rows), dtype=np.int64)
        plan[2] = len(blocks)
        used = sum(sizes)
        plan[:, :used] = np.repeat(columns, sizes, axis=0).T
        plan[1, :used] = np.concatenate([np.arange(block.first, block.stop) for block in blocks])
        rows = torch.from_numpy(plan)
        return rows if self.device.type == "cpu" else rows.pin_memory().to(self.device, non_blocking=True)

    def _launch(self, plan: Tensor) -> Tensor:
        if self.device.type == "cpu" or not self.smoothing.compiled:
            return self._evaluate(self._step, plan)
        if self.graph is None:
            self._capture(plan)
            if self.graph is None:
                return self._evaluate(self._step, plan)
        self.plan.copy_(plan)
        self.graph.replay()
        return self.output

    def _capture(self, plan: Tensor) -> None:
        """Capture one whole pass in a CUDA graph: one launch, the same kernels and therefore the same votes."""
        self.plan = plan.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self._evaluate(self._step, self.plan)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.output = self._step(self.plan)
            self.graph = graph
        except RuntimeError as error:
            reason = " ".join(str(error).split()[:40])
            warnings.warn(f"no CUDA graph could be captured, so votes are counted more slowly: {reason}", stacklevel=4)

    def _draw_and_vote(self, plan: Tensor) -> Tensor:
        return self._vote(self._noisy_rows(plan), plan[2])

    def _noisy_rows(self, plan: Tensor) -> Tensor:
        """The noisy images of a row plan."""
        steps = grid_steps(plan[3:].T, plan[1], self.base.shape[1], self.thresholds)
        return _channels_last(self.values[steps + self.base[plan[0]]].view(self.rows, *self.shape))

    def _vote(self, noisy: Tensor, owner: Tensor) -> Tensor:
        """Votes of each block; the last column counts NaN logits, the last row the padding."""
        width = self.smoothing.num_classes
        logits = self._checked(self.model(noisy))
        predicted = torch.where(logits.isnan().any(1), width, logits.argmax(1))
        cell = owner * (width + 1) + predicted
        votes = torch.zeros((self.rows + 1) * (width + 1), dtype=torch.int64, device=self.device)
        return votes.scatter_add(0, cell, torch.ones_like(cell)).view(-1, width + 1)

    def _checked(self, logits: Tensor) -> Tensor:
        width = self.smoothing.num_classes
        if not isinstance(logits, Tensor):
            raise ValueError(f"logits must be a tensor of shape (n, {width}), got a {type(logits).__name__}")
        if logits.dim() != 2 or logits.shape[1] != width:
            raise ValueError(f"logits must have the shape (n, {width}), got {tuple(logits.shape)}")
        return logits

    def _evaluate(self, function: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
        if not self.smoothing.compiled:
            return function(*arguments)
        with Foreign("the network must run compiled, or not be compiled, but it raised"):
            return function(*arguments)

    def _fetch(self, votes: Tensor) -> PendingVotes:
        if self.device.type == "cpu":
            return PendingVotes(votes, None)
        copied = torch.empty(votes.shape, dtype=votes.dtype, pin_memory=True)
        copied.copy_(votes, non_blocking=True)
        ready = torch.cuda.Event()
        ready.record()
        return PendingVotes(copied, ready)


def check_batch_independence(counter: VoteCounter) -> list[str]:
    """Check batch independence: evaluate the same noisy inputs in different batches and positions, compare the logits.

    A certificate is about a function of one input; votes of a batch-dependent network prove nothing about it.

    Returns:
        A warning if the logits differ by no more than rounding can explain; none if they do not differ.

    Raises:
        ValueError: They differ by more, so the network is batch-dependent or random.
    """
    probes = range(min(PROBES, len(counter.images)))
    blocks = [SampleBlock(probe, probe, "alone", 0, 0, 1, 1) for probe in probes]
    with torch.no_grad(), frozen(counter.model), arithmetic(counter.smoothing.dtype, counter.device):
        batch = counter.noisy_batch(blocks)
        batch = batch[torch.arange(counter.rows) % len(blocks)]
        usual = counter.logits(batch.clone()).float()
        scale = usual.abs().max().clamp_min(1e-6)
        reversed_order = counter.logits(batch.flip(0)).float().flip(0)
        other_batch = batch.clone()
        other_batch[1::2] = 0
        other = counter.logits(other_batch).float()[::2]
    changes = other - usual[::2], reversed_order - usual
    gap = max(float(change.abs().max()) for change in changes) / float(scale)
    if gap > TOLERANCE[counter.smoothing.dtype]:
        raise ValueError(
            "the network must be batch-independent, but its logits depend on the other inputs of the batch, or on"
            f" chance (by {gap:.2g} of the largest)"
        )
    if gap == 0:
        return []
    return [
        f"the network's logits depend on an input's place in the batch by up to {gap:.1g} of the largest, which is"
        " rounding: a vote this close to a tie may differ from batch to batch"
    ]


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
