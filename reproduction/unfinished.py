"""Close records that were stopped: what is there becomes a finished record of fewer images, which says so.

The rows of an evaluation are a function of its settings and the image, so the first images of a stopped record are
those of the same evaluation with a smaller limit. How many there are is decided by when it stopped, not by any result.
"""

from pathlib import Path

from rhobust.evaluation import evaluation_of
from rhobust.measurements import VOTE_LEVEL, certified_summary, contradictions, robust_curve
from rhobust.records import Record, RecordWriter, Row, finished_records, is_finished, read_record, record_paths

UNCHECKED = {
    "certify": "the last check of the network, whether its logits depend on the batch, was not made",
    "attack": "the attack was not compared with stronger ones",
}
"""Kinds of records that can be closed, and what an evaluation does after its last image that they lack."""


def unfinished(run: Path) -> list[Path]:
    """The stopped certificates and attacks of a run folder; those of distributions are named KIND-shift."""
    return [path for kind in UNCHECKED for path in record_paths(run, f"{kind}-[!s]*") if not is_finished(path)]


def close(path: Path) -> Path:
    """Write the images of an unfinished record, up to the first that is missing, as a finished one; return its path.

    Its limit is their number. Its summary has a warning of what was not checked, and no wall time. It does not say
    how many of the images were trained on, which needs the data.

    The unfinished record stays: with the weights and the same kind of device the command that was stopped goes on.

    Args:
        path: An unfinished record of `certify` or `attack`.
    """
    record = read_record(path)
    if record.kind not in UNCHECKED or record.summary is not None:
        raise ValueError(f"{record.path} must be an unfinished record of {' or '.join(UNCHECKED)} to be closed")
    rows = leading(record)
    limit = len({row["index"] for row in rows})
    if not limit:
        raise ValueError(f"{record.path} must hold the first image of its evaluation to be closed, but does not")
    settings = {**record.settings, "limit": limit}
    label = evaluation_of(record.kind, settings).label
    writer = RecordWriter(record.path.parent, record.kind, label, settings)
    if writer.summary is None:
        writer.rewrite(rows)
        planned = "" if record.settings["limit"] is None else f" of {record.settings['limit']:,}"
        stopped = f"stopped after {limit:,}{planned} images and closed afterwards: {UNCHECKED[record.kind]}"
        summary = certified_summary(rows, settings) if record.kind == "certify" else _attacked(writer.record())
        writer.finish({**summary, "warnings": [stopped], "seconds": None})
    return writer.path


def leading(record: Record) -> list[Row]:
    """The rows of the images of a record, in their order, up to the first of which a row is missing."""
    by_image: dict[int, list[Row]] = {}
    for row in record.rows:
        by_image.setdefault(row["index"], []).append(row)
    each = len(record.settings["radii"]) if record.kind == "attack" else 1
    rows, index = list[Row](), 0
    while len(by_image.get(index, ())) == each:
        rows += by_image[index]
        index += record.settings["stride"]
    return rows


def _attacked(record: Record) -> Row:
    """What an attack's rows add up to, and where the certificates in its folder contradict it."""
    certificates = finished_records(record.path.parent, "certify")
    return {
        "robust_accuracy": robust_curve(record.rows, record.settings["radii"]),
        "vote_level": VOTE_LEVEL if record.settings["scored"] == "smoothed" else None,
        "contradictions": contradictions([record, *certificates]),
    }
