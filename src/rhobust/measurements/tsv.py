"""The table of Cohen et al.: one line per example, tab-separated, as their code and many others' write it."""

from datetime import timedelta
from pathlib import Path

from rhobust.files import read_file, write_whole
from rhobust.formatting import format_number
from rhobust.records import Record, Row

COLUMNS = ("idx", "label", "predict", "radius", "correct", "time")
DIGITS = 6
"""Digits of a radius; it is rounded down."""


def write_tsv(record: Record, path: Path | str) -> None:
    """Write the rows of a finished `certify` record as a table of Cohen et al.

    An abstention is -1 there. The time of an example is its share, by noise samples, of the time of all.
    """
    if record.kind != "certify" or record.summary is None:
        raise ValueError(f"{record.path} must be a finished record of certify, got one of {record.kind}")
    seconds = (record.summary.get("seconds") or 0.0) / sum(row["n"] for row in record.rows)
    lines: list[str] = ["\t".join(COLUMNS)]
    for row in record.rows:
        predict = -1 if row["prediction"] is None else row["prediction"]
        took = timedelta(seconds=seconds * row["n"])
        cells = (row["index"], row["label"], predict, format_number(row["radius"], DIGITS, "down"))
        lines.append("\t".join(map(str, (*cells, int(predict == row["label"]), took))))
    write_whole(Path(path), "\n".join(lines) + "\n")


def read_tsv(path: Path | str) -> list[Row]:
    """Read a table of Cohen et al. into rows with index, label, prediction and radius.

    The column `correct` is not believed: some programs write a running total there.
    """
    try:
        lines = read_file(Path(path)).decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be a table in UTF-8, but it is not: {error}") from None
    if not lines or tuple(lines[0].split("\t")[:4]) != COLUMNS[:4]:
        raise ValueError(f"{path} must start with the columns {' '.join(COLUMNS)}, but it does not")
    rows: list[Row] = []
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        try:
            index, label, predict = (int(cell) for cell in line.split("\t")[:3])
            radius = float(line.split("\t")[3])
        except (ValueError, IndexError):
            raise ValueError(
                f"{path}, line {number} must hold three whole numbers and a radius, got {line!r}"
            ) from None
        if not 0 <= radius < float("inf"):
            raise ValueError(f"{path}, line {number}: a radius must be >= 0 and finite, got {radius}")
        prediction = None if predict == -1 else predict
        rows.append({"index": index, "label": label, "prediction": prediction, "radius": radius})
    if not rows:
        raise ValueError(f"{path} must hold at least one example, got none")
    return rows
