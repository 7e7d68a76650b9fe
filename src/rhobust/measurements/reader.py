"""Records to measurements: every number is counted from the rows, and a summary that says otherwise is refused."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rhobust.formatting import format_distance
from rhobust.measurements.counting import (
    accuracy_under_noise,
    base_accuracy,
    by_radius,
    certified_at_least,
    certified_curve,
    is_number,
    outcomes,
    robust_curve,
    same,
    whole_examples,
)
from rhobust.measurements.quantities import (
    AFTER,
    ALL_AT_ONCE,
    AVERAGE_RADIUS,
    BASE,
    BEFORE,
    CERTIFIED,
    CERTIFIED_AFTER,
    CHANGE,
    LOSS_UNDER_NOISE,
    ROBUST,
    SHIFT,
    SHIFT_LOSS,
    UNDER_NOISE,
    WORST_CERTIFIED,
    WORST_ESTIMATE,
    WORST_LOWER,
    Measurement,
    Status,
)
from rhobust.records import Record, Row, read_record
from rhobust.stats import Mean, mean


def read_finished(path: Path | str) -> Record:
    """Read a finished record, unchanged since it was written.

    Raises:
        ValueError: It is missing, damaged, unfinished or changed: one line that says so.
    """
    record = read_record(path)
    _check_intact(record, unfinished=())
    return record


def measurements(record: Record, radii: Sequence[float] | None = None) -> list[Measurement]:
    """The numbers of a record, counted from its rows.

    Bounds that a certificate for distributions computes from all rows together are taken from the summary. An attack
    or a certificate for inputs may be unfinished: the whole examples so far are counted.

    Args:
        record: A record of one of the `READERS`.
        radii: Of certificates for inputs, where to give the certified accuracy; default: at the summary's radii.

    Raises:
        ValueError: The kind is unknown, a row is damaged, the record was changed, or the summary has another number
            than the rows give.
    """
    if record.kind not in READERS:
        raise ValueError(f"{record.path} must be a record of {', '.join(READERS)}, got {record.kind!r}")
    _check_intact(record, unfinished=UNFINISHED)
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
        summary = next((one for one in _points(record, "targets") if one.get("model_hash") == target), {})
    return replace(record, kind="attack", rows=rows, summary=summary)


def check_unchanged(record: Record) -> None:
    """Refuse a record that was changed after it was finished."""
    if not record.intact:
        raise ValueError(f"{record.path} must be as it was written, but it was changed: delete it to evaluate it again")


def _check_intact(record: Record, unfinished: Sequence[str]) -> None:
    """Refuse a record that was changed, or that is unfinished and not of these kinds."""
    check_unchanged(record)
    if record.summary is None and record.kind not in unfinished:
        raise ValueError(
            f"{record.path} must be finished, but it has {len(record.rows)} rows and no summary: the same command again"
            " finishes it"
        )


def _attack(record: Record, _: Sequence[float] | None) -> Iterator[Measurement]:
    for number, row in _lines(record):
        _nonnegative(row, "radius", number)
        if not isinstance(row.get("broken"), bool):
            raise ValueError(f"line {number}: broken must be true or false, got {row.get('broken')!r}")
        for key in ("votes", "label_votes", "rival_votes") if "votes" in row or "label_votes" in row else ():
            _integer(row, key, number)
        if "distance" in row:
            _nonnegative(row, "distance", number)
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
    _check_curve(record, "robust_accuracy", curve)
    for point in curve:
        yield Measurement(
            ROBUST,
            point["radius"],
            *(point[key] for key in ("accuracy", "low", "high", "n")),
            # Nothing is attacked at radius 0: it is the accuracy on the data itself.
            status="upper bound" if point["radius"] > 0 else "estimate",
            detail={key: point[key] for key in ("undecided", "least", "most") if key in point},
        )


def _certify(record: Record, radii: Sequence[float] | None) -> Iterator[Measurement]:
    seen: set[int] = set()
    for number, row in _lines(record):
        _nonnegative(row, "radius", number)
        if row["index"] in seen:
            raise ValueError(f"line {number}: an example must have one row, got {row['index']} twice")
        seen.add(row["index"])
        if row.get("prediction") is not None:
            _integer(row, "prediction", number), _integer(row, "label", number)
    listed = [point.get("radius") for point in _points(record, "certified_accuracy")]
    if record.summary is None:
        listed = record.settings.get("radii")
    listed = listed if isinstance(listed, list) else []
    found = certified_curve(record.rows, sorted({float(radius) for radius in listed if is_number(radius)}))
    curve, average = found["certified_accuracy"], found["average_certified_radius"]
    _check_curve(record, "certified_accuracy", curve)
    _check(record, "average_certified_radius", average)
    yield from certified(record, [point["radius"] for point in curve] if radii is None else radii)
    spread = mean(list(outcomes(record, AVERAGE_RADIUS).values()))
    yield Measurement(AVERAGE_RADIUS, None, average, max(0.0, spread.low), spread.high, spread.n, "proved")


def certified(record: Record, radii: Sequence[float]) -> list[Measurement]:
    """The certified accuracy at any radii, of single examples and of all at once, without looking at the summary.

    Args:
        record: A record of kind "certify".
        radii: Where.
    """
    curve = certified_curve(record.rows, radii)["certified_accuracy"]
    found = [
        Measurement(CERTIFIED, at["radius"], at["accuracy"], at["low"], at["high"], at["n"], "proved") for at in curve
    ]
    alpha = record.settings.get("alpha")
    if isinstance(alpha, float) and 0 < alpha < 1:
        for at in curve:
            value = certified_at_least(round(at["accuracy"] * at["n"]), at["n"], alpha)
            found.append(Measurement(ALL_AT_ONCE, at["radius"], value, None, None, at["n"], "proved"))
    return found


def _shift(record: Record, _: Sequence[float] | None) -> Iterator[Measurement]:
    if record.settings.get("loss", "0-1") != "0-1":
        yield from _losses(record, _)
        return
    errors, draws = (sum(_integer(row, key, number) for number, row in _lines(record)) for key in ("errors", "draws"))
    if not 0 <= errors <= draws or draws == 0:
        raise ValueError(f"errors must be in 0..draws with draws >= 1, got {errors} of {draws}")
    yield _under_noise(record, UNDER_NOISE, accuracy_under_noise(record.rows))
    claim = {key: record.settings.get(key, default) for key, default in _CLAIM.items()}
    for eps, value in _bounds(_points(record, "curve"), "certified_accuracy", 1.0):
        yield Measurement(SHIFT, eps, value, None, None, len(record.rows), "proved", claim)
    for other in _points(record, "beside"):
        sizes, accuracy = other.get("eps"), other.get("certified_accuracy")
        if not isinstance(sizes, list) or not isinstance(accuracy, list) or len(sizes) != len(accuracy):
            raise ValueError("a baseline must have as many eps as certified accuracies")
        points = [{"eps": eps, "accuracy": value} for eps, value in zip(sizes, accuracy, strict=True)]
        detail = {key: other.get(key) for key in ("cost", "classifier")} | {"baseline": str(other.get("name", ""))}
        for eps, value in _bounds(points, "accuracy", 1.0):
            yield Measurement(SHIFT, eps, value, None, None, len(record.rows), "proved", detail)


_CLAIM = {"cost": "w2", "classifier": "randomised", "votes": None, "way": None}
"""Settings of a certificate for distributions that say what is claimed, and what they were before they had a name."""


def _losses(record: Record, _: Sequence[float] | None) -> Iterator[Measurement]:
    largest, n = record.settings.get("bound"), len(record.rows)
    if not is_number(largest) or not largest > 0:
        raise ValueError(f"the settings' bound must be a number > 0, got {largest!r}")
    losses = [_nonnegative(row, "loss", number) for number, row in _lines(record)]
    yield _under_noise(record, LOSS_UNDER_NOISE, math.fsum(losses) / n)
    points = _points(record, "curve")
    claim = {key: record.settings.get(key) for key in ("loss", "bound")}
    claim["cost"] = record.settings.get("cost", "w2")
    curves: list[tuple[str, str, float, Status]] = [(SHIFT_LOSS, "certified_loss", largest, "proved")]
    if record.kind == "curves":
        curves = [
            (WORST_CERTIFIED, "certified", largest, "proved"),
            (WORST_LOWER, "lower", largest, "proved"),
            (WORST_ESTIMATE, "estimate", math.inf, "estimate"),
        ]
    for quantity, key, most, status in curves:
        for eps, value in _bounds(points, key, most):
            yield Measurement(quantity, eps, value, None, None, n, status, claim)


def _under_noise(record: Record, quantity: str, value: float) -> Measurement:
    """The mean over images of what was counted under noise; several noise samples of an image are not independent."""
    _check(record, quantity.replace(" ", "_"), value)
    per_image = mean(list(outcomes(record, quantity).values()))
    low, high = max(0.0, per_image.low), per_image.high
    if quantity == UNDER_NOISE:
        high = min(1.0, high)
    return Measurement(quantity, 0.0, value, low, high, len(record.rows), "estimate")


def _lines(record: Record) -> Iterator[tuple[int, Row]]:
    """The rows with their lines in the file; a row without an index is damage."""
    for number, row in enumerate(record.rows, start=2):
        _integer(row, "index", number)
        yield number, row


def _bounds(points: list[Row], key: str, largest: float) -> list[tuple[float, float]]:
    """(eps, bound), eps increasing; a bound outside [0, largest] is damage."""
    found = []
    for point in points:
        eps, value = point.get("eps"), point.get(key)
        if not is_number(eps) or eps < 0 or not is_number(value) or not 0 <= value <= largest + 1e-9:
            raise ValueError(f"the summary's curve must hold eps >= 0 and {key} in [0, {largest:g}], got {point!r}")
        found.append((float(eps), min(float(value), largest)))
    return sorted(found)


def _measured(record: Record, _: Sequence[float] | None) -> Iterator[Measurement]:
    rows = {key: [(number, row) for number, row in _lines(record) if key in row] for key in _COLUMNS}
    squares = [_nonnegative(row, "distance", number) ** 2 for number, row in rows["distance"]]
    if not squares:
        raise ValueError("there must be a distance in the rows, but there is none")
    eps = _root(mean(squares))
    yield Measurement(CHANGE, None, *eps, len(squares), "estimate")
    certificate = (record.summary or {}).get("certificate")
    if certificate is None:
        return
    if not isinstance(certificate, dict):
        raise ValueError(f"certificate must be a JSON object, got {type(certificate).__name__}")
    certified = certificate.get("certified_accuracy")
    if not is_number(certified) or not 0 <= certified <= 1:
        raise ValueError(f"certified_accuracy must be in [0, 1], got {certified!r}")
    if not sum(_integer(row, "draws", number) for number, row in rows["errors"]):
        raise ValueError("there must be votes in the rows, but there are none")
    at = eps[0]
    for quantity, key in ((BEFORE, "errors"), (AFTER, "errors_after")):
        votes = [row for number, row in rows[key] if _integer(row, key, number) >= 0]
        if votes:
            value, part = accuracy_under_noise(votes, key), quantity.split()[1]
            stated = (record.summary or {}).get(part)
            if isinstance(stated, dict) and is_number(stated.get("accuracy")) and not same(stated["accuracy"], value):
                raise _otherwise(record, quantity, stated["accuracy"], value)
            yield Measurement(quantity, 0.0 if key == "errors" else at, value, None, None, len(votes), "estimate")
    yield Measurement(CERTIFIED_AFTER, at, float(certified), None, None, len(rows["errors"]), "proved")


_COLUMNS = ("distance", "errors", "errors_after")


def _root(squared: Mean) -> tuple[float, float, float]:
    low, high = math.sqrt(max(0.0, squared.low)), math.sqrt(squared.high)
    return math.sqrt(squared.value), low, high


def _transfer(record: Record, _: Sequence[float] | None) -> Iterator[Measurement]:
    for target in dict.fromkeys(str(row.get("target")) for row in record.rows):
        for one in _attack(predicted_by(record, target), None):
            yield replace(one, detail={**one.detail, "target": target})


def _accuracy(record: Record, _: Sequence[float] | None) -> Iterator[Measurement]:
    for number, row in _lines(record):
        for key in ("label", "prediction", *(("draws", "errors") if "errors" in row else ())):
            _integer(row, key, number)
    found = base_accuracy(record.rows)
    point = found["base_accuracy"]
    _check(record, "base_accuracy", point)
    yield Measurement(BASE, None, *(point[key] for key in ("accuracy", "low", "high", "n")), status="estimate")
    if "accuracy_under_noise" in found:
        yield _under_noise(record, UNDER_NOISE, found["accuracy_under_noise"])


READERS: dict[str, Callable[[Record, Sequence[float] | None], Iterator[Measurement]]] = {
    "accuracy": _accuracy,
    "attack": _attack,
    "certify": _certify,
    "certify-shift": _shift,
    "curves": _losses,
    "measure-shift": _measured,
    "transfer": _transfer,
}
"""How records of each kind are read; evaluations of other packages may add their own."""
UNFINISHED = ("attack", "certify")
"""Kinds whose numbers are known before the record is finished."""


def _points(record: Record, key: str) -> list[Row]:
    points = (record.summary or {}).get(key, [])
    if not isinstance(points, list) or not all(isinstance(point, dict) for point in points):
        raise ValueError(f"the summary's {key} must be a list of objects, got {points!r}")
    return points


def _check_curve(record: Record, key: str, found: Sequence[Row]) -> None:
    """Refuse a summary that has another curve than the rows give."""
    stated = {_nonnegative(point, "radius", len(record.rows) + 2): point for point in _points(record, key)}
    counted = {point["radius"]: point for point in found}
    for radius in (stated.keys() | counted.keys()) if stated else ():
        ours, theirs = counted.get(radius, {}), stated.get(radius, {})
        for name in ("accuracy", *(ours.keys() & theirs.keys() & {"undecided", "least", "most"})):
            if name not in ours or not same(theirs.get(name), ours[name]):
                raise _otherwise(record, f"{name} at radius {radius}", theirs.get(name), ours.get(name))


def _check(record: Record, key: str, found: object) -> None:
    """Refuse a summary that has another number than the rows give."""
    stated = (record.summary or {}).get(key)
    if stated is not None and not same(stated, found):
        raise _otherwise(record, key.replace("_", " "), stated, found)


def _otherwise(record: Record, what: str, stated: object, found: object) -> ValueError:
    return ValueError(
        f"{record.path} must have the summary that its rows give, but its {what} is {stated}, and by the rows {found}"
    )


def _integer(row: Row, key: str, number: int) -> int:
    value = row.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"line {number}: {key} must be an integer, got {value!r}")
    return value


def _nonnegative(row: Row, key: str, number: int) -> float:
    value = row.get(key)
    if not is_number(value) or value < 0:
        raise ValueError(f"line {number}: {key} must be a number >= 0, got {value!r}")
    return float(value)
