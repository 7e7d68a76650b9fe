"""Specification of a smoothed classifier: its noise and the arithmetic of its network."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from threading import RLock
from typing import Literal

import torch
from torch import Tensor

from rhobust.bounds.confidence import LEVELS, NoiseKind
from rhobust.proofs.claim import NoiseSamples
from rhobust.settings import check_at_least, check_declared, check_positive_number

Dtype = Literal["float32", "tf32", "bfloat16", "float16"]


@dataclass(frozen=True)
class Smoothing:
    """Noise, arithmetic and random seed of a smoothed classifier.

    Noise and arithmetic are part of what is certified: a prediction belongs to a certificate only if it is made with
    the same.
    """

    sigma: float
    """Standard deviation of the noise."""
    num_classes: int
    """Number of classes."""
    noise: NoiseKind = "grid"
    """"grid": exact integer noise, for images on the 1/255 grid; "float": float32 noise."""
    seed: int = 0
    """Random seed: with purpose, index and chunk it names a stream of noise samples."""
    dtype: Dtype = "float32"
    """Arithmetic of the network; "tf32" is float32 with a GPU's TF32 convolutions."""
    compiled: bool = False
    """Whether the network is compiled, where it can be, which changes how it rounds."""

    def __post_init__(self) -> None:
        check_declared(self)
        check_positive_number("sigma", self.sigma)
        check_at_least(2, self, "num_classes")

    def samples(self, images: Tensor, *, draws: int, alpha: float) -> NoiseSamples:
        """How so many noise samples at such images are taken, for a statement that is false with probability alpha."""
        return NoiseSamples(
            sigma=self.sigma, noise=self.noise, dimension=images[0].numel(), draws=draws, alpha=alpha, seed=self.seed
        )

    @classmethod
    def for_images(
        cls,
        images: Tensor,
        sigma: float,
        num_classes: int,
        *,
        seed: int = 0,
        dtype: "Dtype | None" = None,
        compiled: bool | None = None,
    ) -> "Smoothing":
        """Exact integer noise where the images allow it, and by default the fastest arithmetic of their device."""
        return cls.on(
            images.device, sigma, num_classes, noise=noise_kind(images), seed=seed, dtype=dtype, compiled=compiled
        )

    @classmethod
    def on(
        cls,
        device: torch.device,
        sigma: float,
        num_classes: int,
        *,
        noise: NoiseKind = "grid",
        seed: int = 0,
        dtype: "Dtype | None" = None,
        compiled: bool | None = None,
    ) -> "Smoothing":
        """The smoothing with the defaults of a device: on a GPU bfloat16, compiled; on a CPU float32, not compiled."""
        dtype = dtype or vote_dtype(device)
        if compiled is None:
            compiled = compiled_by_default(dtype, device)
        return cls(sigma, num_classes, noise=noise, seed=seed, dtype=dtype, compiled=compiled)


def noise_kind(images: Tensor) -> NoiseKind:
    """The noise that fits images: "grid" for 8-bit ones (uint8, or floats equal to k / 255 in [0, 1]), else "float".

    Half precision is never on the grid: its floats differ by up to 1/500 from the k / 255 that they round.
    """
    if images.dtype == torch.uint8:
        return "grid"
    if not images.is_floating_point() or images.element_size() < 4:
        return "float"
    on_grid = ((images * LEVELS).round() / LEVELS == images) & (images >= 0) & (images <= 1)
    return "grid" if bool(on_grid.all()) else "float"


def vote_dtype(device: torch.device) -> Dtype:
    """Default arithmetic of votes under noise: bfloat16 on a GPU that has it, otherwise that of the device."""
    if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        return "bfloat16"
    return native_dtype(device)


def compiled_by_default(dtype: Dtype, device: torch.device) -> bool:
    """Whether votes are counted with a compiled network unless the user says otherwise: on a GPU in half precision."""
    return device.type == "cuda" and dtype in ("bfloat16", "float16")


def native_dtype(device: torch.device) -> Dtype:
    """Arithmetic of a plain call of the base network: torch lets a GPU's convolutions use TF32."""
    return "tf32" if device.type == "cuda" and torch.backends.cudnn.allow_tf32 else "float32"


def check_dtype(dtype: Dtype, device: torch.device) -> None:
    """Raise if the device does not support the arithmetic."""
    if dtype in ("tf32", "float16") and device.type != "cuda":
        raise ValueError(f"dtype must be float32 or bfloat16 on a {device.type}, got {dtype}")


_CUDNN = RLock()
"""cuDNN's settings are those of the process: two threads take turns, so that neither computes with the other's."""


@contextmanager
def arithmetic(dtype: Dtype, device: torch.device) -> Iterator[None]:
    """Run the network in one arithmetic, with deterministic cuDNN algorithms and no autotuning."""
    with ExitStack() as stack:
        if device.type == "cuda":
            stack.enter_context(_CUDNN)
            cudnn = torch.backends.cudnn
            stack.callback(_set_cudnn, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32)
            _set_cudnn(benchmark=False, deterministic=True, allow_tf32=dtype != "float32")
        if dtype in ("bfloat16", "float16"):
            # The cast cache outlives a capture and would hand the replay stale weights.
            stack.enter_context(torch.autocast(device.type, getattr(torch, dtype), cache_enabled=False))
        yield


def _set_cudnn(benchmark: bool, deterministic: bool, allow_tf32: bool) -> None:
    cudnn = torch.backends.cudnn
    cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32 = benchmark, deterministic, allow_tf32
