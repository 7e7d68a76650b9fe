"""From a record to a number of a table or a curve of a figure, counted again from the rows."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from reproduction.specs import Reading
from rhobust.bounds import certified_radius, clopper_pearson
from rhobust.formatting import Direction
from rhobust.records import Record, read_json
from rhobust.stats import Share, share
from rhobust.training.run import FINGERPRINT, WEIGHTS, weights_metadata

CURVE_POINTS = 81
"""Radii at which a curve of certified accuracy is drawn."""


@dataclass(frozen=True)
class Number:
    """A number with its 95% interval, and the way in which it may be rounded."""

    value: float
    low: float
    high: float
    n: int
    """Examples behind it."""
    way: Direction = "nearest"
    bound: bool = False
    """Whether it is proved and no estimate: low and high then say on which side of it the truth lies."""


@dataclass(frozen=True)
class Trace:
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


def number(reading: Reading, record: Record) -> Number:
    """The number that a cell shows."""
    found = _NUMBERS[reading.what](record, reading.at)
    return found if reading.first is None else _robust_of_first(record, reading.at, reading.first)


def trace(reading: Reading, record: Record) -> Trace:
    """The curve that a panel shows."""
    return _TRACES[reading.what](record, reading.at)


def robust_shares(record: Record) -> dict[float, Share]:
    """The share left standing at each radius, counted from the rows; it must be what the summary says."""
    counts: dict[float, list[int]] = {}
    for row in record.rows:
        hits = counts.setdefault(row["radius"], [0, 0])
        hits[0] += not row["broken"]
        hits[1] += 1
    shares = {radius: share(k, n) for radius, (k, n) in counts.items()}
    told = {point["radius"]: point["accuracy"] for point in (record.summary or {})["robust_accuracy"]}
    _agree(record, "the accuracy at", told, {radius: counted.value for radius, counted in shares.items()})
    return shares


def certified_radii(record: Record) -> list[float]:
    """The certified radius of each example, below 0 where it is wrong or not certified."""
    radii = [row["radius"] if row["prediction"] == row["label"] else -1.0 for row in record.rows]
    told = {point["radius"]: point["accuracy"] for point in (record.summary or {})["certified_accuracy"]}
    _agree(record, "the accuracy at", told, {at: _certified(radii, at).value for at in told})
    return radii


def _certified(radii: Sequence[float], at: float) -> Share:
    return share(sum(radius >= at for radius in radii), len(radii))


def _agree(record: Record, what: str, told: dict[float, float], counted: dict[float, float]) -> None:
    """Refuse a record whose summary says something else than its rows."""
    for at in told.keys() | counted.keys():
        if at not in told or at not in counted or abs(told[at] - counted[at]) > 1e-9:
            raise ValueError(
                f"{record.path} must have the summary that its rows give, but {what} {at:g} is {told.get(at)}, and by "
                f"the rows {counted.get(at)}"
            )


def _check(record: Record, key: str, counted: float) -> None:
    """Refuse a record whose summary has another number than its rows give."""
    told = (record.summary or {})[key]
    if abs(told - counted) > 1e-9:
        raise ValueError(
            f"{record.path} must have the summary that its rows give, but its {key} is {told}, and by the rows "
            f"{counted}"
        )


def _robust(record: Record, at: float) -> Number:
    found = robust_shares(record)[at]
    return Number(found.value, found.low, found.high, found.n)


def _robust_of_first(record: Record, at: float, images: int) -> Number:
    left = [not row["broken"] for row in record.rows if row["radius"] == at and row["index"] < images]
    found = share(sum(left), len(left))
    return Number(found.value, found.low, found.high, found.n)


def _error(record: Record, at: float) -> Number:
    found = robust_shares(record)[at]
    return Number(1 - found.value, 1 - found.high, 1 - found.low, found.n)


def _distance(record: Record, _: float) -> Number:
    mean, margin, n = _mean([row["squared_distance"] for row in record.rows])
    _check(record, "eps", math.sqrt(mean))
    return Number(math.sqrt(mean), math.sqrt(max(0.0, mean - margin)), math.sqrt(mean + margin), n)


def _curvature(record: Record, _: float) -> Number:
    largest = max(record.rows, key=lambda row: abs(row["curvature"]))
    value, margin = abs(largest["curvature"]), 1.96 * largest["standard_error"]
    _check(record, "largest", value)
    return Number(value, value - margin, value + margin, len(record.rows))


def _sharp(record: Record, _: float) -> Number:
    value = (record.summary or {})["sharp"]
    return Number(value, value, value, len(record.rows), "up", bound=True)


def _claimed(record: Record, gamma: float) -> Number:
    """What Theorem 2 claims as a bound: of the counterexample, or at most so much on a network's noisy images."""
    if record.kind == "counterexample":
        value = next(row["claimed"] for row in record.rows if row["gamma"] == gamma)
        return Number(value, value, value, 1, "up", bound=True)
    value = 1 - gamma * math.prod(_shape(record.path.parent)) * record.settings["sigma"] ** 2
    return Number(value, value, value, len(record.rows), "up", bound=True)


def _shape(run: Path) -> list[int]:
    """The shape of the images that a run's network takes."""
    path = run / WEIGHTS
    return (weights_metadata(path) if path.exists() else read_json(run / FINGERPRINT))["shape"]


def _true_loss(record: Record, _: float) -> Number:
    if record.kind == "counterexample":
        return Number(1.0, 1.0, 1.0, 1)
    mean, margin, n = _errors(record)
    return Number(mean, max(0.0, mean - margin), min(1.0, mean + margin), n)


def _errors(record: Record) -> tuple[float, float, int]:
    """The error of one noisy vote, 1.96 of its standard errors over the points, and their number."""
    mean, margin, n = _mean([row["errors"] / row["draws"] for row in record.rows])
    _check(record, "accuracy_under_noise", 1 - mean)
    return mean, margin, n


def _error_at_most(record: Record, at: float) -> Number:
    _errors(record)
    point = next(point for point in (record.summary or {})["curve"] if point["eps"] == at)
    value = 1 - point["certified_accuracy"]
    return Number(value, 0.0, value, len(record.rows), "up", bound=True)


def _certified_at(record: Record, at: float) -> Number:
    found = _certified(certified_radii(record), at)
    return Number(found.value, found.low, found.high, found.n, "down")


def _average_radius(record: Record, _: float) -> Number:
    mean, margin, n = _mean([max(0.0, radius) for radius in certified_radii(record)])
    return Number(mean, max(0.0, mean - margin), mean + margin, n, "down")


def _accuracy_at_least(record: Record, at: float) -> Number:
    point = next(point for point in (record.summary or {})["curve"] if point["eps"] == at)
    value = point["certified_accuracy"]
    return Number(value, value, 1.0, len(record.rows), "down", bound=True)


def _mean(values: Sequence[float]) -> tuple[float, float, int]:
    """The mean, and 1.96 of its standard errors."""
    n = len(values)
    mean = math.fsum(values) / n
    variance = math.fsum((value - mean) ** 2 for value in values) / max(1, n - 1)
    return mean, 1.96 * math.sqrt(variance / n), n


def _shares(x: Sequence[float], shares: Sequence[Share]) -> Trace:
    columns = zip(*((found.value, found.low, found.high) for found in shares), strict=True)
    y, low, high = (tuple(column) for column in columns)
    return Trace(tuple(x), y, low, high, shares[0].n)


def _robust_curve(record: Record, _: float) -> Trace:
    shares = dict(sorted(robust_shares(record).items()))
    return _shares(list(shares), list(shares.values()))


def _bound_curve(key: str) -> Callable[[Record, float], Trace]:
    """A curve of the worst loss over rho; a bound is no estimate, so it has no band."""

    def read(record: Record, _: float) -> Trace:
        _errors(record)
        curve = (record.summary or {})["curve"]
        y = tuple(point[key] for point in curve)
        return Trace(tuple(point["rho"] for point in curve), y, y, y, len(record.rows))

    return read


def _certified_curve(record: Record, _: float) -> Trace:
    radii = certified_radii(record)
    sigma, n = record.settings["sigma"], record.settings["n"]
    x = [4 * sigma * step / (CURVE_POINTS - 1) for step in range(CURVE_POINTS)]
    # So many draws can prove no more than this: beyond it the share is zero, not an estimate of it.
    reach = float(certified_radius(clopper_pearson(n, n, record.settings["alpha"], "lower"), sigma))
    none = Share(0, len(radii), 0.0, 0.0)
    return _shares(x, [_certified(radii, at) if at <= reach else none for at in x])


def _tradeoff(record: Record, at: float) -> Trace:
    shares = robust_shares(record)
    x, y = shares[0.0], shares[at]
    return Trace((x.value,), (y.value,), (y.low,), (y.high,), y.n, (x.low,), (x.high,))


def _epochs(key: str) -> Callable[[Record, float], Trace]:
    def read(record: Record, _: float) -> Trace:
        y = tuple(row[key] for row in record.rows)
        return Trace(tuple(float(row["epoch"]) for row in record.rows), y, y, y, len(y))

    return read


_NUMBERS: dict[str, Callable[[Record, float], Number]] = {
    "robust": _robust,
    "error": _error,
    "distance": _distance,
    "curvature": _curvature,
    "sharp": _sharp,
    "claimed": _claimed,
    "true_loss": _true_loss,
    "error_at_most": _error_at_most,
    "certified_at": _certified_at,
    "average_radius": _average_radius,
    "accuracy_at_least": _accuracy_at_least,
}
_TRACES: dict[str, Callable[[Record, float], Trace]] = {
    "robust": _robust_curve,
    "certified_accuracy": _certified_curve,
    "tradeoff": _tradeoff,
    "certified": _bound_curve("certified"),
    "estimate": _bound_curve("estimate"),
    "lower": _bound_curve("lower"),
    "loss": _epochs("loss"),
    "accuracy": _epochs("accuracy"),
}
