"""Inputs of a certificate: from what a user passes to the tensor that the network is evaluated on."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rhobust.data import as_inputs, check_images, check_range, class_numbers
from rhobust.models.guarded import device_of
from rhobust.models.inference import check_module, frozen

_FAILURES = (RuntimeError, ValueError, TypeError, IndexError)
"""What networks raise on inputs of another shape."""


def network_inputs(model: nn.Module, x: Any) -> Tensor:
    """Images in any form of `rhobust.data.as_dataset` as a checked batch, uint8 or float in [0, 1].

    A tensor or array (n, c, h, w), and one of another shape that the network takes as a batch, is used unchanged.
    Everything else is read as images: one image becomes a batch of one, channels go first, labels are ignored. What
    is not on a GPU goes to the network's device.
    """
    return labelled_inputs(model, x, None)[0]


def labelled_inputs(model: nn.Module, x: Any, y: Any) -> tuple[Tensor, Tensor | None]:
    """As `network_inputs`, with the labels that were given or that came with the images; None without labels."""
    check_module(model)
    if isinstance(x, np.ndarray) and x.dtype.kind in "fu":
        x = torch.from_numpy(np.array(x, dtype=x.dtype.newbyteorder("=")))  # it may be read-only, or run backwards
    labels: Tensor | None = None
    if isinstance(x, Tensor) and (x.layout != torch.strided or x.device.type == "meta" or x.dim() < 2 or len(x) == 0):
        check_images(x)  # before the labels, which would be counted
    if not isinstance(x, Tensor) or not _is_batch(model, x):
        x, labels, *_ = as_inputs(x, y, subject="x")
    elif y is not None:
        labels = class_numbers(_label_tensor(y), x)
    if x.numel() and x.device.type != "meta":
        check_range(x, "x")
    check_images(x)
    device = device_of(model, x.device) if x.device.type == "cpu" else x.device
    return x.to(device), None if labels is None else labels.to(device)


def _label_tensor(y: Any) -> Any:
    """Whole numbers as a tensor; what is no labels is refused later."""
    array = y if isinstance(y, Tensor) else np.asarray(y)
    return torch.from_numpy(array) if isinstance(array, np.ndarray) and array.dtype.kind in "biu" else array


def _is_batch(model: nn.Module, x: Tensor) -> bool:
    """Whether a tensor is a batch to use unchanged."""
    if x.ndim != 4:
        return x.ndim < 2 or x.ndim > 4 or not _is_image(x) or _takes(model, x)
    return not (x.shape[1] not in (1, 3) and x.shape[3] in (1, 3) and min(x.shape[1:3]) > x.shape[3])


def _is_image(x: Tensor) -> bool:
    """Whether values and device allow to evaluate a network on x; what is wrong with others is said later."""
    return x.numel() > 0 and x.device.type != "meta" and (x.dtype == torch.uint8 or x.is_floating_point())


def _takes(model: nn.Module, x: Tensor) -> bool:
    """Whether the network returns one row of logits for each of two inputs."""
    two = x[:1].to(device_of(model, x.device), torch.float32).repeat(2, *[1] * (x.ndim - 1))
    try:
        with torch.no_grad(), frozen(model) as network:
            logits = network(two)
    except _FAILURES:
        return False
    return isinstance(logits, Tensor) and logits.ndim == 2 and len(logits) == 2
