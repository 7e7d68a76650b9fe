"""What a caller may hand in as images and labels; a mistake is one line."""

import torch
from torch import Tensor

from rhobust.data.batches import to_unit


def check_images(x: Tensor) -> None:
    """Refuse what is not a batch of images, uint8 or float in [0, 1], on a CPU or a GPU."""
    if not isinstance(x, Tensor):
        raise ValueError(f"x must be a tensor, got a {type(x).__name__}")
    if x.dim() < 2 or len(x) == 0:
        raise ValueError(f"x must be a batch of inputs (n, ...), got the shape {tuple(x.shape)}")
    if x.device.type not in ("cpu", "cuda"):
        raise ValueError(f"x must be on a cpu or cuda device, got {x.device}")
    if x.dtype == torch.uint8:
        return
    if not x.is_floating_point():
        raise ValueError(f"x must be uint8 or floating point, got {x.dtype}")
    if x.isnan().any() or x.min() < 0 or x.max() > 1:
        raise ValueError(f"x must lie in [0, 1], got values from {x.min().item():.4g} to {x.max().item():.4g}")


def as_float(x: Tensor) -> Tensor:
    """Images as the network takes them: uint8 in [0, 1], floats as they are; their range is not looked at."""
    if not isinstance(x, Tensor) or not (x.dtype == torch.uint8 or x.is_floating_point()):
        given = x.dtype if isinstance(x, Tensor) else f"a {type(x).__name__}"
        raise ValueError(f"x must be a tensor, uint8 or floating point, got {given}")
    return x if x.is_floating_point() else to_unit(x)


def class_numbers(y: Tensor, x: Tensor) -> Tensor:
    """The labels of inputs as int64, on the inputs' device; what is not one class number an input is refused."""
    if not isinstance(y, Tensor) or y.shape != (len(x),) or y.is_floating_point():
        given = f"{y.dtype} of shape {tuple(y.shape)}" if isinstance(y, Tensor) else f"a {type(y).__name__}"
        raise ValueError(f"y must be a tensor of one label an input ({len(x)}), a class number, got {given}")
    return y.to(x.device, torch.int64)


def check_labels(y: Tensor, num_classes: int) -> None:
    """Refuse labels that the network has no class for."""
    if y.min() < 0 or y.max() >= num_classes:
        raise ValueError(f"labels must lie in [0, {num_classes}), got {int(y.min())} to {int(y.max())}")
