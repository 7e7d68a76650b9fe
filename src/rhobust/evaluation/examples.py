"""A few attacked inputs, kept as pictures beside the record that counts them."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rhobust.evaluation.probing import Evaluation, first_broken, spread
from rhobust.evaluation.sweeping import first_breaks
from rhobust.records import Row, write_whole

KEPT = 6
"""Examples kept at most: enough to look at, and small beside the rows."""


def keep_examples(evaluation: Evaluation, rows: Sequence[Row], path: Path, *, nested: bool) -> None:
    """Attack a few broken examples once more and write them to an .npz file beside the record.

    Nobody picks them: they lie evenly among all examples that broke first at a radius above 0, each at that radius.
    Noise is named by example and radius, so a CPU makes the very points that the rows speak of; a GPU
    may miss one by rounding, which is then left out. The rows of the kept points are in the file as columns, with the
    images before (uint8) and after (float32) and the names of the classes. Where nothing broke there is no file.

    Args:
        evaluation: The attack and who judges it.
        rows: What it found, all examples and radii.
        path: The record.
        nested: Whether what is broken stayed broken.
    """
    first = first_broken(rows)
    chosen = spread(sorted(index for index, radius in first.items() if radius > 0), KEPT)
    if not chosen:
        return
    last = max(first[index] for index in chosen)
    made = first_breaks(
        evaluation.source,
        evaluation.attack,
        [radius for radius in evaluation.radii if radius <= last],
        evaluation.judge,
        chosen,
        evaluation.seed,
        nested=nested,
    )
    broken = [made[index] for index in chosen if index in made and made[index][0]["radius"] == first[index]]
    if not broken:
        return
    broken.sort(key=lambda found: found[0]["radius"])
    data = evaluation.source.data
    arrays: dict[str, Any] = {key: np.array([row[key] for row, _ in broken]) for key in broken[0][0]}
    arrays["before"] = data.images[arrays["index"].tolist()].numpy()
    arrays["after"] = np.stack([point.cpu().numpy() for _, point in broken])
    arrays["classes"] = np.array(data.classes)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write_whole(path.with_suffix(".npz"), buffer.getvalue())
