"""The image patches of a convolution on a GPU in one kernel: see `rhobust.models.fused`.

A generated kernel computes the place of each number by itself; here a pixel and a place in its patch are each computed
once for a whole tile. Needs Triton, which torch brings along on Linux.
"""

from types import SimpleNamespace

import torch
from torch import Tensor

try:
    import triton  # pyrefly: ignore[missing-import]
    import triton.language as tl  # pyrefly: ignore[missing-import]
except ImportError:  # the module can be read, and not run
    triton, tl = SimpleNamespace(jit=lambda function: function), SimpleNamespace(constexpr=None)

PIXELS = 128
"""Patches per block."""


@triton.jit
def _patches(
    out,
    x,
    total,
    image_stride,
    channel_stride,
    row_stride,
    column_stride,
    height: tl.constexpr,
    width: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    used: tl.constexpr,
    high: tl.constexpr,
    wide: tl.constexpr,
    above: tl.constexpr,
    left: tl.constexpr,
    SIZE: tl.constexpr,
    PIXELS: tl.constexpr,
):
    pixel = tl.program_id(0).to(tl.int64) * PIXELS + tl.arange(0, PIXELS)
    place = tl.arange(0, SIZE)
    image, inner = pixel // (rows * columns), (pixel % (rows * columns)).to(tl.int32)
    row = (inner // columns - above)[:, None] + (place // wide % high)[None, :]
    column = (inner % columns - left)[:, None] + (place % wide)[None, :]
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    inside = inside & (place < used)[None, :] & (pixel < total)[:, None]
    start = (image * image_stride)[:, None] + (place // (wide * high) * channel_stride)[None, :]
    found = tl.load(x + start + row * row_stride + column * column_stride, mask=inside, other=0.0)
    tl.store(out + pixel[:, None] * SIZE + place[None, :], found, mask=(pixel < total)[:, None])


def image_patches(x: Tensor, kernel: tuple[int, int], padding: tuple[int, int], size: int) -> Tensor:
    """The patches of a convolution with stride 1, `(n, rows, columns, size)`, filled up with zeros.

    Args:
        x: Images, `(n, channels, height, width)`, in any layout.
        kernel: Rows and columns of a patch.
        padding: Zeros around an image.
        size: Numbers per patch, a power of two and at least as many as it has.
    """
    count, channels, height, width = x.shape
    rows, columns = (
        side + 2 * zeros - of + 1 for side, zeros, of in zip((height, width), padding, kernel, strict=True)
    )
    out = torch.empty(count, rows, columns, size, dtype=x.dtype, device=x.device)
    total = count * rows * columns
    with torch.cuda.device_of(x):  # Triton launches on the current device
        _patches[(triton.cdiv(total, PIXELS),)](
            out,
            x,
            total,
            *x.stride(),
            height,
            width,
            rows,
            columns,
            channels * kernel[0] * kernel[1],
            *kernel,
            *padding,
            size,
            PIXELS,
        )
    return out
