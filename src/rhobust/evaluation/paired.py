"""Two networks on the same images: how far what is certified of one, or left standing of it, lies above the other."""

from collections.abc import Callable, Sequence

import numpy as np

from rhobust.evaluation.attacking import by_radius
from rhobust.evaluation.certified import check_certificates, rights
from rhobust.records import Row
from rhobust.stats import share_difference


def certified_differences(ours: Sequence[Row], theirs: Sequence[Row], radii: Sequence[float]) -> list[Row]:
    """How far the certified accuracy of ours lies above that of theirs at each radius, on the same images.

    Raises:
        ValueError: They are not certificates of the same images, each once, by number and label.
    """

    def outcomes(rows: Sequence[Row]) -> Callable[[float], list[bool]]:
        right, reach = rights(rows), np.array([row["radius"] for row in rows])
        return lambda at: (right & (reach >= at)).tolist()

    for rows in (ours, theirs):
        check_certificates(rows)
    one, other = (outcomes(rows) for rows in _paired(ours, theirs, "certificates"))
    return [{"radius": at, **share_difference(one(at), other(at)).as_row()} for at in radii]


def robust_differences(ours: Sequence[Row], theirs: Sequence[Row], radii: Sequence[float]) -> list[Row]:
    """How far the accuracy that an attack leaves ours lies above what it leaves theirs at each radius, image by image.

    Raises:
        ValueError: They are not attacks on the same images, each once a radius, by number and label, at these radii.
    """
    one, other = by_radius(ours), by_radius(theirs)
    found = []
    for at in radii:
        if not (at in one and at in other):
            raise ValueError(f"networks must be attacked at a radius to be compared there, but not both are at {at:g}")
        left = [[not row["broken"] for row in rows] for rows in _paired(one[at], other[at], "attacks")]
        found.append({"radius": at, **share_difference(*left).as_row()})
    return found


def _paired(ours: Sequence[Row], theirs: Sequence[Row], what: str) -> tuple[list[Row], list[Row]]:
    """Both in the order of the images."""
    one, other = (sorted(rows, key=lambda row: row["index"]) for rows in (ours, theirs))
    images, others = ([(row["index"], row["label"]) for row in rows] for rows in (one, other))
    if images != others:
        raise ValueError(f"{what} must be of the same images to be compared one by one, and they are not")
    if len({index for index, _ in images}) < len(images):
        raise ValueError(f"an image must stand once in {what} that are compared one by one, and some stand twice")
    return one, other
