"""Records of other attacks on the same classifier: where one breaks more, the other says too much."""

from pathlib import Path

from rhobust.evaluation.judging import undecided
from rhobust.evaluation.probing import FEW, GAIN
from rhobust.formatting import format_distance, format_percent
from rhobust.records import Record, Row, read_record, record_paths, same_classifier


def finished_records(folder: Path, kind: str) -> list[Record]:
    """The finished records of a kind in a folder; damaged and unfinished ones are left out."""
    records = []
    for path in record_paths(folder, kind):
        try:
            record = read_record(path)
        except (ValueError, OSError):
            continue
        if record.kind == kind and isinstance(record.summary, dict):
            records.append(record)
    return records


def stronger_records(record: Record) -> list[str]:
    """Warnings about other attack records in the folder that break what this one left standing, or the other way."""
    warnings = []
    for other in finished_records(record.path.parent, "attack"):
        if other.path != record.path and same_classifier(record.settings, other.settings):
            if not _transfer(record):
                warnings += _beaten(record, other)
            elif not _transfer(other):
                warnings += _beaten(other, record)
    return warnings


def _beaten(record: Record, other: Record) -> list[str]:
    """A warning where another attack breaks more than two points of what a record left standing."""
    broken = _broken_at(other)
    common = {row["index"] for row in record.rows} & {row["index"] for row in other.rows}
    worst: tuple[int, float] = (0, 0.0)
    for radius in record.settings["radii"]:
        standing = {row["index"] for row in record.rows if row["radius"] == radius and not row["broken"]}
        missed = sum(index in standing and broken.get(index, radius + 1) <= radius for index in common)
        worst = max(worst, (missed, radius))
    missed, radius = worst
    if missed < FEW or missed <= GAIN * len(common):
        return []
    gain = format_percent(missed / len(common), "nearest")
    if _transfer(other):
        what = f"a transfer attack is stronger than the white-box one: {other.path.name}"
    elif _same_attack(record, other) and max(other.settings["radii"]) < radius:
        what = f"accuracy rises with the radius: at smaller radii {other.path.name}"
    else:
        what = f"another attack is stronger: {other.path.name}"
    return [f"{what} breaks {gain} points that {record.path.name} left standing at radius {format_distance(radius)}"]


def _broken_at(record: Record) -> dict[int, float]:
    """The smallest radius at which each example broke beyond doubt."""
    found: dict[int, float] = {}
    for row, doubt in zip(record.rows, undecided(record.rows), strict=True):
        if row["broken"] and not doubt:
            found[row["index"]] = min(row["radius"], found.get(row["index"], row["radius"]))
    return found


def _transfer(record: Record) -> bool:
    return record.settings.get("source") is not None


def _same_attack(record: Record, other: Record) -> bool:
    settings: list[Row] = [dict(one.settings) for one in (record, other)]
    for one in settings:
        for key in ("radii", "limit", "stride", "seed", "probe"):
            one.pop(key, None)
    return settings[0] == settings[1]
