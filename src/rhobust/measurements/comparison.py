"""Two records image by image: which of them can be compared, and how far one network is above the other."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rhobust.files import read_json
from rhobust.measurements.certified import read_tsv
from rhobust.measurements.counting import outcomes
from rhobust.measurements.quantities import AVERAGE_RADIUS, CERTIFIED, ROBUST, Measurement
from rhobust.measurements.reader import check_written, measurements
from rhobust.records import COMPRESSED, CONFIG, PLAIN, Record, Row, is_own, read_record, record_paths
from rhobust.stats import Difference, mean_difference, share_difference

SAME_IMAGES = ("data_fingerprint", "split")
"""Settings that name the images of a record, together with their indices."""
COMPARABLE = {
    "certify": (*SAME_IMAGES, "way", "n", "alpha"),
    "attack": (*SAME_IMAGES, "attack", "source", "scored", "votes"),
}
"""Settings that two records of a kind must share to be compared image by image; the noise sigma may differ."""
SETTINGS = {
    **{"data_fingerprint": "images", "way": "procedure", "scored": "predictor"},
    "stopping": "stopping (pairwise or not)",
}
"""Settings whose names in files are not what people call them."""
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
    one, other = _stated(ours), _stated(theirs)
    for key, value in one.items():
        if key in other and value != other[key]:
            raise ValueError(
                f"records must have the same {SETTINGS.get(key, key)} to be compared one by one, and they have not"
            )


def compared_settings(record: Record) -> Row:
    """The settings that two records of a kind must share to be compared image by image; None where one is not known."""
    found = {key: record.settings.get(key) for key in COMPARABLE.get(record.kind, SAME_IMAGES)}
    if record.kind == "certify" and record.settings:
        # Boundaries and e-values decide nearly alike; comparing classes proves more from the same votes.
        found["stopping"] = record.settings.get("stopping") == "pairwise"
    return found


def _stated(record: Record) -> Row:
    """The settings to be shared that a record states; null is a statement, as that of an attack without a source."""
    found = compared_settings(record)
    return {key: value for key, value in found.items() if key in record.settings or key == "stopping"}


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


def partners(paths: Sequence[Path]) -> list[list[Record]]:
    """For each record of the first path those of the other paths that were made with the same settings, after it.

    Of several such records of a folder it is the one that shares most settings and images. What a folder holds without
    a partner is left out; a record or table that is named takes part in every comparison of its kind.

    Args:
        paths: Run folders, records and tables of Cohen et al., whose settings are not known.
    """
    offered = [_offered(path) for path in paths]
    found, used = [], set[Path]()
    for first in offered[0]:
        group = [first.path]
        for path, others in zip(paths[1:], offered[1:], strict=True):
            match = _closest(first, others)
            if match is None and not path.is_dir() and others[0].kind == first.kind:
                match = path  # the comparison says why the two are not comparable
            if match is not None:
                group.append(match)
        if len(group) > 1:
            found.append([read_compared(one) for one in group])
            used.update(group)
    if not found:
        raise ValueError(
            f"{paths[0]} must hold a certificate or an attack that another folder or file has too, but it does not"
            f"{_why_not(offered[0], [record for others in offered[1:] for record in others])}"
        )
    for path in paths:
        if not path.is_dir() and path not in used:
            raise ValueError(f"{path} must be of a kind that {paths[0]} has too, but it is not")
    return found


def _offered(path: Path) -> list[Record]:
    """The certificates and attacks of a path, readable and unchanged: what is damaged is never passed over."""
    if not path.is_dir():
        return [read_compared(path)]
    records = [read_record(one) for one in record_paths(path)]
    for record in records:
        check_written(record)
        if not isinstance(record.settings, dict):
            raise ValueError(
                f"{record.path} must have a JSON object for settings, got {type(record.settings).__name__}"
            )
    return [record for record in records if record.kind in COMPARABLE]


def _closest(record: Record, others: Sequence[Record]) -> Path | None:
    """The record that was made with the same settings, and shares most settings and images."""
    images = {(row.get("index"), row.get("label")) for row in record.rows}
    shared = {
        other.path: (
            sum(other.settings.get(key) == value for key, value in record.settings.items()),
            len(images & {(row.get("index"), row.get("label")) for row in other.rows}),
        )
        for other in others
        if other.kind == record.kind and not _differing(record, other)
    }
    return max(shared, key=lambda path: shared[path]) if shared else None


def _differing(one: Record, other: Record) -> list[str]:
    """The settings in which two records of a kind differ; none with a table, which says nothing of its own."""
    if not one.settings or not other.settings:
        return []
    ours, theirs = compared_settings(one), compared_settings(other)
    return [SETTINGS.get(key, key) for key, value in ours.items() if value != theirs[key]]


def _why_not(records: Sequence[Record], others: Sequence[Record]) -> str:
    """In what the two records of a kind differ that are closest to a comparison; empty if no two are of one kind."""
    pairs = [(one, other) for one in records for other in others if one.kind == other.kind]
    if not pairs:
        return ""
    one, other = min(pairs, key=lambda pair: len(_differing(*pair)))
    return f": {one.path} and {other.path} differ in {', '.join(_differing(one, other))}"


def comparison(records: Sequence[Record], radii: Sequence[float] | None = None) -> Row:
    """The accuracy of every record at each radius, and its difference from the first, or why there is none.

    Records of runs that differ in the seed of their training only are also summed up, in `over_seeds`.

    Args:
        records: At least one, see `read_compared`.
        radii: Where they are compared; default: the radii that were attacked or decided.
    """
    if radii is None:
        radii = sorted({radius for record in records for radius in _decided(record) or RADII})
    files = [_compared(record, records[0], radii) for record in records]
    seeds = _over_seeds(records, files)
    return {"radii": list(radii), "files": files, **({"over_seeds": seeds} if seeds else {})}


def _over_seeds(records: Sequence[Record], files: Sequence[Row]) -> list[Row]:
    """Mean and standard deviation over the runs that differ in the seed of their training only."""
    groups: dict[str, dict[int, int]] = {}
    for place, record in enumerate(records):
        training = _training(record)
        if training is not None:
            key, seed = training
            groups.setdefault(key, {}).setdefault(seed, place)
    return [_spread(places, files) for places in groups.values() if len(places) > 1]


def _training(record: Record) -> tuple[str, int] | None:
    """What decided the weights and the evaluation but the seed of the training, and that seed; None if not known."""
    try:
        config = read_json(record.path.parent / CONFIG)
    except (ValueError, OSError):
        return None
    if not record.settings or not isinstance(config, dict) or is_own(config) or not isinstance(config.get("seed"), int):
        return None
    trained = {key: value for key, value in config.items() if key not in ("seed", "rhobust", "name")}
    tested = {**compared_settings(record), **{key: record.settings.get(key) for key in ("sigma", "radii")}}
    images = sorted({row["index"] for row in record.rows})
    return json.dumps([record.kind, trained, tested, images], sort_keys=True), config["seed"]


def _spread(places: Mapping[int, int], files: Sequence[Row]) -> Row:
    """Mean and deviation of what some runs have at each radius."""
    runs = [files[place] for _, place in sorted(places.items())]
    name = next(name for name in ("certified_accuracy", "robust_accuracy") if name in runs[0])
    curves = [[(point["radius"], point["accuracy"]) for point in one[name]] for one in runs]
    points = []
    for same in zip(*curves, strict=True):
        accuracies = [accuracy for _, accuracy in same]
        points.append({"radius": same[0][0], "mean": mean(accuracies), "deviation": stdev(accuracies)})
    document: Row = {"seeds": sorted(places), "files": [one["file"] for one in runs], name: points}
    if "average_certified_radius" in runs[0]:
        averages = [one["average_certified_radius"] for one in runs]
        document["average_certified_radius"] = {"mean": mean(averages), "deviation": stdev(averages)}
    return document


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
        **({"split": split} if (split := record.settings.get("split")) not in (None, "test") else {}),
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
