"""Networks compared image by image: what one of them has that the other has not."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reproduction.cells import cell, fault, shown
from reproduction.matching import standing
from reproduction.readings import Number, certified_radii
from reproduction.specs import Differences, Pair, Reading
from rhobust.records import Record
from rhobust.stats import mean_difference, share_difference

AVERAGED = "average_radius"
"""What is read as a number of each image; all else is right or wrong."""


@dataclass(frozen=True)
class Outcomes:
    """What a record says of each image."""

    images: tuple[int, ...]
    values: tuple[float, ...]
    """In the order of the images: a radius, or 1 for what counts and 0 for what does not."""


def outcomes(reading: Reading, record: Record) -> Outcomes:
    """The numbers whose mean the reading is, in the order of the images."""
    if reading.what == "robust":
        attacked = standing(reading, record)
        return Outcomes(attacked.images, tuple(map(float, attacked.standing[reading.at])))
    radii = dict(zip((row["index"] for row in record.rows), certified_radii(record), strict=True))
    averaged = reading.what == AVERAGED
    found = {image: max(0.0, own) if averaged else float(own >= reading.at) for image, own in radii.items()}
    images = tuple(sorted(found))
    return Outcomes(images, tuple(found[image] for image in images))


def difference_lines(spec: Differences, found: Mapping[Reading, dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines of a table of differences; what cannot be compared is left out and says why.

    Args:
        spec: The table.
        found: What was read of each image, or the fault.
    """
    return [
        {"keys": list(keys), "cells": [cell(pair.column, _difference(pair, found)) for pair in pairs]}
        for keys, pairs in spec.lines
    ]


def _difference(pair: Pair, found: Mapping[Reading, dict[str, Any]]) -> dict[str, Any]:
    ours, theirs = found[pair.ours], found[pair.theirs]
    for told in (ours, theirs):
        if "fault" in told:
            return told
    if ours["images"] != theirs["images"]:
        return fault("two networks must be looked at on the same images to be compared, and they were not")
    compare = mean_difference if pair.ours.what == AVERAGED else share_difference
    try:
        apart = compare(ours["values"], theirs["values"])
    except ValueError as error:
        return fault(str(error))
    return shown(Number(apart.value, apart.low, apart.high, apart.n), ours, theirs)
