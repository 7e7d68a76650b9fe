"""Methods compared where they cost the same: at equal natural accuracy, on the same images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproduction.cells import cell, fault, shown
from reproduction.readings import Number, robust_shares
from reproduction.specs import Front, Reading
from rhobust.measurements import by_radius
from rhobust.records import Record
from rhobust.stats import share

RESAMPLES = 10_000
"""Resamples of the images behind an interval."""
BLOCK = 500
"""Resamples at a time, which bounds the memory."""

Outcomes = NDArray[np.float64]
"""1 for each image that is right and stands, else 0; the first row is without an attack."""


@dataclass(frozen=True)
class Standing:
    """What an attack left standing, image by image."""

    images: tuple[int, ...]
    standing: dict[float, tuple[bool, ...]]
    """By radius, in the order of the images."""


def standing(_: Reading, record: Record) -> Standing:
    """What an attack's record says of each image."""
    robust_shares(record)  # It must say what its rows do.
    left = {at: {row["index"]: not row["broken"] for row in rows} for at, rows in by_radius(record.rows).items()}
    images = tuple(sorted(left[0.0]))
    return Standing(images, {radius: tuple(own[image] for image in images) for radius, own in left.items()})


def matched(family: Sequence[Outcomes], rival: Outcomes) -> tuple[float, Number]:
    """A family's robust accuracy at a rival's natural accuracy, and how far it lies above the rival's.

    The robust accuracy is read off the line between the two members around that natural accuracy. A coin that picks one
    of these two has it at least: whoever attacks before the coin falls does no more than on each of them alone. Below
    all members it is that of the one with the least natural accuracy, which can be given away for nothing: by a wrong
    answer to images that an attack breaks anyway.

    The interval is the middle 95% over resamples of the images, the same images for all, each resample matched anew.
    It says nothing of another training.

    Args:
        family: Of each member its outcomes `(2, images)`: without an attack, and under it.
        rival: The rival's outcomes on the same images.
    """
    outcomes = np.concatenate([*family, rival])
    found = _gap(outcomes.mean(1)[:, None])
    natural = [float(member[0].mean()) for member in family]
    if float(rival[0].mean()) > max(natural):
        raise ValueError(
            f"a natural accuracy must be <= {max(natural):g}, the family's highest, to be compared with it, got "
            f"{float(rival[0].mean()):g}"
        )
    rng, n = np.random.default_rng(0), outcomes.shape[1]
    gaps = []
    for _ in range(0, RESAMPLES, BLOCK):
        counts = np.stack([np.bincount(rng.integers(0, n, n), minlength=n) for _ in range(BLOCK)])
        gaps.append(_gap(outcomes @ counts.T / n)[1])
    low, high = np.quantile(np.concatenate(gaps), (0.025, 0.975))
    return float(found[0][0]), Number(float(found[1][0]), float(low), float(high), n)


def front_lines(spec: Front, found: Mapping[Reading, dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines of the table of a front; what cannot be compared is left out and says why.

    Args:
        spec: The front.
        found: What was read of each member and rival, or the fault.
    """
    members = [found[reading] for _, reading in spec.members]
    return [{"keys": [name], "cells": _cells(spec, members, found[reading])} for name, reading in spec.rivals]


def _cells(spec: Front, members: Sequence[dict[str, Any]], rival: dict[str, Any]) -> list[dict[str, Any]]:
    """The natural accuracy of a rival, then for each radius its accuracy, the family's, and the difference."""
    cells = [cell("natural", _share(rival, 0.0))]
    for radius in spec.radii:
        ours, difference = _compared(members, rival, radius)
        cells.append(cell(f"at {radius:g}", _share(rival, radius)))
        cells.append(cell(f"{spec.family}, at {radius:g}", ours))
        cells.append(cell(f"difference at {radius:g}", difference))
    return cells


def _compared(members: Sequence[dict[str, Any]], rival: dict[str, Any], radius: float) -> list[dict[str, Any]]:
    """The family's accuracy and the difference, or why there is none."""
    for told in (rival, *members):
        if "fault" in told:
            return [told, told]
    if any(member["images"] != rival["images"] for member in members):
        return [fault("methods must be attacked on the same images to be compared, and they were not")] * 2
    try:
        value, difference = matched([_outcomes(member, radius) for member in members], _outcomes(rival, radius))
    except ValueError as error:
        return [fault(str(error))] * 2
    return [shown(Number(value, value, value, difference.n), *members), shown(difference, rival, *members)]


def _outcomes(told: dict[str, Any], radius: float) -> Outcomes:
    return np.array([told["standing"][0.0], told["standing"][radius]], dtype=np.float64)


def _gap(means: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The family's accuracy at the rival's natural accuracy, and the difference, of each column of mean outcomes."""
    natural, under = means[0:-2:2], means[1:-2:2]
    order = natural.argsort(axis=0)
    natural, under = np.take_along_axis(natural, order, 0), np.take_along_axis(under, order, 0)
    family = np.array(
        [np.interp(at, x, y) for at, x, y in zip(means[-2], natural.T, under.T, strict=True)], dtype=np.float64
    )
    return family, family - means[-1]


def _share(told: dict[str, Any], radius: float) -> dict[str, Any]:
    if "fault" in told:
        return told
    left = told["standing"][radius]
    counted = share(sum(left), len(left))
    return shown(Number(counted.value, counted.low, counted.high, counted.n), told)
