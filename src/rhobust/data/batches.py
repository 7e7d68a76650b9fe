"""Batches on the device: shuffled indices, random crop and flip, and the step from bytes to [0, 1]."""

from collections.abc import Iterator

import torch
from torch import Generator, Tensor


def to_unit(images: Tensor) -> Tensor:
    """Images in [0, 1]: the float32 nearest to images / 255, the same on every device.

    Args:
        images: uint8, any shape.
    """
    if images.dtype != torch.uint8:
        raise ValueError(f"images must be uint8, got {str(images.dtype).removeprefix('torch.')}")
    # CUDA multiplies by the rounded reciprocal of a Python number; by a tensor it divides.
    return images.to(torch.float32) / torch.full((), 255.0, device=images.device)


def augment(images: Tensor, *, crop: int, flip: bool, rng: Generator) -> Tensor:
    """Each image cropped at its own place out of its reflected border, and mirrored or not.

    The result is what padding by `crop` pixels in reflection, cropping to the old size at a uniform offset and
    mirroring left to right with probability 1/2 gives. It is a gather of rows and one of columns; no pixel is ever
    interpolated.

    Args:
        images: uint8, (n, channels, height, width).
        crop: width of the reflected border; 0 for no crop.
        flip: whether to mirror.
        rng: where offsets and flips come from, on any device.
    """
    n, _, height, width = images.shape
    if not 0 <= crop < min(height, width):
        raise ValueError(f"crop must be >= 0 and less than the image's side {min(height, width)}, got {crop}")
    if crop == 0 and not flip:
        return images
    device = images.device
    rows = torch.arange(height, device=device).expand(n, height)
    columns = torch.arange(width, device=device).expand(n, width)
    if flip:
        mirrored = _draw(2, (n, 1), rng, device).bool()
        columns = torch.where(mirrored, columns.flip(1), columns)
    if crop:
        offsets = _draw(2 * crop + 1, (2, n, 1), rng, device) - crop
        rows = _reflect(rows + offsets[0], height)
        columns = _reflect(columns + offsets[1], width)
    moved = images.gather(2, rows[:, None, :, None].expand(images.shape))
    return moved.gather(3, columns[:, None, None, :].expand(images.shape))


def epoch_batches(n: int, batch_size: int, *, rng: Generator, device: torch.device | str) -> Iterator[Tensor]:
    """Batches of indices that together are 0..n-1 once each, shuffled; the last one may be smaller.

    The whole order is drawn at the call, so `rng` moves on by one permutation however many batches are used.

    Args:
        n: number of examples.
        batch_size: examples in a batch.
        rng: where the order comes from, on any device.
        device: where the indices go.
    """
    if n < 1:
        raise ValueError(f"n must be >= 1, got {n}")
    if batch_size < 1:
        raise ValueError(f"batch_size must be >= 1, got {batch_size}")
    order = torch.randperm(n, generator=rng, device=rng.device).to(device)
    return iter(order.split(batch_size))


def _draw(bound: int, shape: tuple[int, ...], rng: Generator, device: torch.device) -> Tensor:
    return torch.randint(bound, shape, generator=rng, device=rng.device).to(device)


def _reflect(index: Tensor, size: int) -> Tensor:
    # Mirrored at the first and at the last pixel, neither of them doubled; enough while crop < size.
    return (size - 1) - ((size - 1) - index.abs()).abs()
