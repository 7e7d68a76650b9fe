"""Votes of the base network under noise: the sampling that every certificate rests on."""

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from rhobust.attacks.ascent import frozen
from rhobust.data import to_unit
from rhobust.noise import LEVELS, grid_block, grid_deviation, normal_block, stream_key

NoiseKind = Literal["grid", "float"]

CHUNK = 128
"""Draws of an example that share a stream; part of the noise's name, so it never changes."""
ROWS = {"cpu": 256, "cuda": 8192}
"""Rows of a forward pass: one fixed shape, so that an example's votes do not depend on what it is batched with."""


def noise_kind(images: Tensor) -> NoiseKind:
    """ "grid" for images on the 1/255 grid (uint8, or floats equal to k / 255), else "float"."""
    if images.dtype == torch.uint8:
        return "grid"
    on_grid = (images * LEVELS).round() / LEVELS == images
    return "grid" if bool(on_grid.all()) else "float"


def charged_alpha(alpha: float, *, sigma: float, dimension: int, draws: int, noise: NoiseKind) -> float:
    """What is left of alpha after paying for the integer sampler's distance from its exact law.

    Float noise is not charged: its certificate holds for ideal Gaussian draws only, and says so.
    """
    if noise == "float":
        return alpha
    left = alpha - draws * dimension * grid_deviation(sigma)
    if not left > 0:
        raise ValueError(f"alpha must exceed the sampler's deviation {alpha - left:.3g}, got {alpha}")
    return left


@torch.no_grad()
def count_votes(
    model: nn.Module,
    images: Tensor,
    *,
    indices: Sequence[int],
    sigma: float,
    draws: int,
    num_classes: int,
    seed: int,
    purpose: str,
    noise: NoiseKind,
) -> Tensor:
    """How often the base network answers each class under noise, int64 `(n, num_classes)`.

    The draws of an example come from the streams (seed, purpose, index, chunk): the counts do not depend on order
    or grouping. The network runs in evaluation mode on batches of one fixed shape.

    Args:
        model: The base network, from inputs in [0, 1] to logits.
        images: uint8 or float images, `(n, channels, height, width)`, on the network's device.
        indices: The examples' names in their data set, one a row.
        sigma: Standard deviation of the noise.
        draws: Draws an example.
        num_classes: Number of classes.
        seed: With purpose, index and chunk, names the noise.
        purpose: What the draws are for; stages with different purposes are independent.
        noise: "grid": integers on the pixel grid, exact; "float": float32 Gaussian.

    Raises:
        ValueError: The network's logits are not numbers, or of the wrong shape.
    """
    if not sigma > 0:
        raise ValueError(f"sigma must be > 0, got {sigma}")
    if draws < 1:
        raise ValueError(f"draws must be >= 1, got {draws}")
    if len(indices) != len(images):
        raise ValueError(f"indices must name every image ({len(images)}), got {len(indices)}")
    device = images.device
    base = (images * LEVELS).round().to(torch.int16) if images.is_floating_point() else images.to(torch.int16)
    real = images if images.is_floating_point() else to_unit(images)
    counts = torch.zeros(len(images) * num_classes, dtype=torch.int64, device=device)
    finite = torch.ones((), dtype=torch.bool, device=device)
    with frozen(model):
        for pieces in _batches(len(images), draws, ROWS[device.type]):
            rows, owners = [], []
            for position, chunk, size in pieces:
                key = stream_key(seed, purpose, int(indices[position]), chunk)
                shape = (size, *images.shape[1:])
                if noise == "grid":
                    # One rounding of an integer over 255: the network sees a function of the grid point alone.
                    rows.append((base[position] + grid_block(key, shape, sigma, device)).float() / LEVELS)
                else:
                    rows.append(real[position] + sigma * normal_block(key, shape, device))
                owners.append(torch.full((size,), position, device=device))
            batch, owner = torch.cat(rows), torch.cat(owners)
            padding = ROWS[device.type] - len(batch)
            logits = model(torch.cat([batch, batch.new_zeros((padding, *batch.shape[1:]))]))[: len(batch)]
            if logits.shape != (len(batch), num_classes):
                raise ValueError(f"logits must have the shape {(len(batch), num_classes)}, got {tuple(logits.shape)}")
            finite &= ~logits.isnan().any()
            counts += torch.bincount(owner * num_classes + logits.argmax(1), minlength=len(counts))
    if not finite:
        raise ValueError("logits must be numbers, but the network returned NaN: no vote was counted")
    return counts.view(len(images), num_classes)


def _batches(n: int, draws: int, rows: int) -> Iterator[list[tuple[int, int, int]]]:
    """Pieces (position, chunk, draws) grouped so that none is split and no group exceeds the rows."""
    group: list[tuple[int, int, int]] = []
    used = 0
    for position in range(n):
        for chunk, start in enumerate(range(0, draws, CHUNK)):
            size = min(CHUNK, draws - start)
            if used + size > rows:
                yield group
                group, used = [], 0
            group.append((position, chunk, size))
            used += size
    if group:
        yield group
