"""Pictures for the page: a few small images in an .npz file next to a record, by the record's name."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rhobust.data import Dataset, corrupt
from rhobust.evaluation.diagnostics import spread
from rhobust.files import write_whole
from rhobust.noise import ExampleNoise
from rhobust.records import Row

KEPT = 48
"""Largest number of certified images that are kept."""
SIDE = 96
"""Pixels of the longer side that kept images have at most."""


def write_pictures(record: Path, data: Dataset, **arrays: Any) -> None:
    """Write arrays and the names of the classes to the file of a record's pictures."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays, classes=np.array(data.classes))
    write_whole(record.with_suffix(".npz"), buffer.getvalue())


def can_be_shown(data: Dataset) -> bool:
    """Whether the images are grey or in colour."""
    return data.shape[0] in (1, 3)


def keep_certified(record: Path, data: Dataset, rows: Sequence[Row]) -> None:
    """Keep images of certificates, spread evenly over all from the smallest radius to the largest.

    A wrong class comes first, then an abstention: no image is picked by eye.
    """
    if not can_be_shown(data):
        return
    ordered = sorted(rows, key=lambda row: (_rank(row), row["radius"], row["index"]))
    places = spread(list(range(len(ordered))), KEPT)
    chosen = [ordered[place]["index"] for place in places]
    write_pictures(record, data, index=np.array(chosen), image=_reduce(data.images[chosen]).numpy())


def _rank(row: Row) -> int:
    if row["prediction"] is None:
        return 1
    return 2 if row["prediction"] == row["label"] else 0


def keep_corrupted(
    record: Path, data: Dataset, rows: Sequence[Row], cells: Sequence[tuple[str, int]], seed: int
) -> None:
    """Keep one image under every corruption and severity: the one whose distances are nearest to the data's.

    Nearest is meant in the logarithm, so that small and large corruptions count alike.
    """
    if not can_be_shown(data):
        return
    distances: dict[int, list[float]] = {}
    for row in rows:
        if row["severity"]:
            distances.setdefault(row["index"], []).append(row["distance"])
    table = np.maximum(np.array(list(distances.values())), 1e-6)
    typical = np.sqrt((table**2).mean(0))
    index = list(distances)[int(np.abs(np.log(table / typical)).mean(1).argmin())]
    image = data.images[[index]]
    changed = [
        corrupt(image, name, severity, rng=ExampleNoise(seed, f"corruption:{name}", [index]))
        for name, severity in cells
    ]
    write_pictures(
        record,
        data,
        index=np.array([index]),
        before=_reduce(image).numpy(),
        corruption=np.array([name for name, _ in cells]),
        severity=np.array([severity for _, severity in cells]),
        after=_reduce(torch.cat(changed)).numpy(),
    )


def _reduce(images: Tensor) -> Tensor:
    """Images of at most `SIDE` pixels: larger ones are averaged over areas."""
    scale = SIDE / max(images.shape[2:])
    if scale >= 1:
        return images
    size = [max(1, round(side * scale)) for side in images.shape[2:]]
    return F.interpolate(images.float(), size, mode="area").round().to(torch.uint8)
