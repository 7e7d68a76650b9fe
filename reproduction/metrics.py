"""From a record to a number of a table, a curve of a figure, or the outcomes of single images."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from reproduction.specs import Metric
from rhobust.bounds import certified_radius, clopper_pearson
from rhobust.formatting import Direction
from rhobust.measurements import (
    CERTIFIED,
    ROBUST,
    SHIFT,
    UNDER_NOISE,
    WORST_CERTIFIED,
    WORST_ESTIMATE,
    WORST_LOWER,
    Measurement,
    measurements,
    outcomes,
)
from rhobust.records import Record
from rhobust.stats import share
from rhobust.training import open_run

CURVE_POINTS = 81
"""Radii at which a curve of certified accuracy is drawn."""
RESAMPLES = 10_000
"""Bootstrap resamples of the images behind an interval."""
BLOCK = 500
"""Resamples at a time, which bounds the memory."""

Outcomes = NDArray[np.float64]
"""1 for each image that is correct and robust, else 0; the first row is without an attack."""


@dataclass(frozen=True)
class Number:
    """A number with its 95% interval, and the direction in which it may be rounded."""

    value: float
    low: float
    high: float
    n: int
    """Examples behind it."""
    direction: Direction = "nearest"
    bound: bool = False
    """Whether it is proved and not an estimate: low and high then say on which side of it the truth is."""


@dataclass(frozen=True)
class CurvePoints:
    """A curve with its 95% band."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    n: int
    left: tuple[float, ...] | None = None
    """The lower ends of the intervals of x, where x is measured too."""
    right: tuple[float, ...] | None = None
    """The upper ends."""


@dataclass(frozen=True)
class PerImage:
    """What a record says of each image."""

    images: tuple[int, ...]
    values: dict[float, tuple[float, ...]]
    """By radius, in the order of the images."""


@dataclass(frozen=True)
class Seconds:
    """Wall time of a training or an evaluation."""

    seconds: float | None
    """None for an evaluation that was resumed."""


class Reader:
    """A record whose measurements are counted once."""

    def __init__(self, record: Record) -> None:
        self.record = record

    @cached_property
    def measurements(self) -> list[Measurement]:
        """All of them, each counted from the rows and compared with the summary."""
        return measurements(self.record)

    def at(self, quantity: str, at: float | None = None) -> Measurement:
        """One measurement; of a certificate at any radius."""
        found = self.measurements
        if quantity == CERTIFIED and at is not None:
            found = measurements(self.record, [at])
        for one in found:
            if one.quantity == quantity and (at is None or one.at == at) and "baseline" not in one.detail:
                return one
        where = "" if at is None else f" at {at:g}"
        raise ValueError(f"{self.record.path} must have the {quantity}{where}, but it does not")

    def curve(self, quantity: str) -> list[Measurement]:
        """The measurements of a quantity, in the order of radius or eps."""
        found = [one for one in self.measurements if one.quantity == quantity]
        return sorted(found, key=lambda one: one.at or 0.0)


def number(metric: Metric, reader: Reader) -> Number:
    """The number that a cell shows."""
    special = _NUMBERS.get(metric.quantity)
    if special is not None:
        return special(reader, metric.at)
    if metric.first is not None:
        reader.measurements  # noqa: B018  the summary must say what the rows do
        kept = [value for image, value in outcomes(reader.record, ROBUST, metric.at).items() if image < metric.first]
        found = share(round(sum(kept)), len(kept))
        return Number(found.value, found.low, found.high, found.n)
    return _plain(reader.at(metric.quantity, metric.at if metric.quantity in _AT else None))


def curve(metric: Metric, reader: Reader) -> CurvePoints:
    """The curve that a panel shows."""
    return _CURVES[metric.quantity](reader, metric.at)


def per_image(metric: Metric, reader: Reader) -> PerImage:
    """The outcomes of single images: of an attack at every radius, else where the metric is read."""
    reader.measurements  # noqa: B018  the summary must say what the rows do
    radii = [one.at or 0.0 for one in reader.curve(ROBUST)] or [metric.at]
    found = {at: outcomes(reader.record, metric.quantity, at) for at in radii}
    images = tuple(sorted(found[radii[0]]))
    return PerImage(images, {at: tuple(own[image] for image in images) for at, own in found.items()})


def seconds(_: Metric, reader: Reader) -> Seconds:
    """The wall time behind a record."""
    record = reader.record
    if record.kind == "training":
        return Seconds(math.fsum(row["seconds"] for row in record.rows))
    return Seconds((record.summary or {})["seconds"])


def matched(family: Sequence[Outcomes], baseline: Outcomes) -> tuple[float, Number]:
    """A family's robust accuracy at a baseline's natural accuracy, and its difference from the baseline's.

    The robust accuracy is interpolated between the two members around that natural accuracy. Randomising between these
    two networks achieves at least this: an attack that is crafted before the network is drawn does no more than on each
    of them alone. Below all members it is that of the one with the lowest natural accuracy, which can be lowered
    further at no cost: by wrong answers to images that an attack breaks anyway.

    The interval is the middle 95% over resamples of the images, the same images for all, each resample matched anew.
    It does not cover another training.

    Args:
        family: Of each member its outcomes `(2, images)`: without an attack, and under it.
        baseline: The baseline's outcomes on the same images.
    """
    both = np.concatenate([*family, baseline])
    found = _gap(both.mean(1)[:, None])
    natural = [float(member[0].mean()) for member in family]
    if float(baseline[0].mean()) > max(natural):
        raise ValueError(
            f"a natural accuracy must be <= {max(natural):g}, the family's highest, to be compared with it, got "
            f"{float(baseline[0].mean()):g}"
        )
    rng, n = np.random.default_rng(0), both.shape[1]
    gaps = []
    for _ in range(0, RESAMPLES, BLOCK):
        counts = np.stack([np.bincount(rng.integers(0, n, n), minlength=n) for _ in range(BLOCK)])
        gaps.append(_gap(both @ counts.T / n)[1])
    low, high = np.quantile(np.concatenate(gaps), (0.025, 0.975))
    return float(found[0][0]), Number(float(found[1][0]), float(low), float(high), n)


def _gap(means: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The family's accuracy at the baseline's natural accuracy, and the difference, of each column of mean outcomes."""
    natural, under = means[0:-2:2], means[1:-2:2]
    order = natural.argsort(axis=0)
    natural, under = np.take_along_axis(natural, order, 0), np.take_along_axis(under, order, 0)
    family = np.array(
        [np.interp(at, x, y) for at, x, y in zip(means[-2], natural.T, under.T, strict=True)], dtype=np.float64
    )
    return family, family - means[-1]


_AT = (ROBUST, CERTIFIED, SHIFT)
"""Quantities that are read at a radius or an eps."""


def _plain(one: Measurement) -> Number:
    """A measurement; a bound without an interval says on which side of it the truth is."""
    if one.low is None or one.high is None:
        low, high = (one.value, 1.0) if one.direction == "down" else (one.value, one.value)
        return Number(one.value, low, high, one.n, one.direction, bound=one.status == "proved")
    return Number(one.value, one.low, one.high, one.n, one.direction)


def _upper(one: Measurement) -> Number:
    """A bound from above."""
    return Number(one.value, one.value, one.value, one.n, "up", bound=True)


def _complement(one: Number) -> Number:
    flipped: Mapping[Direction, Direction] = {"down": "up", "up": "down", "nearest": "nearest"}
    return Number(1 - one.value, 1 - one.high, 1 - one.low, one.n, flipped[one.direction], one.bound)


def _claimed_bound(reader: Reader, gamma: float) -> Number:
    """What Theorem 2 claims as a bound: of the counterexample, or an upper bound of it on a network's noisy images."""
    record = reader.record
    if record.kind == "counterexample":
        return _upper(reader.at("claimed bound", gamma))
    value = 1 - gamma * math.prod(open_run(record.path.parent).shape) * record.settings["sigma"] ** 2
    return Number(value, value, value, len(record.rows), "up", bound=True)


def _true_loss(reader: Reader, gamma: float) -> Number:
    if reader.record.kind == "counterexample":
        return Number(1.0, 1.0, 1.0, 1)
    return _complement(_plain(reader.at(UNDER_NOISE)))


def _points(found: Sequence[Measurement]) -> CurvePoints:
    x, y, n = tuple(one.at or 0.0 for one in found), tuple(one.value for one in found), found[0].n
    low, high = (
        tuple(one.value if end is None else end for one, end in zip(found, ends, strict=True))
        for ends in ([one.low for one in found], [one.high for one in found])
    )
    return CurvePoints(x, y, low, high, n)


def _certified_curve(reader: Reader, _: float) -> CurvePoints:
    settings = reader.record.settings
    sigma, n = settings["sigma"], settings["n"]
    x = [4 * sigma * step / (CURVE_POINTS - 1) for step in range(CURVE_POINTS)]
    reader.measurements  # noqa: B018  the summary must say what the rows do
    found = [one for one in measurements(reader.record, x) if one.quantity == CERTIFIED]
    # n noise samples can prove no larger radius: beyond it the share is zero, not an estimate.
    reach = float(certified_radius(clopper_pearson(n, n, settings["alpha"], "lower"), sigma))
    return _points([one if (one.at or 0.0) <= reach else replace(one, value=0.0, low=0.0, high=0.0) for one in found])


def _trade_off(reader: Reader, at: float) -> CurvePoints:
    x, y = (_plain(reader.at(ROBUST, radius)) for radius in (0.0, at))
    return CurvePoints((x.value,), (y.value,), (y.low,), (y.high,), y.n, (x.low,), (x.high,))


def _worst_case(quantity: str) -> Callable[[Reader, float], CurvePoints]:
    """A curve of the worst-case loss over rho = eps^2; a bound has no band."""

    def read(reader: Reader, _: float) -> CurvePoints:
        found = _points(reader.curve(quantity))
        return replace(found, x=tuple(eps**2 for eps in found.x))

    return read


def _epochs(key: str) -> Callable[[Reader, float], CurvePoints]:
    def read(reader: Reader, _: float) -> CurvePoints:
        rows = reader.record.rows
        y = tuple(row[key] for row in rows)
        return CurvePoints(tuple(float(row["epoch"]) for row in rows), y, y, y, len(y))

    return read


_NUMBERS: dict[str, Callable[[Reader, float], Number]] = {
    "error under attack": lambda reader, at: _complement(_plain(reader.at(ROBUST, at))),
    "certified error under shift": lambda reader, at: _complement(_plain(reader.at(SHIFT, at))),
    "curvature bound": lambda reader, _: _upper(reader.at("curvature bound")),
    "claimed bound": _claimed_bound,
    "true loss": _true_loss,
}
_CURVES: dict[str, Callable[[Reader, float], CurvePoints]] = {
    ROBUST: lambda reader, _: _points(reader.curve(ROBUST)),
    CERTIFIED: _certified_curve,
    "trade-off": _trade_off,
    **{quantity: _worst_case(quantity) for quantity in (WORST_CERTIFIED, WORST_ESTIMATE, WORST_LOWER)},
    "training loss": _epochs("loss"),
    "training accuracy": _epochs("accuracy"),
}
