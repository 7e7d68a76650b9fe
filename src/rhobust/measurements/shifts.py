"""Records of certificates for distributions to measurements: every bound and sentence is proved again from the rows.

The summary only has to agree. Where it is weaker than what the rows prove, the weaker number is shown: older releases
took larger margins, and other versions of scipy end the minimisation elsewhere, up to `SLACK`.
"""

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rhobust.files import open_regular, read_json
from rhobust.formatting import format_distance
from rhobust.measurements.counting import (
    accuracy_under_noise,
    check_number,
    integer,
    is_number,
    nonnegative,
    numbered_rows,
    other_summary,
    outcomes,
    same,
    single_rows,
    summary_points,
)
from rhobust.measurements.proved import (
    Summary,
    measured_summary,
    shift_claim,
    shift_proof,
    shift_summary,
    worst_case_summary,
)
from rhobust.measurements.quantities import (
    AFTER,
    BEFORE,
    CERTIFIED_AFTER,
    CHANGE,
    LOSS_UNDER_NOISE,
    RECENTRED,
    SHIFT,
    SHIFT_LOSS,
    UNDER_NOISE,
    WORST_CERTIFIED,
    WORST_ESTIMATE,
    WORST_LOWER,
    Measurement,
    Status,
)
from rhobust.measurements.subpopulations import read_beyond, stated_sentences
from rhobust.proofs.claim import scope_of_validity
from rhobust.proofs.measured_shift import MeasuredCertificate, RecentredCertificate
from rhobust.records import ANSWERS, FINGERPRINT, WEIGHTS, Record, Row, network_folder
from rhobust.stats import Mean, mean

SLACK, RISE = 1e-4, 1e-5
"""By how much a bound may be stated weaker, and stronger, than the rows prove it; the weaker of the two is shown."""
DRAWS, SIZES = 100_000, 1000
"""Noise samples per image, and sizes of the shift, up to which a bound is proved again: more would take minutes."""
_SIDES = {
    **dict.fromkeys(("certified_accuracy", "certified_without_labels", "lower", "low", "loss_lower"), 1),
    **dict.fromkeys(
        ("certified_loss", "certified", "high", "eps_capped", "eps_upper", "rho_upper", "wrong_answers"), -1
    ),
}
"""Parts of a summary that are bounds, 1 from below and -1 from above: other numbers must be those of the rows."""
_FREE = {"statement", "free", "scale", "excess", "cap", "source"}
"""Parts that are not compared as numbers: sentences, and the solver's own choices."""
_HEADER = 1 << 24
"""Bytes of a weights file's header that are read at most."""


def prove(record: Record, dimension: int | None = None) -> Row:
    """What the rows of a certificate for distributions prove, as a summary; the record's own has to agree with it.

    The numbers per image are those that the record or its folder names, where none are given.

    Raises:
        ValueError: The rows are damaged, or the summary says something else than they prove.
    """
    settings = record.settings
    # Of corruptions an example has a row for each: their reader counts them.
    for number, row in (numbered_rows if record.kind == "corruptions" else single_rows)(record):
        for key in ("errors", "errors_after", "counted", "dithered", "disagreements", "differing"):
            if key in row and not 0 <= integer(row, key, number) <= integer(row, "draws", number):
                raise ValueError(f"line {number}: {key} must be in 0..draws, got {row[key]} of {row['draws']}")
        if row.get("second") is not None and not 0 <= integer(row, "second", number) <= settings.get("second_draws", 0):
            raise ValueError(f"line {number}: second must be in 0..second_draws, got {row['second']}")
        if "second" in row and (row["second"] is None) != (row.get("errors", 0) > 0):
            raise ValueError(f"line {number}: second must be a count where errors is 0, and null elsewhere")
        if "draws" in row and (row["draws"] != settings.get("draws") or row["draws"] > DRAWS):
            raise ValueError(f"line {number}: draws must be those of the settings, at most {DRAWS}, got {row['draws']}")
    try:
        if isinstance(settings.get("eps"), list) and len(settings["eps"]) > SIZES:
            raise ValueError(f"eps must be a list of at most {SIZES} numbers to be proved again")
        found = SUMMARIES[record.kind](record.rows, settings, dimension or image_dimension(record))
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise ValueError(
            f"{record.path} must hold the settings and rows of {record.kind}, but {error!r} is missing or wrong"
        ) from None
    stated = record.summary or {}
    if "dimension" not in stated:
        stated = {**stated, "dimension": found["dimension"]}  # older records do not say it
    if (other := _other_part(stated, found)) is not None:
        raise other_summary(record, *other)
    _check_statements(record, found)
    return found


SUMMARIES: dict[str, Summary] = {
    "certify-shift": shift_summary,
    "curves": worst_case_summary,
    "measure-shift": measured_summary,
}
"""What the rows of each kind prove."""


def _other_part(
    stated: object, found: object, name: str = "summary", side: int = 0
) -> tuple[str, object, object] | None:
    """The first part of a summary that is not what the rows give, with both."""
    if isinstance(found, Mapping) and isinstance(stated, Mapping):
        where = f" at eps {format_distance(found['eps'])}" if is_number(found.get("eps")) else ""
        parts = (
            _other_part(stated.get(key), value, key.replace("_", " ") + where, _SIDES.get(key, 0))
            for key, value in found.items()
            if key not in _FREE
        )
    elif isinstance(found, list | tuple) and isinstance(stated, list | tuple) and len(stated) == len(found):
        parts = (_other_part(theirs, ours, name, side) for theirs, ours in zip(stated, found, strict=True))
    elif isinstance(found, Mapping | list | tuple):
        return name, f"another {type(stated).__name__}", f"a {type(found).__name__} of {len(found)}"
    elif side and isinstance(found, float) and is_number(stated):
        return None if -RISE <= side * (found - stated) <= SLACK else (name, stated, found)
    else:
        return None if same(stated, found) else (name, stated, found)
    return next((part for part in parts if part is not None), None)


def read_shift(record: Record, _: Sequence[float] | None) -> Iterator[Measurement]:
    """The accuracy under noise, the certified curve over eps, and the curves of baselines."""
    if record.settings.get("loss", "0-1") != "0-1":
        yield from read_losses(record, _)
        return
    for number, row in numbered_rows(record):
        if not 0 <= integer(row, "errors", number) <= integer(row, "draws", number) or row["draws"] == 0:
            raise ValueError(f"errors must be in 0..draws with draws >= 1, got {row['errors']} of {row['draws']}")
    yield under_noise(record, UNDER_NOISE, accuracy_under_noise(record.rows))
    found, n = prove(record), len(record.rows)
    claim = {key: record.settings.get(key, default) for key, default in _CLAIM.items()}
    for eps, value, statement in _curve(record, found, "certified_accuracy", min):
        yield Measurement(SHIFT, eps, value, None, None, n, "proved", {**claim, "statement": statement})
    yield from read_beyond(record.summary or {}, found, n)
    for ours, theirs in zip(found.get("beside", []), summary_points(record, "beside"), strict=False):
        detail = {"cost": ours["cost"], "classifier": ours["classifier"], "baseline": ours["name"]}
        for eps, *values in zip(ours["eps"], ours["certified_accuracy"], theirs["certified_accuracy"], strict=True):
            yield Measurement(SHIFT, eps, min(values), None, None, n, "proved", detail)


_CLAIM = {"cost": "w2", "classifier": "randomised", "votes": None, "way": None}
"""Settings of a certificate for distributions that say what is claimed, and what they were before they had a name."""


def read_losses(record: Record, _: Sequence[float] | None) -> Iterator[Measurement]:
    """The loss under noise, the certified curve over eps, and of `curves` what attacks reach and the estimate."""
    settings, n = record.settings, len(record.rows)
    largest = settings.get("bound")
    if not is_number(largest) or not largest > 0:
        raise ValueError(f"the settings' bound must be a number > 0, got {largest!r}")
    losses = [nonnegative(row, "loss", number) for number, row in numbered_rows(record)]
    yield under_noise(record, LOSS_UNDER_NOISE, math.fsum(losses) / n)
    found = prove(record)
    claim = {"loss": settings.get("loss"), "bound": largest, "cost": settings.get("cost", "w2")}
    curves: list[tuple[str, str, Callable[..., float], Status]] = [(SHIFT_LOSS, "certified_loss", max, "proved")]
    if record.kind == "curves":
        curves = [
            (WORST_CERTIFIED, "certified", max, "proved"),
            (WORST_LOWER, "lower", min, "proved"),
            (WORST_ESTIMATE, "estimate", max, "estimate"),
        ]
    for quantity, key, weaker, status in curves:
        upper = key.startswith("certified")
        for eps, value, statement in _curve(record, found, key, weaker, in_words=upper):
            said = {"statement": statement} if upper else {}
            yield Measurement(quantity, eps, value, None, None, n, status, {**claim, **said})


def _curve(
    record: Record, found: Row, key: str, weaker: Callable[..., float], *, in_words: bool = True
) -> list[tuple[float, float, str]]:
    """(eps, bound, sentence), eps increasing; each bound is the weaker of what is stated and what the rows prove."""
    points = list(zip(found["curve"], summary_points(record, "curve"), strict=True))
    values = [(ours["eps"], weaker(ours[key], theirs[key])) for ours, theirs in points]
    return sorted((eps, value, _words(record, eps, value) if in_words else "") for eps, value in values)


def _check_statements(record: Record, found: Row) -> None:
    """Refuse a summary with other sentences than those of its bounds."""
    stated = record.summary or {}
    if record.kind == "conform":
        _check_words(record, stated["certificate"].get("statement"), found["certificate"]["statement"])
        return
    if "certificate" in found:
        certificate = stated["certificate"]
        said = _after(found["certificate"], certificate["certified_accuracy"])
        _check_words(record, certificate.get("statement"), said)
    if "recentred" in found:
        for point in stated["recentred"]["curve"]:
            said = _around(found["recentred"], point["certified_accuracy"], point["eps"])
            _check_words(record, point.get("statement"), said)
    if "curve" not in found:
        return
    if record.kind == "certify-shift":
        proof = shift_proof(record.settings, len(record.rows), found["dimension"])
        for theirs, ours in stated_sentences(stated, found, proof, record.settings):
            _check_words(record, theirs, ours)
    key = next(key for key in ("certified_accuracy", "certified_loss", "certified") if key in found["curve"][0])
    points = summary_points(record, "curve")
    middle = points[len(points) // 2]
    _check_words(record, stated.get("statement"), _words(record, middle["eps"], middle[key]))
    for point in points:
        if "statement" in point:
            _check_words(record, point["statement"], _words(record, point["eps"], point[key]))


def _words(record: Record, eps: float, value: float) -> str:
    """The guarantee at one eps as a sentence; curves have losses, of which 0-1 is said as an accuracy."""
    settings = record.settings
    claim = shift_claim(settings)
    return claim.in_words(
        max(0.0, 1 - value) if record.kind == "curves" and claim.loss == "0-1" else value,
        eps=eps,
        alpha=settings["alpha"],
        sigma=settings["sigma"],
        points=len(record.rows),
        noise=settings["noise"],
    )


def _check_words(record: Record, stated: object, found: str) -> None:
    """Refuse another sentence than the bound's; older ones lack their last part, the scope of validity."""
    if stated not in (found, found.removesuffix(scope_of_validity(record.settings["noise"]))):
        raise other_summary(record, "statement", repr(stated), repr(found))


def under_noise(record: Record, quantity: str, value: float) -> Measurement:
    """The mean over images of what was counted under noise; several noise samples of an image are not independent."""
    check_number(record, quantity.replace(" ", "_"), value)
    per_image = mean(list(outcomes(record, quantity).values()))
    low, high = max(0.0, per_image.low), per_image.high
    if quantity == UNDER_NOISE:
        high = min(1.0, high)
    return Measurement(quantity, 0.0, value, low, high, len(record.rows), "estimate")


def read_measured(record: Record, _: Sequence[float] | None) -> Iterator[Measurement]:
    """The distance of the change; with votes also the accuracy before and after it, and the certified one."""
    rows = {key: [(number, row) for number, row in numbered_rows(record) if key in row] for key in _COLUMNS}
    squares = [nonnegative(row, "distance", number) ** 2 for number, row in rows["distance"]]
    if not squares:
        raise ValueError("there must be a distance in the rows, but there is none")
    eps = _root(mean(squares))
    found, n = prove(record), len(rows["errors"])
    yield Measurement(CHANGE, None, *eps, len(squares), "estimate")
    if "certificate" not in found:
        return
    at, stated = eps[0], (record.summary or {})["certificate"]
    for quantity, key, when in ((BEFORE, "errors", 0.0), (AFTER, "errors_after", at)):
        if found[quantity.split()[1]] is not None:
            value = accuracy_under_noise([row for _, row in rows[key]], key)
            yield Measurement(quantity, when, value, None, None, len(rows[key]), "estimate")
    value = min(stated["certified_accuracy"], found["certificate"]["certified_accuracy"])
    votes = found["certificate"].get("votes", 1)
    detail = {"statement": _after(found["certificate"], value), "votes": votes}
    yield Measurement(CERTIFIED_AFTER, at, value, None, None, n, "proved", detail)
    if "recentred" in found:
        curves = (part["recentred"]["curve"] for part in (found, record.summary or {}))
        for ours, theirs in zip(*curves, strict=True):
            value = min(ours["certified_accuracy"], theirs["certified_accuracy"])
            detail = {"statement": _around(found["recentred"], value, ours["eps"]), "votes": votes}
            yield Measurement(RECENTRED, ours["eps"], value, None, None, len(squares), "proved", detail)


_COLUMNS = ("distance", "errors", "errors_after")


def _after(certificate: Row, accuracy: float) -> str:
    """The sentence of a certificate after a measured change."""
    fields: Row = {**certificate, "certified_accuracy": accuracy}
    del fields["statement"]
    return MeasuredCertificate(**fields).statement()


def _around(certificate: Row, accuracy: float, eps: float) -> str:
    """The sentence of a certificate around the changed data."""
    fields: Row = {key: value for key, value in certificate.items() if key != "curve"}
    return RecentredCertificate(eps=(), certified_accuracy=(), source=(), **fields).in_words(accuracy, eps)


def _root(squared: Mean) -> tuple[float, float, float]:
    low, high = math.sqrt(max(0.0, squared.low)), math.sqrt(squared.high)
    return math.sqrt(squared.value), low, high


def image_dimension(record: Record) -> int:
    """Numbers per image, as the record says, or for older records as its folder does.

    Raises:
        ValueError: Neither says it, or both do and differ.
    """
    stated = record.settings.get("dimension", (record.summary or {}).get("dimension"))
    folder = _folder_dimension(network_folder(record.path))
    if stated is None and folder is None:
        raise ValueError(
            f"{record.path} must say how many numbers an image has, or be in the folder of its network, to be proved"
            " from its rows: delete it to evaluate it again"
        )
    if stated is not None and (not isinstance(stated, int) or isinstance(stated, bool) or stated < 1):
        raise ValueError(f"{record.path} must have a whole number >= 1 as dimension, got {stated!r}")
    if stated is not None and folder is not None and stated != folder:
        raise ValueError(f"{record.path} must be of images of {folder} numbers, as its folder is, got {stated}")
    found = folder if stated is None else stated
    assert found is not None  # one of both
    return found


def _folder_dimension(folder: Path) -> int | None:
    """Numbers per image of a run folder's network, by its weights or by what is published in their place."""
    for name, shape in ((WEIGHTS, _weights_shape), (FINGERPRINT, _document_shape), (ANSWERS, _answers_shape)):
        path = folder / name
        try:
            found = shape(path) if path.is_file() else None
            if found is not None:
                return math.prod(int(side) for side in found)
        except (ValueError, OSError, KeyError, TypeError, AttributeError, RecursionError):
            continue  # what is damaged says nothing
    return None


def _weights_shape(path: Path) -> Any:
    with open_regular(path, own=True) as file:
        (size,) = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))
        header = json.loads(file.read(size)) if size <= _HEADER else {}
    return json.loads(header["__metadata__"]["rhobust"])["shape"]


def _document_shape(path: Path) -> Any:
    return read_json(path)["shape"]


def _answers_shape(path: Path) -> Any:
    shapes = list(read_json(path)["logits"])
    return shapes[0].split("x") if len(shapes) == 1 else None
