"""Two records image by image: which of them can be compared, and how far one network is above the other."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rhobust.measurements.counting import outcomes
from rhobust.measurements.quantities import AVERAGE_RADIUS, CERTIFIED, ROBUST, Measurement
from rhobust.measurements.reader import check_written, measurements
from rhobust.measurements.tsv import read_tsv
from rhobust.records import COMPRESSED, PLAIN, Record, Row, read_record, record_paths
from rhobust.stats import Difference, mean_difference, share_difference

SAME_IMAGES = ("data_fingerprint", "split")
"""Settings that name the images of a record, together with their indices."""
COMPARABLE = {
    "certify": (*SAME_IMAGES, "way", "n", "alpha"),
    "attack": (*SAME_IMAGES, "attack", "source", "scored", "votes"),
}
"""Settings that two records of a kind must share to be compared image by image; the noise sigma may differ."""
RADII = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Default radii of attacks and certificates, and where a certificate that knows every radius is compared."""

_QUANTITIES = {"certify": CERTIFIED, "attack": ROBUST}


def same_classifier(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two records' settings are of the same weights, data and noise, the same predictor and the same norm.

    What only one of them says is no difference: a certificate is always of the smoothed classifier and of L2. The
    network's arithmetic (`dtype`) is none either: it moves single votes, and a test that compares two records asks for
    a gap far beyond those.
    """
    keys = ("model_hash", "data", "split", "data_fingerprint", "sigma", "scored", "norm")
    pairs = [(one.get(key), other.get(key)) for key in keys]
    return all(ours == theirs for ours, theirs in pairs if ours is not None and theirs is not None)


def difference(ours: Record, theirs: Record, quantity: str, at: float | None = None) -> Difference:
    """How far ours is above theirs on the same images, with its 95% interval over the images.

    Accuracies have the interval of Bonett and Price, means Student's: see `share_difference` and `mean_difference`.

    Args:
        ours: A record.
        theirs: A record of the same kind and the same images, made with the same settings.
        quantity: What is compared, see `outcomes`.
        at: The radius.

    Raises:
        ValueError: The two are not comparable, in one line.
    """
    check_comparable(ours, theirs)
    one, other = (_labelled(record, quantity, at) for record in (ours, theirs))
    if one.keys() != other.keys():
        raise ValueError("records must be of the same images to be compared one by one, and they are not")
    pairs = [(one[image], other[image]) for image in sorted(one)]
    compare = share_difference if quantity in (ROBUST, CERTIFIED) else mean_difference
    return compare(*zip(*pairs, strict=True))


def check_comparable(ours: Record, theirs: Record) -> None:
    """Refuse two records that were not made with the same settings; what only one of them says is no difference."""
    if ours.kind != theirs.kind:
        raise ValueError(f"a record of {ours.kind} is not compared with one of {theirs.kind}")
    for key in COMPARABLE.get(ours.kind, SAME_IMAGES):
        if key in ours.settings and key in theirs.settings and ours.settings[key] != theirs.settings[key]:
            raise ValueError(f"records must have the same {key} to be compared one by one, and they have not")


def _labelled(record: Record, quantity: str, at: float | None) -> dict[tuple[int, Any], float]:
    """The outcomes by index and label: an index alone may mean different images."""
    labels = {row["index"]: row.get("label") for row in record.rows}
    return {(index, labels[index]): value for index, value in outcomes(record, quantity, at).items()}


def read_compared(path: Path) -> Record:
    """Read a record of certify or attack, or a table of Cohen et al., which is taken for one of certify.

    Raises:
        ValueError: It is of another kind, has no rows, was changed, or its counts do not prove its radii.
    """
    if not is_record(path):
        return Record(path, "certify", {}, read_tsv(path), None)
    record = read_record(path)
    if record.kind not in COMPARABLE or not record.rows:
        raise ValueError(f"{path} must be a record of certify or attack with at least one example, got {record.kind}")
    check_written(record)
    measurements(record)
    return record


def is_record(path: Path) -> bool:
    """Whether a file is a record, by its name; everything else is taken for a table."""
    return path.name.endswith((PLAIN, COMPRESSED))


def partners(folders: Sequence[Path]) -> list[list[Record]]:
    """For each record of the first folder those of the other folders that were made with the same settings, after it.

    Of several such records of a folder it is the one that shares most settings. What has no partner is left out.
    """
    heads = [{path: _head(path) for path in record_paths(folder)} for folder in folders]
    found = []
    for path, head in heads[0].items():
        if head.get("kind") in COMPARABLE:
            group = [match for other in heads[1:] if (match := _closest(head, other)) is not None]
            if group:
                found.append([read_compared(one) for one in (path, *group)])
    if not found:
        raise ValueError(
            f"{folders[0]} must hold a certificate or an attack that another folder has too, but it does not"
        )
    return found


def _head(path: Path) -> Row:
    """Kind and settings of a record, which must be readable and unchanged: what is damaged is never passed over."""
    record = read_record(path)
    check_written(record)
    if not isinstance(record.settings, dict):
        raise ValueError(f"{path} must have a JSON object for settings, got {type(record.settings).__name__}")
    return {"kind": record.kind, "settings": record.settings}


def _closest(head: Row, others: Mapping[Path, Row]) -> Path | None:
    """The record that was made with the same settings, and shares most settings."""
    settings = head["settings"]
    shared = {
        path: sum(other["settings"].get(key) == value for key, value in settings.items())
        for path, other in others.items()
        if other.get("kind") == head["kind"]
        and all(other["settings"].get(key) == settings.get(key) for key in COMPARABLE[head["kind"]])
    }
    return max(shared, key=lambda path: shared[path]) if shared else None


def comparison(records: Sequence[Record], radii: Sequence[float] | None = None) -> Row:
    """The accuracy of every record at each radius, and its difference from the first, or why there is none.

    Args:
        records: At least one, see `read_compared`.
        radii: Where they are compared; default: the radii that were attacked or decided.
    """
    if radii is None:
        radii = sorted({radius for record in records for radius in _decided(record) or RADII})
    return {"radii": list(radii), "files": [_compared(record, records[0], radii) for record in records]}


def _decided(record: Record) -> list[float] | None:
    """The radii of an attack or of a sequential test, which says nothing of those between; None: every radius."""
    if record.settings.get("way") in (None, "grid"):
        return record.settings.get("radii")
    return None


def _known(record: Record, radii: Sequence[float]) -> list[float]:
    decided = _decided(record)
    return [radius for radius in radii if decided is None or radius in decided]


def _compared(record: Record, first: Record, radii: Sequence[float]) -> Row:
    known = _known(record, radii)
    found = measurements(record, known)
    curve = [_point(one) for one in found if one.quantity == _QUANTITIES[record.kind] and one.at in known]
    document: Row = {
        "file": str(record.path),
        # A table has no counts, so its radii are only claimed.
        "status": {"attack": "upper bound", "certify": "proved"}[record.kind] if record.settings else "claimed",
        "n": len({row["index"] for row in record.rows}),
        _QUANTITIES[record.kind].replace(" ", "_"): curve,
    }
    for one in found:
        if one.quantity == AVERAGE_RADIUS:
            document["average_certified_radius"] = one.value
    if record is first:
        return document
    try:
        check_comparable(record, first)
        apart = [
            {"radius": at, **difference(record, first, _QUANTITIES[record.kind], at).as_row()}
            for at in _known(first, known)
        ]
    except ValueError as error:
        return {**document, "not_compared": str(error)}
    return {**document, "against_first": apart}


def _point(one: Measurement) -> Row:
    return {"radius": one.at, "accuracy": one.value, "low": one.low, "high": one.high, "n": one.n, **one.detail}
