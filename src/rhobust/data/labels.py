"""Labels as people have them: class numbers or names, in arrays, tensors and lists."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

LABEL_KEYS = ("label", "labels", "fine_label", "y")
"""Keys of the label of an item that is a mapping."""


def names_of(source: Any) -> tuple[str, ...] | None:
    """Names of the classes as torchvision's and Hugging Face's data sets say them."""
    for holder in (source, getattr(source, "dataset", None)):
        names = getattr(holder, "classes", None)
        features = getattr(holder, "features", None)
        if names is None and isinstance(features, Mapping):
            names = next((getattr(features[key], "names", None) for key in LABEL_KEYS if key in features), None)
        if isinstance(names, Sequence) and not isinstance(names, str) and names:
            return tuple(map(str, names))
    return None


def _is_scalar(labels: Any) -> bool:
    return isinstance(labels, str) or not hasattr(labels, "__len__") or getattr(labels, "ndim", 1) == 0


def label_count(labels: Any) -> int:
    """Number of labels."""
    return 1 if _is_scalar(labels) else len(labels)


def numbered(labels: Any, count: int, classes: tuple[str, ...] | None) -> tuple[Tensor, tuple[str, ...] | None]:
    """Labels as int64 (n,), and the names of the classes where the labels are names."""
    if isinstance(labels, Tensor):
        labels = labels.detach().cpu().numpy()
    elif not isinstance(labels, np.ndarray):
        plain = [labels] if _is_scalar(labels) else list(labels)
        labels = np.array([one.item() if isinstance(one, Tensor) and one.numel() == 1 else one for one in plain])
    labels = np.atleast_1d(labels)
    if labels.dtype.kind in "US" and labels.ndim == 1:
        names = [str(label) for label in labels]
        known = tuple(sorted(set(names))) if classes is None else classes
        if strange := [label for label in names if label not in known]:
            raise ValueError(f"labels must be among the classes {_shown(known)}, got {strange[0]!r}")
        labels, classes = np.array([known.index(label) for label in names]), known
    if labels.ndim == 2 and labels.shape[0] == count and labels.shape[1] > 1:
        raise ValueError(f"labels must be class numbers, got the shape {labels.shape}: pass labels.argmax(1)")
    if labels.dtype.kind not in "iu":
        raise ValueError(f"labels must be integers or names of classes, got {labels.dtype}")
    labels = labels.reshape(-1) if labels.size == count else labels
    if labels.shape != (count,):
        raise ValueError(f"labels must be one per image, got {labels.shape} for {count} images")
    if labels.min() < 0 or (classes is not None and labels.max() >= len(classes)):
        most = "0, 1, 2, ..." if classes is None else f"in 0..{len(classes) - 1}"
        raise ValueError(f"labels must be {most}, got {labels.min()} to {labels.max()}")
    return torch.from_numpy(labels.astype(np.int64)), classes


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
