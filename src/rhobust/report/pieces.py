"""Records to pieces: every number is counted again from the rows of its record."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeGuard

from rhobust.bounds import rejects_label
from rhobust.formatting import format_distance
from rhobust.records import Record, Row
from rhobust.report.run import Attack, Certificate, CloseVotes, Curve, Losses, Measured, Piece, Shift, Transfer
from rhobust.stats import Share, share

CLAIMS = ("match", "curvature", "counterexample")
"""Records behind the paper's claims: they say nothing of robustness, and `rhobust reproduce` shows them."""


def pieces_of(record: Record) -> list[Piece] | str:
    """What a record has to show, or the line that says why it is left out.

    An attack or a certificate for inputs that is unfinished shows the examples there are, with a warning.

    Raises:
        ValueError: The record is damaged: a row or the summary does not hold what it must.
    """
    name = record.path.name
    if record.kind in CLAIMS:
        return []
    if not isinstance(record.settings, dict):
        raise ValueError(f"settings must be a JSON object, got {type(record.settings).__name__}")
    if not isinstance(record.kind, str) or record.kind not in _READERS:
        return f"{name} is of kind {record.kind!r}, which this report does not know: left out."
    if not record.intact:
        return f"{name} was changed after it was finished: left out. Delete it and evaluate again."
    if record.summary is None and record.kind not in ("attack", "certify"):
        return f"{name} is unfinished ({len(record.rows)} rows so far): left out. The same command again finishes it."
    if record.summary is not None and not isinstance(record.summary, dict):
        raise ValueError(f"summary must be a JSON object, got {type(record.summary).__name__}")
    if not record.rows:
        return f"{name} has no rows: left out."
    return _READERS[record.kind](record, record.summary or {})


def _attack(record: Record, summary: Row) -> list[Piece] | str:
    answers: dict[float, dict[int, bool]] = {}
    votes: dict[int, int] = {}
    doubtless: dict[int, float] = {}
    for number, row in enumerate(record.rows, start=2):
        index, radius = _integer(row, "index", number), _nonnegative(row, "radius", number)
        if not isinstance(row.get("broken"), bool):
            raise ValueError(f"line {number}: broken must be true or false, got {row.get('broken')!r}")
        if index in answers.setdefault(radius, {}):
            raise ValueError(f"line {number}: an example must stand once a radius, got {index} twice")
        answers[radius][index] = row["broken"]
        if radius == 0 and "label_votes" in row:
            votes[index] = _integer(row, "label_votes", number)
        if row["broken"] and _beyond_doubt(row):
            far = row.get("distance")
            doubtless[index] = min(doubtless.get(index, math.inf), far if _is_number(far) else radius)
    examples = set().union(*answers.values())
    warnings = _warnings(summary)
    if record.summary is None:
        # A kill may have cut an example off: without a row at the last radius it is not counted.
        examples &= answers.get(_last_radius(record), {}).keys()
        if not examples:
            return f"{record.path.name} is unfinished (no whole example so far): left out."
        warnings = (f"unfinished: {len(examples)} examples so far, and the attack was not probed",)
    broken, close = _nested(answers, examples), _close_votes(summary)
    return [Attack(record.path.name, record.settings, frozenset(examples), broken, votes, close, doubtless, warnings)]


def _beyond_doubt(row: Row) -> bool:
    """Whether so few votes for the label are no accident; without votes there is one answer, and no doubt."""
    label_votes, votes = row.get("label_votes"), row.get("votes")
    if not isinstance(label_votes, int) or not isinstance(votes, int):
        return True
    return rejects_label(label_votes, votes)


def _close_votes(summary: Row) -> dict[float, CloseVotes]:
    found = {}
    for point in _points(summary, "robust_accuracy"):
        radius, count, least, most = (point.get(key) for key in ("radius", "undecided", "least", "most"))
        if _is_number(radius) and _is_number(least) and _is_number(most) and isinstance(count, int) and count > 0:
            found[float(radius)] = CloseVotes(count, least, most)
    return found


def _last_radius(record: Record) -> float:
    radii = record.settings.get("radii")
    numbers = [float(radius) for radius in radii if _is_number(radius)] if isinstance(radii, list) else []
    return max(numbers, default=0.0)


def _nested(answers: dict[float, dict[int, bool]], examples: set[int]) -> dict[float, frozenset[int]]:
    """For each radius who is broken there; a sweep may drop what is broken already, which then stays broken."""
    broken: dict[float, frozenset[int]] = {}
    before: frozenset[int] = frozenset()
    for radius, answer in sorted(answers.items()):
        missing = examples - answer.keys()
        if not missing <= before:
            raise ValueError(
                f"radius {format_distance(radius)} must have a row for every example, {len(missing - before)} lack it"
            )
        before = frozenset(index for index, wrong in answer.items() if wrong and index in examples) | missing
        broken[radius] = before
    return broken


def _certificate(record: Record, summary: Row) -> list[Piece]:
    examples: set[int] = set()
    correct: dict[int, float] = {}
    abstained = 0
    for number, row in enumerate(record.rows, start=2):
        index, radius = _integer(row, "index", number), _nonnegative(row, "radius", number)
        if index in examples:
            raise ValueError(f"line {number}: an example must stand once, got {index} twice")
        examples.add(index)
        if row.get("prediction") is None:
            abstained += 1
        elif _integer(row, "prediction", number) == _integer(row, "label", number):
            correct[index] = radius
    listed = [point.get("radius") for point in _points(summary, "certified_accuracy")]
    if record.summary is None:
        listed = record.settings.get("radii", [])
    radii = tuple(sorted({float(radius) for radius in listed if _is_number(radius)}))
    warnings = _warnings(summary)
    if record.summary is None:
        warnings = (f"unfinished: {len(examples)} examples so far",)
    return [Certificate(record.path.name, record.settings, frozenset(examples), correct, abstained, radii, warnings)]


def _shift(record: Record, summary: Row) -> list[Piece]:
    if record.settings.get("loss", "0-1") != "0-1":
        return _losses(record, summary)
    errors = sum(_integer(row, "errors", number) for number, row in enumerate(record.rows, start=2))
    draws = sum(_integer(row, "draws", number) for number, row in enumerate(record.rows, start=2))
    if not 0 <= errors <= draws or draws == 0:
        raise ValueError(f"errors must be in 0..draws with draws >= 1, got {errors} of {draws}")
    ours = Shift(
        file=record.path.name,
        settings=record.settings,
        points=len(record.rows),
        under_noise=1 - errors / draws,
        curve=_curve(_points(summary, "curve"), "certified_accuracy", 1.0),
        statement=str(summary.get("statement", "")),
        warnings=_warnings(summary),
    )
    return [ours, *(_beside(other, ours) for other in _points(summary, "beside"))]


def _beside(other: Row, ours: Shift) -> Shift:
    """A curve that another bound gives from the same draws."""
    eps, accuracy = other.get("eps"), other.get("certified_accuracy")
    if not isinstance(eps, list) or not isinstance(accuracy, list) or len(eps) != len(accuracy):
        raise ValueError("a curve beside ours must have as many eps as certified accuracies")
    points = [{"eps": at, "accuracy": value} for at, value in zip(eps, accuracy, strict=True)]
    name = str(other.get("name", ""))
    return replace(
        ours,
        settings=ours.settings | {"cost": other.get("cost"), "classifier": other.get("classifier"), "way": "majorant"},
        curve=_curve(points, "accuracy", 1.0),
        statement="",
        name="" if name == "ours" else name.capitalize(),
        beside=True,
    )


def _losses(record: Record, summary: Row) -> list[Piece]:
    largest = record.settings.get("bound")
    if not _is_number(largest) or not largest > 0:
        raise ValueError(f"the settings' bound must be a number > 0, got {largest!r}")
    losses = [_nonnegative(row, "loss", number) for number, row in enumerate(record.rows, start=2)]
    points = _points(summary, "curve")
    attacked = record.kind == "curves"
    return [
        Losses(
            file=record.path.name,
            settings=record.settings,
            points=len(losses),
            under_noise=math.fsum(losses) / len(losses),
            certified=_curve(points, "certified" if attacked else "certified_loss", largest),
            lower=_curve(points, "lower", largest) if attacked else (),
            estimate=_curve(points, "estimate", math.inf) if attacked else (),
            statement=str(summary.get("statement", "")),
            warnings=_warnings(summary),
        )
    ]


def _curve(points: list[Row], key: str, largest: float) -> Curve:
    """(eps, value), eps ascending; a value outside [0, largest] is damage."""
    curve = []
    for point in points:
        eps, value = point.get("eps"), point.get(key)
        # What is stored is rounded outward by a hair.
        if not _is_number(eps) or eps < 0 or not _is_number(value) or not -1e-9 <= value <= largest * (1 + 1e-9):
            raise ValueError(f"a point of the curve must have eps >= 0 and {key} in [0, {largest:g}], got {point!r}")
        curve.append((float(eps), float(min(max(value, 0.0), largest))))
    return tuple(sorted(curve))


def _measured(record: Record, summary: Row) -> list[Piece] | str:
    certificate = summary.get("certificate")
    if certificate is None:
        return f"{record.path.name} measures distances only, without a network: left out."
    if not isinstance(certificate, dict):
        raise ValueError(f"certificate must be a JSON object, got {type(certificate).__name__}")
    distances = [_nonnegative(row, "distance", line) for line, row in _with(record, "distance")]
    draws = [_integer(row, "draws", line) for line, row in _with(record, "errors")]
    after = [_integer(row, "errors_after", line) for line, row in _with(record, "errors_after")]
    certified = certificate.get("certified_accuracy")
    if not distances or not draws or sum(draws) == 0:
        raise ValueError("there must be a distance and votes in the rows, but there are none")
    if not _is_number(certified) or not 0 <= certified <= 1:
        raise ValueError(f"certified_accuracy must be in [0, 1], got {certified!r}")
    return [
        Measured(
            file=record.path.name,
            settings=record.settings,
            pairs=len(distances),
            points=len(draws),
            eps=math.sqrt(math.fsum(distance**2 for distance in distances) / len(distances)),
            certified=float(certified),
            after=1 - sum(after) / sum(draws) if after else None,
            statement=str(certificate.get("statement", "")),
            warnings=_warnings(summary),
        )
    ]


def _with(record: Record, key: str) -> list[tuple[int, Row]]:
    return [(line, row) for line, row in enumerate(record.rows, start=2) if key in row]


def _transfer(record: Record, summary: Row) -> list[Piece]:
    counts: dict[str, dict[float, list[bool]]] = {}
    for number, row in enumerate(record.rows, start=2):
        radius = _nonnegative(row, "radius", number)
        if not isinstance(row.get("broken"), bool):
            raise ValueError(f"line {number}: broken must be true or false, got {row.get('broken')!r}")
        counts.setdefault(str(row.get("target")), {}).setdefault(radius, []).append(row["broken"])
    accuracy: dict[str, dict[float, Share]] = {
        target: {radius: share(len(broken) - sum(broken), len(broken)) for radius, broken in sorted(radii.items())}
        for target, radii in counts.items()
    }
    return [Transfer(record.path.name, record.settings, accuracy, _warnings(summary))]


_READERS: dict[str, Callable[[Record, Row], list[Piece] | str]] = {
    "attack": _attack,
    "certify": _certificate,
    "certify-shift": _shift,
    "curves": _losses,
    "measure-shift": _measured,
    "transfer": _transfer,
}


def disagreements(piece: Piece, summary: Row) -> list[str]:
    """One line for each number of the summary that its own rows do not give."""
    told: list[tuple[str, Any, float]] = []
    if isinstance(piece, Attack):
        told = [
            (f"accuracy at radius {point.get('radius')}", point.get("accuracy"), piece.accuracy[r].value)
            for point in _points(summary, "robust_accuracy")
            if _is_number(r := point.get("radius")) and r in piece.accuracy
        ]
    elif isinstance(piece, Certificate):
        told = [("average certified radius", summary.get("average_certified_radius"), piece.average)]
        told += [
            (f"certified accuracy at radius {point.get('radius')}", point.get("accuracy"), piece.accuracy(r).value)
            for point in _points(summary, "certified_accuracy")
            if _is_number(r := point.get("radius"))
        ]
    elif isinstance(piece, Shift) and not piece.beside:
        told = [("accuracy under noise", summary.get("accuracy_under_noise"), piece.under_noise)]
    elif isinstance(piece, Losses):
        told = [("loss under noise", summary.get("loss_under_noise"), piece.under_noise)]
    elif isinstance(piece, Measured):
        after = summary.get("after")
        said = after.get("accuracy") if isinstance(after, dict) else None
        told = [("accuracy after the change", said, piece.after or 0.0)]
    return [
        f"{piece.file}: the summary's {what} ({said}) is not what its rows give ({counted:.6g}), which is shown."
        for what, said, counted in told
        if _is_number(said) and abs(said - counted) > 1e-6
    ]


def _points(summary: Row, key: str) -> list[Row]:
    points = summary.get(key, [])
    if not isinstance(points, list) or not all(isinstance(point, dict) for point in points):
        raise ValueError(f"the summary's {key} must be a list of objects, got {points!r}")
    return points


def _warnings(summary: Row) -> tuple[str, ...]:
    warnings = summary.get("warnings", [])
    return tuple(str(warning) for warning in warnings) if isinstance(warnings, list) else (str(warnings),)


def _is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a number that can be shown: 1e308 is damage, not a radius."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e12


def _integer(row: Row, key: str, number: int) -> int:
    value = row.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"line {number}: {key} must be an integer, got {value!r}")
    return value


def _nonnegative(row: Row, key: str, number: int) -> float:
    value = row.get(key)
    if not _is_number(value) or value < 0:
        raise ValueError(f"line {number}: {key} must be a number >= 0, got {value!r}")
    return float(value)
