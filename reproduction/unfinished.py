"""Certificates and attacks that were stopped: what can be counted of them.

Rows are a function of settings and image, so those of a stopped record are right one by one. Nothing is said of all its
images at once: when it stopped decided how many there are.
"""

from dataclasses import replace
from pathlib import Path

from rhobust.measurements import read_finished
from rhobust.records import Record, Row, is_finished, read_record, record_paths

KINDS = ("certify", "attack")
"""Kinds of records that can be counted before their end."""


def unfinished(run: Path) -> list[Path]:
    """The stopped certificates and attacks of a run folder; those of distributions are named KIND-shift."""
    return [path for kind in KINDS for path in record_paths(run, f"{kind}-[!s]*") if not is_finished(path)]


def read_counted(path: Path) -> Record:
    """A finished record, or a certificate or an attack that was stopped, with the images up to the first it lacks."""
    record = read_record(path)
    if record.summary is None and record.kind in KINDS:
        return replace(record, rows=leading(record))
    return read_finished(path)


def leading(record: Record) -> list[Row]:
    """The rows of the images of a record, in their order, up to the first of which a row is missing.

    Workers write blocks as they come, easy images first: what is there after a gap is no fair sample.
    """
    by_image: dict[int, list[Row]] = {}
    for row in record.rows:
        by_image.setdefault(row["index"], []).append(row)
    each = len(record.settings["radii"]) if record.kind == "attack" else 1
    rows, index = list[Row](), 0
    while len(by_image.get(index, ())) == each:
        rows += by_image[index]
        index += record.settings["stride"]
    return rows
