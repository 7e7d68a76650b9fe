"""Monte Carlo votes of the base network under noise.

A noise sample is named by (seed, purpose, index, chunk) and its place in the chunk, so no count depends on batches.
"""

import copy
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from rhobust.certificates.blocks import ForwardPass, PendingVotes, SampleBlock
from rhobust.certificates.repeats import EVERY, Repeats
from rhobust.certificates.spec import Dtype, Smoothing, arithmetic, check_dtype, noise_kind
from rhobust.data import to_unit
from rhobust.foreign import Foreign
from rhobust.models.fused import EvalCopy
from rhobust.models.guarded import guard
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

T = TypeVar("T")
ROWS = {"cpu": 256, "cuda": 8192}
"""Rows of a forward pass: one fixed shape, so that an example's votes do not depend on what it is batched with."""
PIXELS = 3 * 32 * 32
"""Input dimension up to which a GPU takes all rows; larger images get fewer rows, to save its memory."""
BY_ROWS = {"cpu": False, "cuda": True}
"""Whether grid noise is generated for all rows of a batch at once (counter-based), or stream by stream."""
WARM_UP = 3
"""Passes before a CUDA graph capture: compilation and allocation happen in them."""
SHARE = 128
"""One row in so many is kept free for inputs of earlier passes."""


class VoteCounter:
    """Counts the base network's predictions on noisy images.

    Every forward pass has one fixed shape, in evaluation mode and in the arithmetic of the smoothing. The samples of an
    example come from the streams (seed, purpose, index, chunk), so the votes of a block do not depend on the rest of
    its batch. Noise, network and counts stay on the device; the votes are copied to the host asynchronously. Every pass
    must return one row of logits per input.

    Args:
        model: The base network, from inputs in [0, 1] to logits.
        images: uint8 or float images, `(n, ...)`, on the network's device; multiples of 1/255 for grid noise.
        smoothing: The noise and the arithmetic.
        repeats: Inputs to evaluate again in later passes, so that a network that is no function of one input is found;
            their rows get no vote. Default: none, for a network that may draw its own noise.
    """

    def __init__(self, model: nn.Module, images: Tensor, smoothing: Smoothing, repeats: Repeats | None = None) -> None:
        check_dtype(smoothing.dtype, images.device)
        if smoothing.noise == "grid" and noise_kind(images) != "grid":
            raise ValueError(
                "images must be uint8, or multiples of 1/255 in [0, 1], for grid noise, got others: take float noise"
            )
        self.model, self.smoothing, self.device = guard(model), smoothing, images.device
        self.shape = tuple(images.shape[1:])
        self.rows = batch_rows(self.device, self.shape)
        self.repeats = repeats
        self._fixed = smoothing.compiled or self.device.type == "cuda"
        self.repeated_rows = max(1, self.rows // SHARE if self._fixed else self.rows * EVERY // SHARE)
        """Rows of a pass that evaluate inputs of an earlier one again."""
        self._again = torch.zeros(self.repeated_rows if repeats else 0, *self.shape, device=self.device)
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
        self._step: Callable[..., ForwardPass] = self._draw_and_vote if self._noise_by_rows else self._vote
        if smoothing.compiled:
            with Foreign("the network must be compiled from a copy, but copying it raised"):
                self.model = _fast_copy(model, smoothing.dtype)
            # Fixed shapes and no fallback: what was compiled is what is certified.
            self._step = torch.compile(self._step, dynamic=False)

    @property
    def room(self) -> int:
        """Rows of the next pass that vote; the others evaluate inputs of an earlier pass again.

        Compiled, and on a GPU, these are the same in every pass; otherwise they are free while none is due.
        """
        repeats = self.repeats
        return self.rows if repeats is None or not (self._fixed or repeats.due) else self.rows - self.repeated_rows

    def count(self, blocks: Sequence[SampleBlock]) -> PendingVotes:
        """Generate the noise, evaluate the network and count; together the blocks may have at most `room` samples."""
        done, seen, compare = self._forward(blocks)
        return self._fetch(done.votes[: len(blocks)], seen, compare)

    def logits(self, blocks: Sequence[SampleBlock]) -> Tensor:
        """The network's logits for the samples of the blocks, row by row."""
        done, seen, compare = self._forward(blocks)
        compare(seen.cpu())
        return done.logits[: sum(map(len, blocks))]

    def warm_up(self) -> None:
        """Compile and capture before anything is timed."""
        self.count([SampleBlock(0, 0, "warm-up", 0, 0, 1, 1)]).result()

    def seconds_per_sample(self) -> float:
        """Time per noise sample, estimated from one full batch."""
        room = self.room
        sizes = [min(CHUNK, room - start) for start in range(0, room, CHUNK)]
        blocks = [SampleBlock(0, 0, "warm-up", chunk, 0, size, size) for chunk, size in enumerate(sizes)]
        start = time.perf_counter()
        self.count(blocks).result()
        return (time.perf_counter() - start) / room

    def plain_logits(self, batch: Tensor) -> Tensor:
        """The network's logits for a batch of any size, in the arithmetic of the smoothing but not compiled."""
        with torch.no_grad(), frozen(self.model), arithmetic(self.smoothing.dtype, self.device):
            return self._checked(self._evaluate(self.model, batch), len(batch))

    def certified_logits(self, blocks: Sequence[SampleBlock], order: np.ndarray, last: Tensor) -> Tensor:
        """The logits of a whole pass, computed as in counting: compiled, and captured, where the smoothing says so.

        Args:
            blocks: Samples for all rows.
            order: The order in which they are evaluated.
            last: Inputs in the place of those last rows that do not vote.
        """
        with self._running():
            inputs = self._inputs(blocks)
            places = torch.from_numpy(order).to(self.device)
            arranged = (inputs[0][:, places],) if self._noise_by_rows else (inputs[0][places], inputs[1])
            return self._launch(*arranged, last).logits.clone()

    @contextmanager
    def _running(self) -> Iterator[None]:
        with torch.no_grad(), ExitStack() as stack:
            if self.device.type == "cuda":
                stack.enter_context(torch.cuda.device(self.device))
            if self.graph is None:
                stack.enter_context(frozen(self.model))
                stack.enter_context(arithmetic(self.smoothing.dtype, self.device))
            yield

    def _forward(self, blocks: Sequence[SampleBlock]) -> tuple[ForwardPass, Tensor, Callable[[Tensor], None]]:
        """One pass, the logits of its watched and its repeated rows, and what their reader does with them."""
        repeats, most, used = self.repeats, self.room, sum(map(len, blocks))
        if used > most:
            raise ValueError(f"blocks must hold at most {most} samples in the next pass, got {used}")
        with self._running():
            inputs = self._inputs(blocks)
            due = repeats is not None and repeats.next_pass()
            if repeats is None or not due:
                done = self._launch(*inputs, self._again[: self.rows - most])
                return done, done.logits[:0], _ignore
            chosen = repeats.choose()
            self._again = self._again if chosen is None else chosen.inputs
            places = self._to_device(repeats.places(used, self.repeated_rows))
            # A copy, taken before the pass: the network may work in place.
            again = self._noisy_rows(inputs[0][:, places]) if self._noise_by_rows else inputs[0][places]
            done = self._launch(*inputs, self._again)
            watched = repeats.watch(again, chosen)
            seen = done.logits[torch.cat([places, torch.arange(most, self.rows, device=self.device)])]

        def compare(logits: Tensor) -> None:
            watched.logits, later = np.split(logits.double().numpy(), 2)
            if chosen is not None:
                repeats.compare(chosen, later, dtype=self.smoothing.dtype, storage=logits.dtype)

        return done, seen, compare

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
        return self._to_device(plan)

    def _inputs(self, blocks: Sequence[SampleBlock]) -> tuple[Tensor, ...]:
        """What the step takes: a plan of the rows, or their noisy images and sample blocks."""
        if self._noise_by_rows:
            return (self._row_plan(blocks),)
        owner = torch.full((self.rows,), len(blocks))
        sizes = torch.tensor([len(block) for block in blocks])
        owner[: int(sizes.sum())] = torch.arange(len(blocks)).repeat_interleave(sizes)
        return self.noisy_batch(blocks), owner.to(self.device)

    def _to_device(self, numbers: np.ndarray) -> Tensor:
        found = torch.from_numpy(numbers)
        return found if self.device.type == "cpu" else found.pin_memory().to(self.device, non_blocking=True)

    def _launch(self, *inputs: Tensor) -> ForwardPass:
        if not (self._noise_by_rows and self.smoothing.compiled and self.device.type == "cuda"):
            return self._evaluate(self._step, *inputs)
        if self.graph is None:
            self._capture(inputs)
            if self.graph is None:
                return self._evaluate(self._step, *inputs)
        for fixed, given in zip(self.static, inputs, strict=True):
            fixed.copy_(given)
        self.graph.replay()
        return self.output

    def _capture(self, inputs: tuple[Tensor, ...]) -> None:
        """Capture one whole pass in a CUDA graph: one launch, the same kernels and therefore the same votes."""
        self.static = tuple(given.clone() for given in inputs)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self._evaluate(self._step, *self.static)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.output = self._step(*self.static)
            self.graph = graph
        except RuntimeError as error:
            reason = " ".join(str(error).split()[:40])
            warnings.warn(f"no CUDA graph could be captured, so votes are counted more slowly: {reason}", stacklevel=4)

    def _draw_and_vote(self, plan: Tensor, again: Tensor) -> ForwardPass:
        return self._vote(self._noisy_rows(plan), plan[2], again)

    def _noisy_rows(self, plan: Tensor) -> Tensor:
        """The noisy images of a row plan."""
        steps = grid_steps(plan[3:].T, plan[1], self.base.shape[1], self.thresholds)
        return _channels_last(self.values[steps + self.base[plan[0]]].view(-1, *self.shape))

    def _vote(self, noisy: Tensor, owner: Tensor, again: Tensor) -> ForwardPass:
        """One pass.

        Args:
            noisy: The inputs; those in the last rows are replaced by `again`.
            owner: The sample block of each row.
            again: Inputs of an earlier pass, without a vote.
        """
        width = self.smoothing.num_classes
        noisy[self.rows - len(again) :] = again
        logits = self._checked(self.model(noisy), self.rows)
        predicted = torch.where(logits.isnan().any(1), width, logits.argmax(1))
        cell = owner * (width + 1) + predicted
        votes = torch.zeros((self.rows + 1) * (width + 1), dtype=torch.int64, device=self.device)
        votes = votes.scatter_add(0, cell, torch.ones_like(cell)).view(-1, width + 1)
        return ForwardPass(votes, logits)

    def _checked(self, logits: Tensor, rows: int) -> Tensor:
        """The logits, if there is one row per input: a missing row would be answered by another one."""
        expected = rows, self.smoothing.num_classes
        if not isinstance(logits, Tensor):
            raise ValueError(f"logits must be a tensor of shape {expected}, got a {type(logits).__name__}")
        if logits.shape != expected:
            raise ValueError(f"logits must have the shape {expected}, one row per input, got {tuple(logits.shape)}")
        return logits

    def _evaluate(self, function: Callable[..., T], *arguments: Tensor) -> T:
        if not self.smoothing.compiled:
            return function(*arguments)
        with Foreign("the network must run compiled, or not be compiled, but it raised"):
            return function(*arguments)

    def _fetch(self, votes: Tensor, seen: Tensor, compare: Callable[[Tensor], None]) -> PendingVotes:
        if self.device.type == "cpu":
            return PendingVotes(votes, seen, compare, None)
        host_votes, host_seen = (torch.empty(one.shape, dtype=one.dtype, pin_memory=True) for one in (votes, seen))
        host_votes.copy_(votes, non_blocking=True)
        host_seen.copy_(seen, non_blocking=True)
        ready = torch.cuda.Event()
        ready.record()
        return PendingVotes(host_votes, host_seen, compare, ready)


def _ignore(logits: Tensor) -> None:
    """Nothing was repeated."""


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
