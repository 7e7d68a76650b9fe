"""What cannot be: an example that an attack breaks inside the radius that a certificate proves for it."""

from collections.abc import Iterator
from dataclasses import dataclass

from rhobust.bounds import contradictions_by_chance, rejects_label
from rhobust.evaluation.rivals import finished_records
from rhobust.formatting import format_distance, format_percent
from rhobust.records import Record, Row, same_classifier


def contradictions(record: Record) -> list[str]:
    """One sentence for each certificate in the folder that an attack's record cannot go with.

    A certificate says that within its radius the label has more than half of the probability under noise, up to a
    chance of alpha an example. An attack's point contradicts it where it lies within the radius and the label gets so
    few votes that they would come once in a million at one half. That more examples contradict than alpha allows (up
    to a chance of one in a thousand) is a bug, or an unsound certificate.

    Certificates for 8-bit images speak of points on the pixel grid, and an attack's points lie between them; a
    classifier that changes within one step of the grid would be called contradictory here.
    """
    return [
        f"{pair.text}: {pair.refuted} of {pair.proved} certified examples are broken within their radius by votes"
        " beyond doubt, so the certificate is unsound or there is a bug"
        for pair in _pairs(record)
        if pair.refuted > pair.allowed
    ]


def close_votes(record: Record) -> list[str]:
    """One warning for each certificate above what the attack left, where its votes are too few to refute it."""
    return [
        f"{pair.text}: too few votes to tell"
        for pair in _pairs(record)
        if pair.refuted <= pair.allowed and pair.certified > pair.standing
    ]


@dataclass(frozen=True)
class _Pair:
    """An attack and a certificate of the same classifier, at the radius where they are furthest apart."""

    text: str
    """What both say there."""
    certified: int
    standing: int
    proved: int
    """Attacked examples with a certificate."""
    refuted: int
    """Those that broke within their radius, by votes beyond doubt."""
    allowed: int
    """How many may be refuted by chance."""


def _pairs(record: Record) -> Iterator[_Pair]:
    if record.settings.get("scored") != "smoothed" or record.settings.get("norm", "l2") != "l2":
        return
    for certificate in finished_records(record.path.parent, "certify"):
        pair = _pair(record, certificate) if same_classifier(record.settings, certificate.settings) else None
        if pair is not None:
            yield pair


def _pair(record: Record, certificate: Record) -> _Pair | None:
    attacked = {row["index"] for row in record.rows}
    common = attacked & {row["index"] for row in certificate.rows}
    proved = {
        row["index"]: row["radius"]
        for row in certificate.rows
        if row["index"] in common and row["prediction"] == row["label"]
    }
    if not proved:
        return None

    def certified(radius: float) -> int:
        return sum(reach >= radius for reach in proved.values())

    def standing(radius: float) -> int:
        return sum(row["index"] in common and row["radius"] == radius and not row["broken"] for row in record.rows)

    radius = max(record.settings["radii"], key=lambda at: certified(at) - standing(at))
    attempts = 1 + record.settings["attack"].get("restarts", 0)
    return _Pair(
        text=(
            f"{certificate.path.name} certifies {format_percent(certified(radius) / len(common), 'down')}% of"
            f" {len(common)}"
            f" examples at radius {format_distance(radius)}, but {record.path.name} leaves"
            f" {format_percent(standing(radius) / len(common), 'nearest')}% standing there"
        ),
        certified=certified(radius),
        standing=standing(radius),
        proved=len(proved),
        refuted=len({row["index"] for row in record.rows if _refutes(row, proved.get(row["index"]))}),
        allowed=contradictions_by_chance(
            len(common), certificate.settings["alpha"], attempts * len(record.settings["radii"])
        ),
    )


def _refutes(row: Row, proved: float | None) -> bool:
    if proved is None or not row["broken"] or row["distance"] > proved:
        return False
    return rejects_label(row["label_votes"], row["votes"])
