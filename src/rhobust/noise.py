"""Named random streams, Gaussian noise, and exact integer noise on the 1/255 grid.

A stream is named by a path: (seed, purpose, index, chunk). The name determines the samples, so an example gets the
same noise for every order, batch size, number of processes and point of resumption.
"""

import hashlib
import math
import operator
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Protocol

import mpmath
import numpy as np
import torch
from torch import Tensor

from rhobust.bounds.confidence import BITS as _BITS
from rhobust.bounds.confidence import LEVELS, grid_reach
from rhobust.bounds.confidence import grid_deviation as grid_deviation

_COARSE = 16
"""Leading bits that determine nearly every sample by one table look-up."""
_WORD = 2**32 - 1
"""Mask of a 32-bit word."""
_AMBIGUOUS = np.iinfo(np.int16).min
"""In the coarse table: the leading bits do not determine the sample."""
_PIECE = 2**15
"""Samples that a CPU draws at once: what they need stays in its cache, which halves the time."""


def stream_key(seed: int, *path: str | int) -> int:
    """The 128-bit key of a named stream; equal integers of any type give the same key."""
    parts = (part if isinstance(part, str) else operator.index(part) for part in (seed, *path))
    name = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=16).digest(), "little")


def stream(seed: int, *path: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh torch generator for a named stream.

    For training, shuffling and initialisation. Torch's CPU generator uses only 32 bits of its seed, so thousands of
    such streams collide; the noise of certificates comes from `normal_block` and `grid_block`, which use the whole key.
    """
    generator = torch.Generator(device=device)
    return generator.manual_seed(stream_key(seed, *path) % 2**63)


def normal_block(key: int, shape: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
    """Standard normal float32 samples of one stream."""
    if torch.device(device).type == "cpu":
        generator = np.random.Generator(np.random.SFC64(np.random.SeedSequence(key)))
        return torch.from_numpy(generator.standard_normal(tuple(shape), dtype=np.float32))
    # CUDA's Philox generator uses all 64 bits of its seed.
    generator = torch.Generator(device=device).manual_seed(key % 2**63)
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float32, device=device)


def grid_block(key: int, shape: Sequence[int], sigma: float, device: torch.device | str = "cpu") -> Tensor:
    """Integer samples k (int16) with P(k) = Phi((k + 1/2) / (255 sigma)) - Phi((k - 1/2) / (255 sigma)).

    k / 255 is Gaussian noise of standard deviation sigma rounded to the pixel grid. For x on the grid, x + k / 255
    is exactly the rounding of x + z with z ~ N(0, sigma^2), so every Gaussian smoothing theorem holds for the
    classifier "round, then predict". The total variation error is at most `grid_deviation(sigma)` per coordinate.
    """
    table = _grid_table(sigma)
    if torch.device(device).type == "cpu":
        generator, k = np.random.SFC64(np.random.SeedSequence(key)), np.empty(tuple(shape), np.int16)
        for piece in np.split(k.reshape(-1), range(_PIECE, k.size, _PIECE)):
            raw = generator.random_raw(piece.size)
            # Indices of 16 bits are in range; "clip" spares the buffer that "raise" needs.
            table.coarse.take((raw >> np.uint64(64 - _COARSE)).view(np.int64), out=piece, mode="clip")
            open_cells = np.flatnonzero(piece == _AMBIGUOUS)
            piece[open_cells] = table.search(raw[open_cells] >> np.uint64(64 - _BITS))
        return torch.from_numpy(k)
    rows = torch.arange(shape[0], device=device)
    words = torch.tensor(key_words(key), device=device).expand(len(rows), 4)
    steps = grid_steps(words, rows, int(np.prod(tuple(shape[1:]))), grid_thresholds(sigma, device))
    return (steps + table.first).to(torch.int16).view(tuple(shape))


def key_words(key: int) -> list[int]:
    """The four 32-bit words of a stream's key."""
    return [key >> shift & _WORD for shift in (0, 32, 64, 96)]


def grid_steps(keys: Tensor, rows: Tensor, size: int, thresholds: Tensor) -> Tensor:
    """Samples of the distribution of `grid_block` for any rows of any streams at once, `(n, size)`.

    They come from the counter-based generator Philox4x32-10, so a row does not need the rows before it, and the same
    key gives the same samples on every GPU. A sample is the number of thresholds it exceeds; plus the first integer of
    the table, it is the k of `grid_block`.

    Args:
        keys: The key words of each row's stream, int64 `(n, 4)`.
        rows: The index of each row in its stream, int64 `(n,)`.
        size: Samples per row.
        thresholds: From `grid_thresholds`.
    """
    pairs = (size + 1) // 2
    counter = rows[:, None] * pairs + torch.arange(pairs, device=rows.device)
    zero = torch.zeros_like(counter)
    words = philox((counter, zero, zero + keys[:, 2:3], zero + keys[:, 3:4]), (keys[:, 0:1], keys[:, 1:2]))
    high, low = torch.stack(words[::2], dim=-1), torch.stack(words[1::2], dim=-1)
    uniform = (high << (_BITS - 32)) | (low >> (64 - _BITS))
    return torch.bucketize(uniform.flatten(1)[:, :size].contiguous(), thresholds, right=True)


def normal_rows(keys: Sequence[int], draws: int, size: int, device: torch.device | str) -> Tensor:
    """Standard normal float32 samples of many streams at once, `(draws, streams, size)`, for a GPU.

    Two samples are a Box-Muller pair of two words of Philox4x32-10, so the samples of a stream do not depend on the
    other streams. On a GPU it is one kernel, by Triton, which may round the last digits otherwise.
    """
    words = torch.tensor([key_words(key) for key in keys])
    if torch.device(device).type == "cuda":
        words = words.pin_memory().to(device, non_blocking=True)
        if (kernels := _kernels()) is not None:
            return kernels.normal_rows(words, draws, size)
    groups = (size + 3) // 4
    counter = torch.arange(draws * groups, device=device).view(draws, 1, groups)
    zero = torch.zeros_like(counter)
    first, second, third, fourth = words.T[:, :, None]
    uniform = [
        (word.float() + 0.5) * 2**-32 for word in philox((counter, zero, zero + third, zero + fourth), (first, second))
    ]
    pairs = []
    for radius, angle in (uniform[:2], uniform[2:]):
        length, turn = (-2 * radius.log()).sqrt(), 2 * math.pi * angle
        pairs += [length * turn.cos(), length * turn.sin()]
    return torch.stack(pairs, dim=-1).flatten(2)[..., :size]


def philox(counter: tuple[Tensor, ...], key: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Four random 32-bit words for every counter, by Philox4x32-10 (Salmon et al., 2011), in int64 tensors."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        # The products overflow 63 bits; the bits that are used are correct.
        left, right = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1 = (right >> 32) & _WORD ^ c1 ^ k0, right & _WORD
        c2, c3 = (left >> 32) & _WORD ^ c3 ^ k1, left & _WORD
        k0, k1 = (k0 + 0x9E3779B9) & _WORD, (k1 + 0xBB67AE85) & _WORD
    return c0, c1, c2, c3


@lru_cache(maxsize=32)
def grid_thresholds(sigma: float, device: torch.device | str) -> Tensor:
    """The sampler's thresholds for a uniform 62-bit integer, int64, on a device."""
    return torch.from_numpy(_grid_table(sigma).thresholds.astype(np.int64)).to(device)


def grid_values(sigma: float, device: torch.device | str) -> Tensor:
    """The float32 nearest to each grid point that an 8-bit image plus noise can take."""
    first = _grid_table(sigma).first
    return (torch.arange(first, LEVELS - first + 1).float() / LEVELS).to(device)


class GridTables:
    """The grid sampler's tables on a device, and noisy images by them."""

    SEVERAL = 2**20
    """Marks a cell with more than one threshold; more than there are thresholds."""
    PART = 2**22
    """Samples that are drawn at once without the kernel, to save memory."""

    def __init__(self, sigma: float, device: torch.device) -> None:
        self.thresholds = grid_thresholds(sigma, device)
        self.values = grid_values(sigma, device)
        self.cells = torch.from_numpy(_threshold_cells(sigma)).to(device)
        """For each value of the leading 16 bits the number of thresholds that its least number reaches, int32."""

    def write_noisy(self, out: Tensor, images: Tensor, plan: Tensor) -> None:
        """Fill a batch with images plus noise, `grid_steps` of each row's stream: on a GPU in one kernel, by Triton.

        Args:
            out: `(rows, ...)`; of four dimensions on a GPU with the channels last.
            images: Integers in [0, 255], `(n, size)`.
            plan: Of each row the image, the place in its stream, a number that is not read, and the four words of its
                stream's key, int64 `(7, rows)`.
        """
        if out.is_cuda and (kernels := _kernels()) is not None:
            kernels.write_noisy(out, images, plan, self)
            return
        part = max(1, self.PART // images.shape[1])
        for first in range(0, len(out), part):
            some = plan[:, first : first + part]
            steps = grid_steps(some[3:].T, some[1], images.shape[1], self.thresholds)
            out[first : first + part] = self.values[steps + images[some[0]]].view(-1, *out.shape[1:]).to(out.dtype)


@lru_cache(maxsize=1)
def _kernels() -> ModuleType | None:
    """The kernels, tried once; None with a warning where Triton cannot compile."""
    if find_spec("triton") is None:
        return None  # not on this platform; nothing that the user could do
    try:
        kernels = import_module("rhobust.noise_kernel")
        tables = GridTables(0.25, torch.device("cuda"))
        plan = torch.arange(14, device="cuda").view(7, 2).contiguous() * 40507 % 2**31
        plan[:2] = 0
        images = torch.zeros(1, 7, dtype=torch.uint8, device="cuda")
        out = torch.empty(2, 7, dtype=torch.float32, device="cuda")
        kernels.write_noisy(out, images, plan, tables)
        expected = tables.values[grid_steps(plan[3:].T, plan[1], 7, tables.thresholds)]
        if not torch.equal(out, expected):
            raise ValueError("it draws other numbers")
        keys = [2**100 + 40507, 2**127 - 12345]
        drawn = kernels.normal_rows(torch.tensor([key_words(key) for key in keys], device="cuda"), 3, 7)
        if not torch.allclose(drawn.cpu(), normal_rows(keys, 3, 7, "cpu"), atol=1e-3):
            raise ValueError("it draws other normal numbers")
    except Exception as error:  # whatever a compiler raises
        reason = " ".join(str(error).split()[:20])
        warnings.warn(f"noise is drawn without its kernel, more slowly: {reason}", stacklevel=3)
        return None
    return kernels


class Noise(Protocol):
    """A source of standard normal noise for a batch of examples."""

    def normal(self, x: Tensor, draws: int) -> Tensor:
        """Fresh samples, `(draws, *x.shape)`, on the device of x."""
        ...


@dataclass(frozen=True)
class BatchNoise:
    """Noise of a whole batch from one generator: fast, for training."""

    generator: torch.Generator

    def normal(self, x: Tensor, draws: int) -> Tensor:
        return torch.randn((draws, *x.shape), generator=self.generator, dtype=torch.float32, device=x.device)


@dataclass(frozen=True)
class DrawnNoise:
    """Fixed samples: the same at every call."""

    block: Tensor

    def normal(self, x: Tensor, draws: int) -> Tensor:
        return self.block


class ExampleNoise:
    """Noise keyed by each example's index, independent of its batch.

    Call number c uses the streams (seed, purpose, index, c).
    """

    def __init__(self, seed: int, purpose: str, indices: Sequence[int]) -> None:
        self.seed, self.purpose, self.indices = seed, purpose, tuple(indices)
        self.calls = 0

    def normal(self, x: Tensor, draws: int) -> Tensor:
        if len(x) != len(self.indices):
            raise ValueError(f"x must hold one row per index ({len(self.indices)}), got {len(x)} rows")
        keys = [stream_key(self.seed, self.purpose, index, self.calls) for index in self.indices]
        self.calls += 1
        if x.is_cuda:
            return normal_rows(keys, draws, x[0].numel(), x.device).view(draws, *x.shape)
        blocks = [normal_block(key, (draws, *x.shape[1:]), x.device) for key in keys]
        return torch.stack(blocks, dim=1)


def noisy_copies(x: Tensor, sigma: float, draws: int, rng: Noise) -> Tensor:
    """`draws` noisy copies of every example in one batch, `(draws * n, ...)`, the first copy of all examples first."""
    return (x + sigma * rng.normal(x, draws)).flatten(0, 1)


@dataclass(frozen=True, eq=False)
class _GridTable:
    first: int
    """The integer below the first threshold."""
    thresholds: np.ndarray
    """uint64: round(2^62 Phi((k + 1/2) / (255 sigma))) for k = first, first + 1, ..."""
    coarse: np.ndarray
    """int16: the sample for each value of the leading bits, or `_AMBIGUOUS` if a threshold is inside the cell."""

    def search(self, uniform: np.ndarray) -> np.ndarray:
        return (np.searchsorted(self.thresholds, uniform, side="right") + self.first).astype(np.int16)


@lru_cache(maxsize=32)
def _threshold_cells(sigma: float) -> np.ndarray:
    """For each value of the leading bits: the thresholds that its least number reaches, marked if several are inside.

    A number in a cell reaches that many thresholds or, with one inside, one more: a look-up and a comparison.
    """
    thresholds = _grid_table(sigma).thresholds
    first = np.arange(2**_COARSE, dtype=np.uint64) << np.uint64(_BITS - _COARSE)
    low = np.searchsorted(thresholds, first, side="right")
    high = np.searchsorted(thresholds, first + np.uint64(2 ** (_BITS - _COARSE) - 1), side="right")
    return (low + GridTables.SEVERAL * (high > low + 1)).astype(np.int32)


@lru_cache(maxsize=32)
def _grid_table(sigma: float) -> _GridTable:
    last = grid_reach(sigma)
    with mpmath.workdps(40):
        scale = LEVELS * mpmath.mpf(float(sigma))  # mpmath does not accept numpy's float32
        upper = [int(mpmath.nint(mpmath.ncdf((k + 0.5) / scale) * 2**_BITS)) for k in range(last)]
    # Phi(-t) = 1 - Phi(t) makes the table and the distribution symmetric.
    thresholds = np.array([2**_BITS - value for value in reversed(upper)] + upper, dtype=np.uint64)
    table = _GridTable(-last, thresholds, np.empty(0, np.int16))
    cells = np.arange(2**_COARSE, dtype=np.uint64) << np.uint64(_BITS - _COARSE)
    low, high = table.search(cells), table.search(cells + np.uint64(2 ** (_BITS - _COARSE) - 1))
    coarse = np.where(low == high, low, _AMBIGUOUS).astype(np.int16)
    return replace(table, coarse=coarse)
