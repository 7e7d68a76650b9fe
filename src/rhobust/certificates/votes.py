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
    """The noise that fits images: "grid" on the 1/255 grid (uint8, or floats equal to k / 255), else "float"."""
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
    device = images.device
    counts = torch.zeros(len(images) * num_classes, dtype=torch.int64, device=device)
    finite = torch.ones((), dtype=torch.bool, device=device)
    pieces = noisy_rows(images, indices=indices, sigma=sigma, draws=draws, seed=seed, purpose=purpose, noise=noise)
    rows = ROWS[device.type]
    with frozen(model):
        for batch, owner in full_batches(pieces, rows):
            padding = batch.new_zeros((rows - len(batch), *batch.shape[1:]))
            logits = model(torch.cat([batch, padding]) if len(padding) else batch)[: len(batch)]
            if logits.dim() != 2 or logits.shape[1] != num_classes:
                raise ValueError(f"logits must have the shape (n, {num_classes}), got {tuple(logits.shape)}")
            finite &= ~logits.isnan().any()
            counts += torch.bincount(owner * num_classes + logits.argmax(1), minlength=len(counts))
    if not finite:
        raise ValueError("logits must be numbers, but the network returned NaN: no vote was counted")
    return counts.view(len(images), num_classes)


def noisy_rows(
    images: Tensor,
    *,
    indices: Sequence[int],
    sigma: float,
    draws: int,
    seed: int,
    purpose: str,
    noise: NoiseKind,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Noisy copies of the images, example by example and draw by draw, with the position of each row's example."""
    if not sigma > 0:
        raise ValueError(f"sigma must be > 0, got {sigma}")
    if draws < 1:
        raise ValueError(f"draws must be >= 1, got {draws}")
    if len(indices) != len(images):
        raise ValueError(f"indices must name every image ({len(images)}), got {len(indices)}")
    device = images.device
    base = (images * LEVELS).round().to(torch.int16) if images.is_floating_point() else images.to(torch.int16)
    real = images if images.is_floating_point() else to_unit(images)
    for position, index in enumerate(indices):
        for chunk, start in enumerate(range(0, draws, CHUNK)):
            key = stream_key(seed, purpose, int(index), chunk)
            shape = (min(CHUNK, draws - start), *images.shape[1:])
            if noise == "grid":
                # One rounding of an integer over 255: the network sees a function of the grid point alone.
                noisy = (base[position] + grid_block(key, shape, sigma, device)).float() / LEVELS
            else:
                noisy = real[position] + sigma * normal_block(key, shape, device)
            yield noisy, torch.full((len(noisy),), position, device=device)


def full_batches(pieces: Iterator[tuple[Tensor, Tensor]], rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Cut a flow of pieces into batches of exactly `rows` rows; the last may be shorter."""
    held: list[tuple[Tensor, Tensor]] = []
    count = 0
    for piece in pieces:
        held.append(piece)
        count += len(piece[0])
        while count >= rows:
            batch, owner = (torch.cat(parts) for parts in zip(*held, strict=True))
            yield batch[:rows], owner[:rows]
            held, count = [(batch[rows:], owner[rows:])], count - rows
    if count:
        batch, owner = (torch.cat(parts) for parts in zip(*held, strict=True))
        yield batch, owner
