"""Monte Carlo votes of the base network under noise.

A noise sample is named by (seed, purpose, index, chunk) and its place in the chunk, so no count depends on batches.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from rhobust.certificates.blocks import ForwardPass, JoinedVotes, PendingVotes, SampleBlock, cut_blocks
from rhobust.certificates.independence import EVERY, Repeats
from rhobust.certificates.passes import FULL, MEASURED, prepared_pass
from rhobust.certificates.spec import Smoothing, check_dtype, noise_kind
from rhobust.data import to_unit
from rhobust.models.inference import guard
from rhobust.noise import LEVELS, GridTables, grid_block, key_words, normal_block, stream_key
from rhobust.proofs.plan import CHUNK
from rhobust.user_code import first_words

BY_ROWS = {"cpu": False, "cuda": True}
"""Whether grid noise is generated for all rows of a batch at once (counter-based), or stream by stream."""
SHARE = 128
"""One row in so many is kept free for inputs of earlier passes."""


class VoteCounter:
    """Counts the base network's predictions on noisy images.

    Every forward pass has one fixed shape, in evaluation mode and in the arithmetic of the smoothing. The samples of an
    example come from the streams (seed, purpose, index, chunk), so the votes of a block do not depend on the rest of
    its batch. Noise and network stay on the device; the predictions are copied to the host asynchronously. Every pass
    must return one row of logits per input. A compiled pass is made once per network and shape of image, whatever the
    number of images and the noise.

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
        example = images[:MEASURED] if images.is_floating_point() else to_unit(images[:MEASURED])
        self.passes = prepared_pass(self.model, self.shape, smoothing, self.device, example=example.float())
        self.repeats = repeats
        share = SHARE if self.passes.fixed else SHARE // EVERY
        self.repeated_rows = max(1, self.rows // share)
        """Rows of a pass that evaluate inputs of an earlier one again."""
        self._again = torch.zeros(
            self.repeated_rows if repeats else 0, *self.shape, dtype=torch.float32, device=self.device
        )
        self.images = images
        self._cached_noise: tuple[int, Tensor] = (-1, images[:0])
        self._noise_by_rows = BY_ROWS[self.device.type] and smoothing.noise == "grid"
        if smoothing.noise == "grid":
            self.base = (images * LEVELS).round().to(torch.int16) if images.is_floating_point() else images
            # Integers divided by a Python number are computed in torch's default dtype.
            self._levels = torch.full((), LEVELS, dtype=torch.float32, device=self.device)
        if self._noise_by_rows:
            self.base = self.base.flatten(1).contiguous()
            self.tables = GridTables(smoothing.sigma, self.device)

    @property
    def rows(self) -> int:
        """Inputs per pass; out of memory halves them."""
        return self.passes.rows

    @property
    def room(self) -> int:
        """Rows of the next pass that vote; the others evaluate inputs of an earlier pass again.

        Compiled, and on a GPU, these are the same in every pass; otherwise they are free while none is due.
        """
        repeats, fixed = self.repeats, self.passes.fixed
        return self.rows if repeats is None or not (fixed or repeats.due) else self.rows - self.repeated_rows

    def count(self, blocks: Sequence[SampleBlock]) -> PendingVotes | JoinedVotes:
        """Generate the noise, evaluate the network and count; together the blocks may have at most `room` samples."""
        with self._running():
            done, seen, compare = self._forward_or_halve(blocks)
            if done is None:
                # One part after the other: each may find the memory full, and halve the rows again.
                return JoinedVotes([(owners, self.count(part)) for owners, part in self._parts(blocks)], len(blocks))
            owner = np.repeat(np.arange(len(blocks)), [len(block) for block in blocks])
            size = len(blocks), self.smoothing.num_classes
            if self.device.type == "cpu":
                return PendingVotes(done.predicted.clone(), owner, size, seen, compare, None)
            given = done.predicted, seen
            predicted, watched = (torch.empty(one.shape, dtype=one.dtype, pin_memory=True) for one in given)
            predicted.copy_(done.predicted, non_blocking=True)
            watched.copy_(seen, non_blocking=True)
            ready = torch.cuda.Event()
            ready.record()
            return PendingVotes(predicted, owner, size, watched, compare, ready)

    def logits(self, blocks: Sequence[SampleBlock]) -> Tensor:
        """The network's logits for the samples of the blocks, row by row."""
        with self._running():
            done, seen, compare = self._forward_or_halve(blocks)
            if done is None:
                return torch.cat([self.logits(part) for _, part in self._parts(blocks)])
            compare(seen.cpu())
            return done.logits[: sum(map(len, blocks))].clone()

    @property
    def _reserved(self) -> int:
        return 0 if self.repeats is None else self.repeated_rows

    def _forward_or_halve(
        self, blocks: Sequence[SampleBlock]
    ) -> tuple[ForwardPass | None, Tensor, Callable[[Tensor], None]]:
        """One pass; None, and half the rows from now on, where memory runs out."""
        try:
            return self._forward(blocks)
        except FULL as error:
            full = str(error)
        self.passes.halve(full)
        if self.rows <= self._reserved:
            raise ValueError(f"a batch of {2 * self.rows} must fit into memory, but it does not: {first_words(full)}")
        return None, self._again, _ignore

    def _parts(self, blocks: Sequence[SampleBlock]) -> Iterator[tuple[list[int], list[SampleBlock]]]:
        """The samples of the blocks in parts for the rows that there are when each part is asked for."""
        owners, left = list(range(len(blocks))), list(blocks)
        while left:
            (own, part), *others = cut_blocks(left, self.rows - self._reserved)
            yield [owners[number] for number in own], part
            rest = [(owners[number], block) for own, more in others for number, block in zip(own, more, strict=True)]
            owners, left = [owner for owner, _ in rest], [block for _, block in rest]

    def warm_up(self) -> None:
        """Run one pass before anything is timed."""
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
        return self.passes.plain_logits(self.model, batch)

    def certified_logits(self, blocks: Sequence[SampleBlock], order: np.ndarray, last: Tensor) -> Tensor:
        """The logits of a whole pass, computed as in counting: compiled, and captured, where the smoothing says so.

        Args:
            blocks: Samples for all rows.
            order: The order in which they are evaluated.
            last: Inputs in the place of those last rows that do not vote.
        """
        with self._running():
            self._fill(blocks)
            inputs = self.passes.inputs
            inputs.copy_(inputs[torch.from_numpy(order).to(self.device)])
            inputs[self.rows - len(last) :] = last
            return self.passes.run(self.model).logits.clone()

    def noisy_batch(self, blocks: Sequence[SampleBlock]) -> Tensor:
        """The noisy images of the blocks, row by row, then padding."""
        with self._running():
            self._fill(blocks)
            return self.passes.inputs.clone()

    @contextmanager
    def _running(self) -> Iterator[None]:
        """The pass is this thread's alone: its inputs and its outputs are memory that others write too."""
        with self.passes.lock, torch.no_grad(), ExitStack() as stack:
            if self.device.type == "cuda":
                stack.enter_context(torch.cuda.device(self.device))
            yield

    def _forward(self, blocks: Sequence[SampleBlock]) -> tuple[ForwardPass, Tensor, Callable[[Tensor], None]]:
        """One pass, the logits of its watched and its repeated rows, and what their reader does with them."""
        repeats, most, used = self.repeats, self.room, sum(map(len, blocks))
        if used > most:
            raise ValueError(f"blocks must hold at most {most} samples in the next pass, got {used}")
        with self._running():
            self._fill(blocks)
            inputs = self.passes.inputs
            due = repeats is not None and repeats.next_pass()
            if repeats is None or not due:
                inputs[most:] = self._again[: self.rows - most]
                done = self.passes.run(self.model)
                return done, done.logits[:0], _ignore
            chosen = repeats.choose()
            self._again = self._again if chosen is None else chosen.inputs
            places = self._to_device(repeats.places(used, self.repeated_rows))
            # A copy, taken before the pass: the network may work in place.
            again = inputs[places]
            inputs[most:] = self._again
            done = self.passes.run(self.model)
            watched = repeats.watch(again, chosen)
            seen = done.logits[torch.cat([places, torch.arange(most, self.rows, device=self.device)])]

        def compare(logits: Tensor) -> None:
            watched.logits, later = np.split(logits.double().numpy(), 2)
            if chosen is not None:
                repeats.compare(chosen, later, dtype=self.smoothing.dtype, storage=logits.dtype)

        return done, seen, compare

    def _fill(self, blocks: Sequence[SampleBlock]) -> None:
        """Write the noisy images of the blocks into the inputs of the next pass, row by row, then padding."""
        inputs = self.passes.inputs
        if self._noise_by_rows:
            self.tables.write_noisy(inputs, self.base, self._row_plan(blocks))
            return
        at = 0
        for block in blocks:
            self._write_noisy(block, inputs[at : at + len(block)])
            at += len(block)
        inputs[at:] = 0

    def _write_noisy(self, block: SampleBlock, out: Tensor) -> None:
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
            torch.div(self.base[block.position].to(torch.int16) + noise, self._levels, out=out)
            return
        image = self.images[block.position]
        out.copy_((image if image.is_floating_point() else to_unit(image)) + smoothing.sigma * noise)

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

    def _to_device(self, numbers: np.ndarray) -> Tensor:
        found = torch.from_numpy(numbers)
        return found if self.device.type == "cpu" else found.pin_memory().to(self.device, non_blocking=True)


def _ignore(logits: Tensor) -> None:
    """Nothing was repeated."""
