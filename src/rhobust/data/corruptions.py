"""Common corruptions of images at five severities: compression, blur, noise, light, fog, pixelation."""

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rhobust.noise import Noise

SEVERITIES = (1, 2, 3, 4, 5)
"""The five severities: hardly visible, slight, clear, strong, severe."""
_NUMBERS = 2**24
"""Numbers of float images that are held at once."""


@dataclass(frozen=True)
class Corruption:
    """A change of images with one number per severity."""

    name: str
    """Its name."""
    description: str
    """What it does."""
    unit: str
    """What the numbers mean; `s` is the square root of the longer side, at least 16, over 32."""
    levels: tuple[float, ...]
    """The number at severities 1 to 5."""
    change: Callable[[Tensor, float, Noise], Tensor]
    """From float images in [0, 1], (n, channels, height, width), a level and a noise source to changed images."""


def corrupt(images: Tensor, name: str, severity: int, *, rng: Noise) -> Tensor:
    """Images after a corruption: uint8 of the same shape, rounded to the nearest level.

    The noise source is the only randomness, so `ExampleNoise` makes the result of an image independent of its batch. It
    is asked in the same way at each severity: with equal noise the severities are the same change, only stronger.

    Args:
        images: uint8, (n, channels, height, width), of any size and number of channels.
        name: One of `CORRUPTIONS`.
        severity: 1 to 5.
        rng: Source of the noise, on the device of the images.
    """
    if not isinstance(images, Tensor) or images.dtype != torch.uint8 or images.ndim != 4 or 0 in images.shape:
        given = f"{images.dtype} {tuple(images.shape)}" if isinstance(images, Tensor) else f"a {type(images).__name__}"
        raise ValueError(f"images must be uint8 (n, channels, height, width), got {given}")
    [name] = check_corruptions([name])
    if severity not in SEVERITIES:
        raise ValueError(f"severity must be in 1..5, got {severity}")
    chosen = CORRUPTIONS[name]
    # float64: the rounding to 8 bits then seldom depends on the processor.
    changed = chosen.change(images.double() / 255, chosen.levels[severity - 1], rng)
    return (changed * 255).round().clamp(0, 255).to(torch.uint8)


def check_corruptions(names: Sequence[str]) -> tuple[str, ...]:
    """The names, each once; raises if one is not in `CORRUPTIONS`."""
    if isinstance(names, str):
        raise ValueError(f"corruptions must be a list of names, got {names!r}")
    for name in names:
        if name not in CORRUPTIONS:
            raise ValueError(f"corruptions must be among {', '.join(CORRUPTIONS)}, got {name!r}")
    return tuple(dict.fromkeys(names))


def corruption_block(shape: Sequence[int]) -> int:
    """How many images of a shape to corrupt at once, to bound the memory."""
    return max(1, _NUMBERS // math.prod(shape))


def _jpeg(x: Tensor, quality: float, rng: Noise) -> Tensor:
    from PIL import Image

    pixels = (x * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
    colour = pixels.shape[3] == 3
    # A picture in colour is one file; of other numbers of channels each is a grey picture.
    planes = [[image] if colour else list(image.transpose(2, 0, 1)) for image in pixels]
    changed = np.empty_like(pixels)
    for number, image in enumerate(planes):
        for channel, plane in enumerate(image):
            file = io.BytesIO()
            Image.fromarray(plane).save(file, "JPEG", quality=int(quality))
            with Image.open(file) as opened:
                decoded = np.asarray(opened)
            if colour:
                changed[number] = decoded
            else:
                changed[number, :, :, channel] = decoded
    return torch.from_numpy(changed).permute(0, 3, 1, 2).to(x.device, x.dtype) / 255


def _scale(x: Tensor) -> float:
    """How much longer lengths are than at 32 pixels: photographs have detail, not only more pixels."""
    return math.sqrt(max(16, *x.shape[2:]) / 32)


def _each_axis(x: Tensor, matrix: Callable[[int], Tensor]) -> Tensor:
    """Images multiplied by a matrix along their height and one along their width."""
    down, right = (matrix(side).to(x.device, x.dtype) for side in x.shape[2:])
    return down @ x @ right.T


def _gaussian_blur(x: Tensor, level: float, rng: Noise) -> Tensor:
    sigma = level * _scale(x)

    def blur(side: int) -> Tensor:
        reach = math.ceil(4 * sigma)
        offsets = torch.arange(-reach, reach + 1, dtype=torch.float64)
        weights = torch.exp(-(offsets**2) / (2 * sigma**2))
        places = (torch.arange(side)[:, None] + offsets.long()).clamp(0, side - 1)  # edges are repeated
        return torch.zeros(side, side, dtype=torch.float64).scatter_add_(
            1, places, (weights / weights.sum()).expand(side, -1)
        )

    return _each_axis(x, blur)


def _pixelate(x: Tensor, level: float, rng: Noise) -> Tensor:
    def average(side: int) -> Tensor:
        count = max(1, round(level * side))
        edges = torch.arange(count + 1, dtype=torch.float64) * side / count
        pixels = torch.arange(side, dtype=torch.float64)[:, None]
        # Share of each pixel that each of the larger pixels covers.
        shares = (torch.minimum(edges[1:], pixels + 1) - torch.maximum(edges[:-1], pixels)).clamp_min(0)
        return shares @ (shares / shares.sum(0)).T

    return _each_axis(x, average)


def _convolve(x: Tensor, kernels: Tensor) -> Tensor:
    """Weighted mean of shifted images, with one kernel per image or one for all, (n or 1, side, side); edges repeat."""
    kernels = kernels / kernels.sum((1, 2), keepdim=True)
    (height, width), reach = x.shape[2:], kernels.shape[1] // 2
    padded = F.pad(x, (reach,) * 4, mode="replicate")
    total = torch.zeros_like(x)
    for row, column in (kernels > 0).any(0).nonzero().tolist():
        weight = kernels[:, row, column].view(-1, 1, 1, 1)
        total += weight * padded[:, :, row : row + height, column : column + width]
    return total


def _grid(radius: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Vertical and horizontal offsets of a kernel that reaches `radius` pixels."""
    reach = math.ceil(radius)
    offsets = torch.arange(-reach, reach + 1, dtype=like.dtype, device=like.device)
    return offsets[:, None], offsets[None, :]


def _defocus_blur(x: Tensor, level: float, rng: Noise) -> Tensor:
    radius = level * _scale(x)
    down, right = _grid(radius + 0.5, x)
    return _convolve(x, (radius + 0.5 - (down**2 + right**2).sqrt()).clamp(0, 1)[None])


def _motion_blur(x: Tensor, level: float, rng: Noise) -> Tensor:
    half = level * _scale(x) / 2
    # Two normal numbers have a uniform direction.
    direction = rng.normal(x[:, 0, 0, :1].float(), 2).to(x.dtype)
    direction = (direction / direction.norm(dim=0).clamp_min(1e-12))[..., None]
    down, right = _grid(half + 1, x)
    along = down * direction[0] + right * direction[1]
    across = right * direction[0] - down * direction[1]
    beyond = (along.abs() - half).clamp_min(0)
    return _convolve(x, (1 - (across**2 + beyond**2).sqrt()).clamp_min(0))


def _gaussian_noise(x: Tensor, level: float, rng: Noise) -> Tensor:
    return x + level * rng.normal(x.float(), 1)[0].to(x.dtype)


def _brightness(x: Tensor, level: float, rng: Noise) -> Tensor:
    return x + level


def _contrast(x: Tensor, level: float, rng: Noise) -> Tensor:
    mean = x.mean((2, 3), keepdim=True)
    return mean + level * (x - mean)


def _fog(x: Tensor, level: float, rng: Noise) -> Tensor:
    density = _clouds(rng.normal(x[:, :1].float(), 1)[0].to(x.dtype))
    brightest = x.amax((1, 2, 3), keepdim=True).clamp_min(1 / 255)
    return (x + level * density) * brightest / (brightest + level)


def _clouds(noise: Tensor) -> Tensor:
    """Smooth random texture in [0, 1]: white noise averaged over squares of sides 2, 4, 8, ..., each as strong."""
    height, width = noise.shape[2:]
    total = torch.zeros_like(noise)
    side = 2
    while side <= max(2, min(height, width) // 2):
        coarse = F.adaptive_avg_pool2d(noise, (max(1, height // side), max(1, width // side)))
        smooth = F.interpolate(coarse, (height, width), mode="bilinear", align_corners=False)
        total += smooth * side**2  # the mean of side^2 numbers is 1/side of one; large squares dominate as side
        side *= 2
    low, high = total.amin((1, 2, 3), keepdim=True), total.amax((1, 2, 3), keepdim=True)
    return (total - low) / (high - low).clamp_min(1e-12)


_TABLE = (
    Corruption("jpeg", "write as JPEG and read again", "quality", (90, 75, 50, 25, 10), _jpeg),
    Corruption(
        "gaussian-blur",
        "average with a Gaussian",
        "standard deviation in pixels, times s",
        (0.4, 0.55, 0.75, 1.0, 1.4),
        _gaussian_blur,
    ),
    Corruption(
        "defocus-blur", "average over a disc", "radius in pixels, times s", (0.8, 1.0, 1.3, 1.8, 2.4), _defocus_blur
    ),
    Corruption(
        "motion-blur",
        "average along a line in a random direction",
        "length in pixels, times s",
        (0.5, 1.0, 2.0, 4.0, 6.0),
        _motion_blur,
    ),
    Corruption("gaussian-noise", "add noise", "standard deviation", (0.02, 0.05, 0.1, 0.15, 0.25), _gaussian_noise),
    Corruption("brightness", "add to every value", "amount", (0.02, 0.05, 0.1, 0.2, 0.3), _brightness),
    Corruption(
        "contrast",
        "shrink towards the mean of each channel of the image",
        "contrast left",
        (0.95, 0.85, 0.7, 0.5, 0.3),
        _contrast,
    ),
    Corruption(
        "fog",
        "add random clouds, then scale back to the brightest value",
        "weight of the clouds",
        (0.05, 0.15, 0.3, 0.6, 1.0),
        _fog,
    ),
    Corruption(
        "pixelate",
        "average down to a part of the side, and repeat the pixels",
        "side left",
        (0.9, 0.75, 0.6, 0.45, 0.3),
        _pixelate,
    ),
)

CORRUPTIONS = {corruption.name: corruption for corruption in _TABLE}
"""The built-in corruptions by name."""
