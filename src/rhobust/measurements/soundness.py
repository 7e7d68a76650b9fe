"""Records that cannot both be right, and attacks that miss what others found."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rhobust.bounds import contradictions_by_chance, rejects_label
from rhobust.formatting import format_distance, format_percent
from rhobust.measurements.comparison import same_classifier
from rhobust.measurements.counting import by_radius, is_whole, not_significant, outcomes, right_class
from rhobust.measurements.quantities import (
    AFTER,
    CERTIFIED,
    CERTIFIED_AFTER,
    RECENTRED,
    ROBUST,
    SHIFT,
    UNDER_NOISE,
    WORST_CERTIFIED,
    WORST_LOWER,
    Measurement,
)
from rhobust.measurements.reader import measurements
from rhobust.records import Record, Row

GAIN = 0.02
"""Accuracy that another attack may take without a warning."""
FEW = 3
"""Examples that a warning needs at least."""


def contradictions(records: Sequence[Record], found: Sequence[Sequence[Measurement]] | None = None) -> list[str]:
    """One sentence for each pair of numbers that cannot both be right: a bug, or an unsound certificate.

    A certificate says that within its radius no other class is more probable under noise than the label, up to a
    probability of alpha per example. An attack on the same smoothed classifier contradicts it at an example that is
    misclassified within the radius with so many more votes for another class that this would happen once in a million
    if the label were as probable. More such examples than alpha allows, up to a probability of one in a thousand, are
    an error: see `contradictions_by_chance`.

    Certificates for 8-bit images speak of points on the pixel grid, and an attack's points are between them; a
    classifier that changes within one step of the grid would be called contradictory here.

    A certified accuracy under shift above the accuracy it starts from, a certified loss below one that an attack
    reached, and a certified accuracy above what was measured after the change are contradictions too.

    Args:
        records: Records of one network or of several; only those of the same classifier are compared.
        found: Their measurements, where they are known already: bounds for distributions take a second each.
    """
    lines = [
        f"{pair.text}: {pair.refuted} of {pair.proved} certified examples are misclassified within their certified"
        " radius by votes significant at 1e-6, so the certificate is unsound or there is a bug"
        for pair in _pairs(records)
        if pair.refuted > pair.allowed
    ]
    for place, record in enumerate(records):
        if record.kind in ("certify-shift", "corruptions", "curves", "measure-shift"):
            lines += _contradicts_itself(record, measurements(record) if found is None else found[place])
    return lines


def unresolved(records: Sequence[Record]) -> list[str]:
    """One warning per certificate above the robust accuracy under an attack whose votes are too few to refute it."""
    return [
        f"{pair.text}: too few votes to tell"
        for pair in _pairs(records)
        if pair.refuted <= pair.allowed and pair.certified > pair.robust
    ]


def certified_but_misclassified(certificate: Record, attack: Record, radius: float) -> int:
    """How many examples an attack misclassifies within their certified radius; 0 where the two are not comparable.

    Single ones may come from the attack's own vote or from the certificate's alpha.
    """
    if not _attacks(certificate, attack):
        return 0
    certified, robust = outcomes(certificate, CERTIFIED, radius), outcomes(attack, ROBUST, radius)
    return sum(not robust[index] and bool(certified.get(index)) for index in robust)


@dataclass(frozen=True)
class _Pair:
    """An attack and a certificate of the same classifier, at the radius where they are furthest apart."""

    text: str
    """What both say there."""
    certified: int
    robust: int
    proved: int
    """Attacked examples with a certificate."""
    refuted: int
    """Those misclassified within their radius by votes that are no accident."""
    allowed: int
    """How many may be refuted by chance."""


def _pairs(records: Sequence[Record]) -> Iterator[_Pair]:
    attacks = [record for record in records if record.kind == "attack"]
    for certificate in (record for record in records if record.kind == "certify"):
        for attack in attacks:
            if _attacks(certificate, attack) and (pair := _pair(attack, certificate)) is not None:
                yield pair


def _attacks(certificate: Record, attack: Record) -> bool:
    """Whether an attack is on the classifier, the weights and the distance that a certificate is about."""
    settings = attack.settings
    smoothed = settings.get("scored") == "smoothed" and settings.get("votes") != 1
    return smoothed and settings.get("norm", "l2") == "l2" and same_classifier(certificate.settings, settings)


def _pair(attack: Record, certificate: Record) -> _Pair | None:
    common = {row["index"] for row in attack.rows} & {row["index"] for row in certificate.rows}
    proved = {
        row["index"]: row["radius"]
        for row, right in zip(certificate.rows, right_class(certificate.rows), strict=True)
        if right and row["index"] in common
    }
    if not proved:
        return None
    swept = by_radius(attack.rows)
    counts = {
        at: (
            sum(reach >= at for reach in proved.values()),
            sum(row["index"] in common and not row["broken"] for row in rows),
        )
        for at, rows in sorted(swept.items())
    }
    radius = max(counts, key=lambda at: counts[at][0] - counts[at][1])
    certified, robust = counts[radius]
    alpha, method = certificate.settings.get("alpha"), attack.settings.get("attack")
    classes = certificate.settings.get("num_classes")
    classes = max(classes, 2) if is_whole(classes) else 2
    if not isinstance(alpha, float):
        alpha = 0.0
    restarts = method.get("restarts") if isinstance(method, dict) else None
    attempts = 1 + (restarts if isinstance(restarts, int) and restarts > 0 else 0)
    return _Pair(
        text=(
            f"{certificate.path.name} certifies {format_percent(certified / len(common), 'down')}% of {len(common)}"
            f" examples at radius {format_distance(radius)}, but under {attack.path.name} the robust accuracy there is"
            f" {format_percent(robust / len(common), 'nearest')}%"
        ),
        certified=certified,
        robust=robust,
        proved=len(proved),
        refuted=len({row["index"] for row in attack.rows if _refutes(row, proved.get(row["index"]), classes)}),
        allowed=contradictions_by_chance(len(common), alpha, attempts * len(swept)),
    )


def _refutes(row: Row, proved: float | None, num_classes: int) -> bool:
    if proved is None or not row["broken"] or row.get("distance", row["radius"]) > proved:
        return False
    # Without votes there is one prediction, and no doubt.
    return "label_votes" not in row or rejects_label(row["label_votes"], row["rival_votes"], num_classes)


def _contradicts_itself(record: Record, found: Sequence[Measurement]) -> Iterator[str]:
    """What a certificate for distributions proves that its own measurements deny."""
    name = record.path.name
    if record.kind == "corruptions":
        for one in found:
            if one.quantity in (CERTIFIED_AFTER, RECENTRED):
                yield from _above(name, [one, *(other for other in found if other.detail == one.detail)])
        return
    values = {one.quantity: one.value for one in found}
    # The certificate of one noisy prediction starts from its accuracy; other classifiers may be better.
    shifts = [one.value for one in found if one.quantity == SHIFT and one.detail["classifier"] == "randomised"]
    if shifts and max(shifts) > values[UNDER_NOISE] + 1e-9:
        yield (
            f"{name} certifies an accuracy of {format_percent(max(shifts), 'nearest')}% under a shift, more than the"
            f" {format_percent(values[UNDER_NOISE], 'nearest')}% measured without one"
        )
    upper, lower = ({one.at: one.value for one in found if one.quantity == q} for q in (WORST_CERTIFIED, WORST_LOWER))
    if crossed := [eps for eps in upper if eps is not None and lower.get(eps, 0.0) > upper[eps] + 1e-9]:
        where = ", ".join(map(format_distance, crossed))
        yield f"{name} has an attack that reaches more than the certified loss at eps {where}"
    yield from _above(name, found)


def _above(name: str, found: Sequence[Measurement]) -> Iterator[str]:
    """A certified accuracy after a change that is above the measured one."""
    values = {one.quantity: one.value for one in found}
    # Around the changed data the certified accuracy is largest without a further shift; other classifiers are better.
    certified = [one for one in found if one.quantity in (CERTIFIED_AFTER, RECENTRED)]
    proved = [one.value for one in certified if one.detail.get("votes", 1) == 1]
    if AFTER in values and max(proved, default=0.0) > values[AFTER] + 1e-9:
        yield (
            f"{name} certifies an accuracy of {format_percent(max(proved), 'nearest')}% after a change,"
            f" more than the {format_percent(values[AFTER], 'nearest')}% measured after it"
        )


def stronger_attacks(record: Record, others: Sequence[Record]) -> list[str]:
    """Warnings about attacks on the same classifier that break what this one left robust, or the other way round.

    Args:
        record: The record of an attack.
        others: Other records of attacks; itself and those of other classifiers are passed over.
    """
    warnings = []
    for other in others:
        if other.path != record.path and same_classifier(record.settings, other.settings):
            if not _transfer(record):
                warnings += _beaten(record, other)
            elif not _transfer(other):
                warnings += _beaten(other, record)
    return warnings


def _beaten(record: Record, other: Record) -> list[str]:
    """A warning where another attack breaks more than two points of what a record left robust."""
    missed, radius, common = most_missed(record, other)
    if missed < FEW or missed <= GAIN * common:
        return []
    if _transfer(other):
        what = f"a transfer attack is stronger than the white-box one: {other.path.name}"
    elif _same_attack(record, other) and max(other.settings["radii"]) < radius:
        what = f"robust accuracy rises with the radius: at smaller radii {other.path.name}"
    else:
        what = f"another attack is stronger: {other.path.name}"
    gain = format_percent(missed / common, "nearest")
    return [f"{what} breaks {gain} points that {record.path.name} left robust at radius {format_distance(radius)}"]


def most_missed(record: Record, other: Record) -> tuple[int, float, int]:
    """How many images an attack left robust that another broke within the radius, where these are most.

    Returns:
        Their number, the radius, and how many images both attacked.
    """
    broken: dict[int, float] = {}
    for row, close in zip(other.rows, not_significant(other.rows), strict=True):
        if row["broken"] and not close:
            broken[row["index"]] = min(row["radius"], broken.get(row["index"], row["radius"]))
    common = {row["index"] for row in record.rows} & {row["index"] for row in other.rows}
    missed = {
        at: sum(row["index"] in common and not row["broken"] and broken.get(row["index"], at + 1) <= at for row in rows)
        for at, rows in by_radius(record.rows).items()
    }
    count, radius = max(((count, at) for at, count in missed.items()), default=(0, 0.0))
    return count, radius, len(common)


def _transfer(record: Record) -> bool:
    return record.settings.get("source") is not None


def _same_attack(record: Record, other: Record) -> bool:
    ours, theirs = (
        {key: value for key, value in one.settings.items() if key not in _SAMPLE} for one in (record, other)
    )
    return ours == theirs


_SAMPLE = ("radii", "limit", "stride", "seed", "probe")
"""Settings that do not say how an image is attacked."""
