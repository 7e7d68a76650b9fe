"""Checks that all readers of records share: what a row or a summary must hold, in one line that says so."""

from collections.abc import Iterator

from rhobust.measurements.counting import is_number, same
from rhobust.records import Record, Row

LONGEST = 200
"""Characters of a summary's text that a message quotes."""


def numbered_rows(record: Record) -> Iterator[tuple[int, Row]]:
    """The rows with their lines in the file; a row without an index is damage."""
    for number, row in enumerate(record.rows, start=2):
        integer(row, "index", number)
        yield number, row


def integer(row: Row, key: str, number: int) -> int:
    """A whole number of a row, by the row's line in the file."""
    value = row.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"line {number}: {key} must be an integer, got {value!r}")
    return value


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
