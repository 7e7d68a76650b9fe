"""Records to measurements: every number is counted from the rows, and a summary that says otherwise is refused."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rhobust.formatting import format_distance
from rhobust.measurements.certified import other_parts, unproved_rows
from rhobust.measurements.conformal import read_conform
from rhobust.measurements.corruptions import read_corruptions
from rhobust.measurements.counting import (
    base_accuracy,
    by_radius,
    certified_at_least,
    certified_curve,
    check_curve,
    check_number,
    integer,
    is_number,
    nonnegative,
    numbered_rows,
    other_summary,
    outcomes,
    robust_curve,
    single_rows,
    summary_points,
    whole_examples,
)
from rhobust.measurements.quantities import (
    ALL_AT_ONCE,
    AVERAGE_RADIUS,
    BASE,
    CERTIFIED,
    ROBUST,
    UNDER_NOISE,
    Measurement,
)
from rhobust.measurements.shift_attack import read_shift_attack
from rhobust.measurements.shifts import read_losses, read_measured, read_shift, under_noise
from rhobust.records import COMPRESSED, PLAIN, Record, Row, read_record
from rhobust.stats import mean

CURVE = "certified_accuracy"
"""Part of a summary of certify: the curve over radii."""


def read_finished(path: Path | str) -> Record:
    """Read a finished record, unchanged since it was written.

    Raises:
        ValueError: It is missing, damaged, unfinished or changed: one line that says so.
    """
    record = read_record(path)
    check_written(record)
    _check_finished(record)
    return record


def measurements(record: Record, radii: Sequence[float] | None = None) -> list[Measurement]:
    """The numbers of a record, counted from its rows.

    Radii are proved again from the counts of their rows, and bounds for distributions, with their sentences, from all
    rows together. An attack or a certificate for inputs may be unfinished: the whole examples so far are counted.

    Args:
        record: A record of one of the `READERS`.
        radii: Of certificates for inputs, where to give the certified accuracy; default: at the summary's radii.

    Raises:
        ValueError: The kind is unknown, a row is damaged, the record was changed, or the summary has another number
            than the rows give.
    """
    if record.kind not in READERS:
        raise ValueError(f"{record.path} must be a record of {', '.join(READERS)}, got {record.kind!r}")
    check_unchanged(record)
    if record.kind not in UNFINISHED:
        _check_finished(record)
    if not isinstance(record.settings, dict):
        raise ValueError(f"settings must be a JSON object, got {type(record.settings).__name__}")
    if record.summary is not None and not isinstance(record.summary, dict):
        raise ValueError(f"summary must be a JSON object, got {type(record.summary).__name__}")
    if not record.rows:
        raise ValueError(f"{record.path} must have one row at least, got none")
    return list(READERS[record.kind](record, radii))


def predicted_by(record: Record, target: str) -> Record:
    """What one network makes of a transfer attack, as the record of an attack.

    Args:
        record: A record of kind "transfer".
        target: Hash of the network's weights.
    """
    rows = [row for row in record.rows if row.get("target") == target]
    summary = None
    if record.summary is not None:
        summary = next((one for one in summary_points(record, "targets") if one.get("model_hash") == target), {})
    return replace(record, kind="attack", rows=rows, summary=summary)


def check_written(record: Record) -> None:
    """Refuse a record whose file was changed after it was finished, or is finished without a digest."""
    check_unchanged(record)
    if record.summary is not None and record.digest is None:
        raise ValueError(
            f"{record.path} must have a digest, but it has none: another program wrote it, or the digest was removed"
        )


def check_unchanged(record: Record) -> None:
    """Refuse a record that was changed after it was finished."""
    if not record.intact:
        raise ValueError(f"{record.path} must be as it was written, but it was changed: delete it to evaluate it again")


def _check_finished(record: Record) -> None:
    if record.summary is None:
        raise ValueError(
            f"{record.path} must be finished, but it has {len(record.rows)} rows and no summary: the same command again"
            " finishes it"
        )


def _attack(record: Record, _: Sequence[float] | None) -> Iterator[Measurement]:
    for number, row in numbered_rows(record):
        nonnegative(row, "radius", number)
        if not isinstance(row.get("broken"), bool):
            raise ValueError(f"line {number}: broken must be true or false, got {row.get('broken')!r}")
        for key in ("votes", "label_votes", "rival_votes") if "votes" in row or "label_votes" in row else ():
            integer(row, key, number)
        if "distance" in row:
            nonnegative(row, "distance", number)
    found = by_radius(whole_examples(record))
    if not found:
        raise ValueError(f"{record.path} must have one whole example at least, got none")
    indices = [sorted(row["index"] for row in rows) for rows in found.values()]
    for at, here in zip(found, indices, strict=True):
        if len(set(here)) < len(here):
            raise ValueError(f"an example must have one row per radius, some have two at radius {format_distance(at)}")
        if here != indices[0]:
            raise ValueError(f"radius {format_distance(at)} must have a row for every example, but some lack it")
    curve = robust_curve(whole_examples(record), sorted(found))
    check_curve(record, "robust_accuracy", curve)
    for point in curve:
        # Nothing is attacked at radius 0: it is the accuracy on the data itself.
        status = "upper bound" if point["radius"] > 0 else "estimate"
        votes = {key: point[key] for key in ("undecided", "least", "most") if key in point}
        yield Measurement.counted(ROBUST, point["radius"], point, status, **votes)


def _certify(record: Record, radii: Sequence[float] | None) -> Iterator[Measurement]:
    for number, row in single_rows(record):
        nonnegative(row, "radius", number)
        if row.get("prediction") is not None:
            integer(row, "prediction", number), integer(row, "label", number)
    _check_counts(record)
    listed = [point.get("radius") for point in summary_points(record, CURVE)]
    if record.summary is None:
        listed = record.settings.get("radii")
    listed = listed if isinstance(listed, list) else []
    found = certified_curve(record.rows, sorted({float(radius) for radius in listed if is_number(radius)}))
    curve, average = found[CURVE], found["average_certified_radius"]
    check_curve(record, CURVE, [{**point, "at_least": _at_least(record, point)} for point in curve])
    check_number(record, "average_certified_radius", average)
    _check_summary(record)
    yield from certified(record, [point["radius"] for point in curve] if radii is None else radii)
    spread = mean(list(outcomes(record, AVERAGE_RADIUS).values()))
    yield Measurement(AVERAGE_RADIUS, None, average, max(0.0, spread.low), spread.high, spread.n, "proved")


def _check_counts(record: Record) -> None:
    """Refuse certificates that their counts do not prove; a table of Cohen et al. has none, and claims only."""
    if not _has_counts(record):
        return
    with _naming_damage(record):
        problem = next(unproved_rows(record.rows, record.settings), None)
    if problem is not None:
        raise ValueError(f"{record.path} must hold radii that its counts prove, but {problem}")


def _check_summary(record: Record) -> None:
    """Refuse certificates with another statement, or other numbers, than their rows give; older summaries say less."""
    if record.summary is None or not _has_counts(record):
        return
    with _naming_damage(record):
        # The curve was checked, at whatever radii the summary has it.
        wrong = next((part for part in other_parts(record) if part[0] != CURVE and part[1] is not None), None)
    if wrong is not None:
        raise other_summary(record, *wrong)


def _has_counts(record: Record) -> bool:
    return record.path.name.endswith((PLAIN, COMPRESSED))


@contextmanager
def _naming_damage(record: Record) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise ValueError(
            f"{record.path} must hold the settings and counts of certificates, but {error!r} is missing or wrong"
        ) from None


def certified(record: Record, radii: Sequence[float]) -> list[Measurement]:
    """The certified accuracy at any radii, of single examples and of all at once, without looking at the summary.

    Of an unfinished record nothing is said of all at once: whoever stopped it chose the number of examples by the rows.

    Args:
        record: A record of kind "certify".
        radii: Where.
    """
    curve = certified_curve(record.rows, radii)[CURVE]
    found = [Measurement.counted(CERTIFIED, at["radius"], at, "proved") for at in curve]
    together = [(point, _at_least(record, point)) for point in curve if record.summary is not None]
    return found + [
        Measurement(ALL_AT_ONCE, point["radius"], value, None, None, point["n"], "proved")
        for point, value in together
        if value is not None
    ]


def _at_least(record: Record, point: Row) -> float | None:
    """What is certified at a radius of all examples at once; None where no alpha is known, as for a table."""
    alpha = record.settings.get("alpha")
    known = isinstance(alpha, float) and 0 < alpha < 1
    return certified_at_least(round(point["accuracy"] * point["n"]), point["n"], alpha) if known else None


def _transfer(record: Record, _: Sequence[float] | None) -> Iterator[Measurement]:
    for target in dict.fromkeys(str(row.get("target")) for row in record.rows):
        for one in _attack(predicted_by(record, target), None):
            yield replace(one, detail={**one.detail, "target": target})


def _accuracy(record: Record, _: Sequence[float] | None) -> Iterator[Measurement]:
    for number, row in single_rows(record):
        for key in ("label", "prediction", *(("draws", "errors") if "errors" in row else ())):
            integer(row, key, number)
    found = base_accuracy(record.rows)
    point = found["base_accuracy"]
    check_number(record, "base_accuracy", point)
    yield Measurement.counted(BASE, None, point, "estimate")
    if "accuracy_under_noise" in found:
        yield under_noise(record, UNDER_NOISE, found["accuracy_under_noise"])


READERS: dict[str, Callable[[Record, Sequence[float] | None], Iterator[Measurement]]] = {
    "accuracy": _accuracy,
    "attack": _attack,
    "attack-shift": read_shift_attack,
    "certify": _certify,
    "certify-shift": read_shift,
    "conform": read_conform,
    "curves": read_losses,
    "corruptions": read_corruptions,
    "measure-shift": read_measured,
    "transfer": _transfer,
}
"""How records of each kind are read; evaluations of other packages may add their own."""
UNFINISHED = ("attack", "certify")
"""Kinds whose numbers are known before the record is finished."""
