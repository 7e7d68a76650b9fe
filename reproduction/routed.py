"""The table of input-dependent noise: what a router certifies, next to each of the classifiers it chooses from.

The file of `examples/routed.py` holds the certificates of the router and of the classifiers. They are proved again from
their counts, and joined again, before anything is counted.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from reproduction.seeds import differences, shares, write_lines
from rhobust.archives import ENDING, opened
from rhobust.bounds import routed_radius
from rhobust.files import parse_json, read_file, unzip
from rhobust.measurements import CERTIFIED, outcomes, read_finished, unproved_rows
from rhobust.records import Record, Row, record_paths

ARCHIVE = f"mnist-routed{ENDING}"
"""The archive of the classifiers' own records and of the routers."""
RADII = (0.0, 0.5, 1.0, 1.25, 1.5, 1.75, 2.0)
TITLE = "Input-dependent noise on MNIST: certified accuracy of classifiers alone, and with a router among them"
NOTE = (
    "Each certificate holds at alpha {alpha:g}, that of a routed classifier with those of its router and of all"
    " its classifiers. In brackets: the 95% interval over the choice of images; differences are image by image. Any"
    " alone: images that at least one classifier certifies by itself; up to chance no router among them certifies more."
)


def write_routed(results: Path) -> list[Path]:
    """Write the table of input-dependent noise: certified accuracy, and the difference of a router to each noise."""
    with opened([results / "records" / ARCHIVE]) as here:
        found = [read_finished(path) for run in here.paths for path in record_paths(run, "certify-grid")]
    records = [record for record in found if record.settings["split"] == "test"]
    records.sort(key=lambda record: record.settings["sigma"])
    alone = {
        f"sigma {record.settings['sigma']:g} alone": {radius: outcomes(record, CERTIFIED, radius) for radius in RADII}
        for record in records
    }
    known = {record.settings["model_hash"]: record for record in records}
    lines = {name: shares(curve) for name, curve in alone.items()}
    for path in sorted((results / "routed").glob("*.json.gz")):
        document = read_routed(path)
        for one in document["classifiers"]:
            check_same(document | {"sigma": one["sigma"]}, known[one["model_hash"]])
        noises = " and ".join(f"{one['sigma']:g}" for one in document["classifiers"])
        name = f"sigma {noises}, router at {document['router']['sigma']:g}"
        curve = {radius: {row["index"]: _right(row, radius) for row in document["rows"]} for radius in RADII}
        lines[name] = shares(curve)
        for one in document["classifiers"]:
            own = f"sigma {one['sigma']:g} alone"
            lines[f"{name}, minus {own}"] = differences([curve], [alone[own]])
    images = next(iter(alone.values()))[0.0]
    lines["any alone"] = shares(
        {radius: {index: max(one[radius][index] for one in alone.values()) for index in images} for radius in RADII}
    )
    note = NOTE.format(alpha=records[0].settings["alpha"])
    return write_lines(results / "tables" / "table-routed.csv", TITLE, note, lines)


def check_same(document: Mapping[str, Any], record: Record) -> None:
    """Raise unless a classifier's own record is of the same images, noise and level, as far as the file names them."""
    for key in ("data", "split", "data_fingerprint", "sigma", "alpha"):
        if key in document and document[key] != record.settings[key]:
            raise ValueError(f"{record.path} must have the {key} {document[key]}, got {record.settings[key]}")


def read_routed(path: Path) -> dict[str, Any]:
    """The file of a routed classifier whose certificates all follow from their counts.

    Raises:
        ValueError: One does not.
    """
    document = parse_json(unzip(read_file(path), path))
    for fault in faults(document):
        raise ValueError(f"{path} must hold certificates that follow from their counts, but {fault}")
    return document


def faults(document: Mapping[str, Any]) -> Iterator[str]:
    """One line for each certificate of a routed classifier that does not follow from the counts of its parts."""
    parts = [document["router"], *document["classifiers"]]
    given = {key: document[key] for key in ("radii", "n", "noise", "dimension")}
    stopping = document.get("stopping", "boundary")  # what there was before files named it
    settings = {**given, "way": "grid", "n0": 0, "stopping": stopping, "alpha": document["alpha"] / len(parts)}
    for part in parts:
        test = {key: part[key] for key in ("sigma", "num_classes") if key in part}
        for fault in unproved_rows(part["rows"], settings | test):
            yield f"{part['name']}: {fault}"
    router, *classifiers = named = [{row["index"]: row for row in part["rows"]} for part in parts]
    seen: set[int] = set()
    for row in document["rows"]:
        if row["index"] in seen or row["index"] not in router:
            yield f"example {row['index']} must occur once in the file and in its router"
            continue
        seen.add(row["index"])
        if any(one[row["index"]]["label"] != row["label"] for one in named if row["index"] in one):
            yield f"example {row['index']}: its parts must have the label {row['label']}"
        claims = [_claim(one.get(row["index"])) for one in classifiers]
        prediction, radius = routed_radius(_claim(router[row["index"]]) or (None, 0.0), claims)
        if (prediction, radius) != (row["prediction"], row["radius"]):
            found = f"{row['prediction']} within {row['radius']}"
            yield f"example {row['index']}: its parts give {prediction} within {radius}, the file says {found}"
    for index in sorted(router.keys() - seen):
        yield f"example {index} must have a row, as it has in the router: it was left out"


def _claim(row: Row | None) -> tuple[int | None, float] | None:
    return None if row is None else (row["prediction"], row["radius"])


def _right(row: Row, radius: float) -> float:
    return float(row["prediction"] == row["label"] and row["radius"] >= radius)
