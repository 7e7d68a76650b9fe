"""Records of prediction sets: what their rows prove, and their measurements."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from rhobust.measurements.counting import integer, numbered_rows
from rhobust.measurements.proved import SAMPLES, once
from rhobust.measurements.quantities import COVERAGE, SET_COVERAGE, SET_SIZE, Measurement
from rhobust.measurements.shifts import SUMMARIES, prove
from rhobust.proofs.claim import NoiseSamples
from rhobust.proofs.conformal import ConformalCertificate, SetCounts, threshold_grid
from rhobust.records import Record, Row
from rhobust.stats import mean, share

PASSED = ("coverage", "eps", "conditional", "votes", "num_classes")
"""Settings that are arguments of the certificate."""


@once
def conform_summary(rows: Sequence[Row], settings: Mapping[str, Any], dimension: int) -> Row:
    """What the rows of conform prove: the thresholds of the sets, and a sentence about their coverage."""
    labels = np.array([row["label"] for row in rows])
    counts = {score: _counts(rows, score, settings) for score in settings["scores"]}
    samples = NoiseSamples(dimension=dimension, **{key: settings[key] for key in SAMPLES})
    certificate = ConformalCertificate.from_counts(counts, labels, samples, **{key: settings[key] for key in PASSED})
    stated = {**asdict(certificate), "thresholds": list(certificate.thresholds)}
    return {"dimension": dimension, "certificate": {**stated, "statement": certificate.statement()}}


def _counts(rows: Sequence[Row], score: Any, settings: Mapping[str, Any]) -> SetCounts:
    places, shapes = len(threshold_grid(score, settings["num_classes"])), (settings["draws"], settings["num_classes"])
    columns = [np.array([row[key][score] for row in rows]) for key in ("last", "classes")]
    for column, width in zip(columns, shapes, strict=True):
        whole = column.ndim == 2 and column.shape[1] == width and column.dtype.kind == "i"
        if not whole or column.min() < 0 or column.max() >= places:
            raise ValueError(f"the places of the score {score} must be {width} numbers in 0..{places - 1} per row")
    return SetCounts(*columns)


def read_conform(record: Record, _: Sequence[float] | None) -> Iterator[Measurement]:
    """The certified coverage at eps, and the measured coverage and mean size of the sets without a shift."""
    for number, row in numbered_rows(record):
        if not 0 <= integer(row, "label", number) < record.settings["num_classes"]:
            raise ValueError(f"line {number}: label must be in 0..{record.settings['num_classes'] - 1}")
    certificate, n = prove(record)["certificate"], len(record.rows)
    detail = {key: certificate[key] for key in ("score", "conditional", "votes", "statement")}
    yield Measurement(COVERAGE, certificate["eps"], certificate["coverage"], None, None, n, "proved", detail)
    grid = threshold_grid(certificate["score"], record.settings["num_classes"])
    limits = [float("inf") if one is None else one for one in certificate["thresholds"]]
    places = np.array([int(np.flatnonzero(grid == limit)[0]) for limit in limits])
    held = np.array([row["classes"][certificate["score"]] for row in record.rows]) >= places
    labels = np.array([row["label"] for row in record.rows])
    covered = share(int(held[np.arange(n), labels].sum()), n)
    yield Measurement.counted(SET_COVERAGE, 0.0, covered.as_row(), "estimate")
    size = mean(held.sum(axis=1).tolist())
    yield Measurement(SET_SIZE, 0.0, size.value, size.low, size.high, n, "estimate")


SUMMARIES["conform"] = conform_summary
