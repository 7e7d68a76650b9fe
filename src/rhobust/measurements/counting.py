"""What the rows of a record add up to, and what a row or a summary must hold, in one line that says so.

Summaries are written and checked with these functions, and with no others.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from rhobust.bounds import failure_quantile
from rhobust.formatting import format_distance
from rhobust.measurements.quantities import (
    AVERAGE_RADIUS,
    BASE,
    CERTIFIED,
    LABEL_VOTES,
    LOSS_UNDER_NOISE,
    ROBUST,
    UNDER_NOISE,
)
from rhobust.records import Record, Row
from rhobust.stats import share

VOTE_LEVEL = 0.05
"""Level of the two-sided binomial test of the votes for the label against those for the runner-up class."""
EXACT = 1e-9
"""How far a number may be from the recorded one: versions of numpy and scipy round differently."""
LONGEST = 200
"""Characters of a summary's text that a message quotes."""


def not_significant(rows: Sequence[Row]) -> list[bool]:
    """For each row of an attack whether its vote is not significant at `VOTE_LEVEL`.

    The test is two-sided and binomial: would a fair coin split label and runner-up class as unevenly with a larger
    probability? A prediction of the base network has no votes and is always decided.
    """
    ours, theirs = (np.array([row.get(key, 0) for row in rows]) for key in ("label_votes", "rival_votes"))
    p = 2 * stats.binom.cdf(np.minimum(ours, theirs), ours + theirs, 0.5)
    voted = np.array(["votes" in row for row in rows], dtype=bool)
    return (voted & (p > VOTE_LEVEL)).tolist()


def robust_accuracy(rows: Sequence[Row]) -> Row:
    """The robust accuracy of an attack's rows at one radius, with its interval over the choice of examples.

    `undecided` counts the votes that are not significant at `VOTE_LEVEL`; `least` and `most` are the accuracies if all
    of them went against the label, or for it.
    """
    broken, close = [row["broken"] for row in rows], not_significant(rows)
    robust = len(rows) - sum(broken)
    point: Row = share(robust, len(rows)).as_row()
    if "votes" in rows[0]:
        against = sum(open_ and not lost for open_, lost in zip(close, broken, strict=True))
        point["undecided"] = sum(close)
        point["least"] = (robust - against) / len(rows)
        point["most"] = (robust + sum(close) - against) / len(rows)
    return point


def robust_curve(rows: Sequence[Row], radii: Sequence[float]) -> list[Row]:
    """The robust accuracy at each radius."""
    found = by_radius(rows)
    return [{"radius": at, **robust_accuracy(found[at])} for at in radii]


def by_radius(rows: Sequence[Row]) -> dict[float, list[Row]]:
    """The rows of an attack, radius by radius."""
    found: dict[float, list[Row]] = {}
    for row in rows:
        found.setdefault(row["radius"], []).append(row)
    return found


def certified_curve(rows: Sequence[Row], radii: Sequence[float]) -> Row:
    """The certified accuracy at each radius, and the average certified radius.

    The certified accuracy at a radius is the share of examples that are right and certified there; at 0, the share
    that is right and certified at all. An abstention and a wrong class count as radius 0 in the average.
    """
    check_certificates(rows)
    right, radius = right_class(rows), np.array([row["radius"] for row in rows])
    hits = [int(np.sum(right & (radius >= at))) for at in radii]
    return {
        "certified_accuracy": [
            {"radius": at, **share(count, len(rows)).as_row()} for at, count in zip(radii, hits, strict=True)
        ],
        "average_certified_radius": float(np.where(right, radius, 0.0).mean()),
    }


def certified_at_least(certified: int, n: int, alpha: float) -> float:
    """A lower bound of the share of n examples that truly are right within a radius, for all radii at once.

    Guarantee: with probability at least 1 - alpha over the noise no more than `failure_quantile(n, alpha, alpha)` of
    the n certificates are false; these are subtracted from the certified ones.
    """
    return max(0, certified - failure_quantile(n, alpha, alpha)) / n


def check_certificates(rows: Sequence[Row]) -> None:
    """Refuse rows of attacks, and none at all."""
    if not rows or any("broken" in row for row in rows):
        given = "those of an attack, which proves nothing" if rows else "none"
        raise ValueError(f"rows must be those of certificates, got {given}")


def right_class(rows: Sequence[Row]) -> NDArray[np.bool_]:
    """Which certificates are of the right class."""
    return np.array([row.get("prediction") is not None and row["prediction"] == row["label"] for row in rows])


def accuracy_under_noise(rows: Sequence[Row], errors: str = "errors") -> float:
    """The accuracy of one noisy prediction, from counts of errors among the noise samples of each point."""
    return 1 - sum(row[errors] for row in rows) / sum(row["draws"] for row in rows)


def base_accuracy(rows: Sequence[Row]) -> Row:
    """The accuracy of the base network, and of one noisy prediction where noise was drawn."""
    right = sum(row["prediction"] == row["label"] for row in rows)
    found: Row = {"base_accuracy": share(right, len(rows)).as_row()}
    return found | ({"accuracy_under_noise": accuracy_under_noise(rows)} if "errors" in rows[0] else {})


def outcomes(record: Record, quantity: str, at: float | None = None) -> dict[int, float]:
    """What a record says of each image: the numbers whose mean is the quantity, by the image's index.

    Robust and certified accuracy are 1 or 0, the certified radius is 0 for a wrong class or an abstention, accuracy
    and loss under noise are means over the image's noise samples.

    Args:
        record: A record, see `measurements`.
        quantity: `ROBUST`, `CERTIFIED`, `AVERAGE_RADIUS`, `UNDER_NOISE`, `LOSS_UNDER_NOISE` or `LABEL_VOTES`.
        at: The radius.

    Raises:
        ValueError: The record says nothing of this quantity there, or lists an image twice.
    """
    values = _OUTCOMES.get(quantity)
    found = [] if values is None else values(whole_examples(record), at)
    if not found:
        where = "" if at is None else f" at {format_distance(at)}"
        raise ValueError(f"{record.path.name} must have the {quantity} of images{where}, but it does not")
    paired = dict(found)
    if len(paired) < len(found):
        raise ValueError(f"{record.path.name} must list an image once to compare it, and some are listed twice")
    return paired


def whole_examples(record: Record) -> Sequence[Row]:
    """The rows; of an attack that is unfinished those of whole examples, since a kill may have cut one off."""
    if record.kind != "attack" or record.summary is not None:
        return record.rows
    listed = record.settings.get("radii")
    last = max((radius for radius in listed if is_number(radius)), default=0.0) if isinstance(listed, list) else 0.0
    whole = {row.get("index") for row in record.rows if row.get("radius") == last}
    return [row for row in record.rows if row.get("index") in whole]


_OUTCOMES: dict[str, Callable[[Sequence[Row], float | None], list[tuple[int, float]]]] = {
    ROBUST: lambda rows, at: [
        (row["index"], float(not row["broken"])) for row in rows if "broken" in row and row["radius"] == at
    ],
    CERTIFIED: lambda rows, at: [
        (row["index"], float(right and row["radius"] >= (at or 0.0)))
        for row, right in zip(rows, _rights(rows), strict=False)
    ],
    AVERAGE_RADIUS: lambda rows, _: [
        (row["index"], row["radius"] if right else 0.0) for row, right in zip(rows, _rights(rows), strict=False)
    ],
    UNDER_NOISE: lambda rows, _: [(row["index"], 1 - row["errors"] / row["draws"]) for row in rows if "errors" in row],
    LOSS_UNDER_NOISE: lambda rows, _: [(row["index"], row["loss"]) for row in rows if "loss" in row],
    BASE: lambda rows, _: [
        (row["index"], float(row["prediction"] == row["label"])) for row in rows if "prediction" in row
    ],
    LABEL_VOTES: lambda rows, at: [
        (row["index"], row["label_votes"]) for row in rows if "label_votes" in row and row["radius"] == at
    ],
}


def _rights(rows: Sequence[Row]) -> list[bool]:
    """Which rows are certificates of the right class; nothing for rows of another kind."""
    if not rows or "prediction" not in rows[0] or "broken" in rows[0]:
        return []
    return right_class(rows).tolist()


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a number that can be shown: 1e308 is damage, not a radius."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e12


def same(stated: object, found: object) -> bool:
    """Whether two JSON values are the same, numbers up to `EXACT`."""
    if isinstance(found, Mapping):
        return (
            isinstance(stated, Mapping)
            and stated.keys() == found.keys()
            and all(same(stated[key], found[key]) for key in found)
        )
    if isinstance(found, list | tuple):
        return isinstance(stated, list | tuple) and len(stated) == len(found) and all(map(same, stated, found))
    if isinstance(found, float):
        return isinstance(stated, float | int) and math.isclose(stated, found, rel_tol=EXACT, abs_tol=EXACT)
    return stated == found


def numbered_rows(record: Record) -> Iterator[tuple[int, Row]]:
    """The rows with their lines in the file; a row without an index is damage."""
    for number, row in enumerate(record.rows, start=2):
        integer(row, "index", number)
        yield number, row


def single_rows(record: Record) -> Iterator[tuple[int, Row]]:
    """As `numbered_rows`; a second row of an example is damage: what it says would count twice."""
    seen: set[int] = set()
    for number, row in numbered_rows(record):
        if row["index"] in seen:
            raise ValueError(f"line {number}: an example must have one row, got {row['index']} twice")
        seen.add(row["index"])
        yield number, row


def integer(row: Row, key: str, number: int) -> int:
    """A whole number of a row, by the row's line in the file."""
    value = row.get(key)
    if not is_whole(value):
        raise ValueError(f"line {number}: {key} must be an integer, got {value!r}")
    return value


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a JSON value is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def nonnegative(row: Row, key: str, number: int) -> float:
    """A number >= 0 of a row, by the row's line in the file."""
    value = row.get(key)
    if not is_number(value) or value < 0:
        raise ValueError(f"line {number}: {key} must be a number >= 0, got {value!r}")
    return float(value)


def summary_points(record: Record, key: str) -> list[Row]:
    """A list of the summary; empty where there is none."""
    points = (record.summary or {}).get(key, [])
    if not isinstance(points, list) or not all(isinstance(point, dict) for point in points):
        raise ValueError(f"the summary's {key} must be a list of objects, got {points!r}")
    return points


def check_curve(record: Record, key: str, found: list[Row]) -> None:
    """Refuse a summary that has another curve than the rows give."""
    stated = {nonnegative(point, "radius", len(record.rows) + 2): point for point in summary_points(record, key)}
    counted = {point["radius"]: point for point in found}
    for radius in (stated.keys() | counted.keys()) if stated else ():
        ours, theirs = counted.get(radius, {}), stated.get(radius, {})
        for name in ("accuracy", *(ours.keys() & theirs.keys() & {"undecided", "least", "most", "at_least"})):
            if name not in ours or not same(theirs.get(name), ours[name]):
                raise other_summary(record, f"{name} at radius {radius}", theirs.get(name), ours.get(name))


def check_number(record: Record, key: str, found: object) -> None:
    """Refuse a summary that has another number than the rows give."""
    stated = (record.summary or {}).get(key)
    if stated is not None and not same(stated, found):
        raise other_summary(record, key.replace("_", " "), stated, found)


def other_summary(record: Record, what: str, stated: object, found: object) -> ValueError:
    """The error of a record whose summary is not the one that its rows give."""
    said = str(stated) if len(str(stated)) <= LONGEST else f"{str(stated)[:LONGEST]}..."
    return ValueError(
        f"{record.path} must have the summary that its rows give, but its {what} is {said}, and by the rows {found}"
    )
