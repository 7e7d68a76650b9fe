"""Noise on a GPU in one kernel each: grid noise written straight into a network's input, and normal noise of streams.

Grid noise (`rhobust.noise.GridTables`) has the integers of `rhobust.noise.grid_steps`, from the same generator and
thresholds; nothing but the noisy images is written to memory. Needs Triton, which torch brings along on Linux.
"""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

try:
    import triton  # pyrefly: ignore[missing-import]
    import triton.language as tl  # pyrefly: ignore[missing-import]
except ImportError:  # the module can be read, and not run
    triton, tl = SimpleNamespace(jit=lambda function: function), SimpleNamespace(constexpr=None)

PAIRS = 512
"""Pairs of samples per block: a call of the generator gives two."""
GROUPS = 256
"""Calls of the generator per block of normal samples: each gives four."""


@triton.jit
def _sample(high, low, cells, thresholds, count, SEVERAL: tl.constexpr, STEPS: tl.constexpr):
    """The number of thresholds that a uniform 62-bit integer reaches."""
    uniform = (high.to(tl.int64) << 30) | (low.to(tl.int64) >> 2)
    cell = tl.load(cells + (high >> 16).to(tl.int32))
    found = cell & (SEVERAL - 1)
    edge = tl.load(thresholds + tl.minimum(found, count - 1))
    found += ((uniform >= edge) & (found < count)).to(tl.int32)
    if tl.max(cell) >= SEVERAL:
        # Few cells hold more than one threshold, mostly in the tails: then all of the block search the whole table.
        first = tl.zeros_like(found)
        last = first + count
        for _ in tl.static_range(STEPS):
            middle = (first + last) // 2
            inside = first < last
            reached = tl.load(thresholds + middle, mask=inside, other=0) <= uniform
            first = tl.where(inside & reached, middle + 1, first)
            last = tl.where(inside & (reached == 0), middle, last)
        found = first
    return found


@triton.jit
def _noisy(
    out,
    images,
    plan,
    cells,
    thresholds,
    values,
    count,
    rows,
    size: tl.constexpr,
    plane: tl.constexpr,
    inner: tl.constexpr,
    SEVERAL: tl.constexpr,
    STEPS: tl.constexpr,
    PAIRS: tl.constexpr,
):
    row = tl.program_id(0)
    image, place = tl.load(plan + row), tl.load(plan + rows + row)
    key0, key1 = tl.load(plan + 3 * rows + row), tl.load(plan + 4 * rows + row)
    key2, key3 = tl.load(plan + 5 * rows + row), tl.load(plan + 6 * rows + row)
    pair = tl.program_id(1) * PAIRS + tl.arange(0, PAIRS)
    counter = (place * ((size + 1) // 2) + pair).to(tl.uint32)
    zero = tl.zeros_like(counter)
    word0, word1, word2, word3 = tl.philox(
        key0 | (key1 << 32), counter, zero, zero + key2.to(tl.uint32), zero + key3.to(tl.uint32)
    )
    steps = _sample(word0, word1, cells, thresholds, count, SEVERAL, STEPS)
    at = 2 * pair
    _write(out, images, values, row, image, at, steps, size, plane, inner)
    steps = _sample(word2, word3, cells, thresholds, count, SEVERAL, STEPS)
    _write(out, images, values, row, image, at + 1, steps, size, plane, inner)


@triton.jit
def _write(out, images, values, row, image, at, steps, size: tl.constexpr, plane: tl.constexpr, inner: tl.constexpr):
    """Add the samples to the image; samples are in the order (channel, place), the input is (place, channel)."""
    inside = at < size
    pixel = tl.load(images + image * size + at, mask=inside, other=0).to(tl.int32)
    noisy = tl.load(values + steps + pixel, mask=inside, other=0.0)
    to = (at % plane) * inner + at // plane
    tl.store(out + row.to(tl.int64) * size + to, noisy.to(out.dtype.element_ty), mask=inside)


def write_noisy(out: Tensor, images: Tensor, plan: Tensor, tables: Any) -> None:
    """Fill a batch with noisy images.

    Arguments are those of `rhobust.noise.GridTables.write_noisy`, and its tables on the device.
    """
    rows, size = len(out), images.shape[1]
    last = out.dim() == 4 and out.shape[1] > 1 and not out.is_contiguous()
    if last and not out.is_contiguous(memory_format=torch.channels_last):
        raise ValueError("out must be contiguous, or have its channels last, got another layout")
    inner = out.shape[1] if last else 1
    blocks = triton.cdiv((size + 1) // 2, PAIRS)
    _noisy[(rows, blocks)](
        out,
        images,
        plan,
        tables.cells,
        tables.thresholds,
        tables.values,
        len(tables.thresholds),
        rows,
        size,
        size // inner,
        inner,
        tables.SEVERAL,
        len(tables.thresholds).bit_length(),
        PAIRS,
    )


@triton.jit
def _normal(out, keys, streams, size, GROUPS: tl.constexpr):
    row, draw = tl.program_id(0), tl.program_id(1)
    key0, key1 = tl.load(keys + 4 * row), tl.load(keys + 4 * row + 1)
    key2, key3 = tl.load(keys + 4 * row + 2), tl.load(keys + 4 * row + 3)
    group = tl.program_id(2) * GROUPS + tl.arange(0, GROUPS)
    counter = (draw * ((size + 3) // 4) + group).to(tl.uint32)
    zero = tl.zeros_like(counter)
    word0, word1, word2, word3 = tl.philox(
        key0 | (key1 << 32), counter, zero, zero + key2.to(tl.uint32), zero + key3.to(tl.uint32)
    )
    to = out + (draw.to(tl.int64) * streams + row) * size
    at = 4 * group
    _pair(to, at, size, word0, word1)
    _pair(to, at + 2, size, word2, word3)


@triton.jit
def _pair(to, at, size, word0, word1):
    """Two normal samples by Box and Muller."""
    first = (word0.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    turn = (word1.to(tl.float32) + 0.5) * 2.3283064365386963e-10 * 6.283185307179586
    length = tl.sqrt(-2.0 * tl.log(first))
    tl.store(to + at, length * tl.cos(turn), mask=at < size)
    tl.store(to + at + 1, length * tl.sin(turn), mask=at + 1 < size)


def normal_rows(keys: Tensor, draws: int, size: int) -> Tensor:
    """Standard normal samples, `(draws, streams, size)`: see `rhobust.noise.normal_rows`."""
    out = torch.empty(draws, len(keys), size, dtype=torch.float32, device=keys.device)
    with torch.cuda.device_of(out):  # Triton launches on the current device
        _normal[(len(keys), draws, triton.cdiv((size + 3) // 4, GROUPS))](out, keys, len(keys), size, GROUPS)
    return out
