"""Measured changes on the page: every number counted from the rows, the statement quoted, damage named."""

import math
from pathlib import Path

import numpy as np
import pytest

from report.folders import write_run
from report.test_page import numbers_of, page_of, text_of
from rhobust.records import RecordWriter

STATEMENT = "With probability 99.9% one noisy vote is right at least 61.2% of the time after the change."


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "nal", examples=50)


def write_measured(folder: Path, *, labelled: bool = True, certified: float | None = 0.61299, **extra) -> Path:
    settings = {"pairs": "before and after", "alpha": 0.001, "draws": 10, "sigma": 0.25, "seed": 0}
    writer = RecordWriter(folder, "measure-shift", "", settings)
    rng = np.random.default_rng(0)
    rows = [{"index": i, "distance": float(d)} for i, d in enumerate(rng.uniform(0, 0.4, 30))]
    for row in rows:
        row |= {"label": 0, "errors": 1, "draws": 10} | ({"errors_after": int(rng.integers(3))} if labelled else {})
    writer.append(rows)
    summary = {"shift": {}, "after": None}
    if certified is not None:
        summary["certificate"] = {"certified_accuracy": certified, "statement": STATEMENT}
    writer.finish(summary | extra)
    return writer.path


def test_the_numbers_are_counted_from_the_rows(tmp_path, run):
    path = write_measured(run)
    page = page_of(tmp_path, run)
    proved, estimate = [row for row in numbers_of(page) if row["record"] == path.name]
    rng = np.random.default_rng(0)
    assert proved["where"] == pytest.approx(math.sqrt(np.mean(rng.uniform(0, 0.4, 30) ** 2)))
    assert (proved["status"], proved["shown"], proved["value"], proved["n"]) == ("proved", "61.2%", 0.61299, 30)
    assert proved["quantity"] == "Certified accuracy after the change (before and after)"
    assert proved["interval"] == "confidence 99.9%"
    assert estimate["status"] == "estimate"
    assert estimate["value"] == pytest.approx(1 - np.mean([rng.integers(3) for _ in range(30)]) / 10)
    assert STATEMENT in text_of(page)


def test_without_labels_nothing_is_measured_after(tmp_path, run):
    path = write_measured(run, labelled=False)
    [proved] = [row for row in numbers_of(page_of(tmp_path, run)) if row["record"] == path.name]
    assert proved["status"] == "proved"


def test_distances_alone_are_left_out_and_named(tmp_path, run):
    path = write_measured(run, certified=None)
    page = page_of(tmp_path, run)
    assert f"{path.name} is left out: it measures distances only" in text_of(page)
    assert path.name not in {row["record"] for row in numbers_of(page)}


def test_a_claim_above_the_measurement_is_an_alarm(tmp_path, run):
    path = write_measured(run, certified=0.999)
    assert f"{path.name} certifies an accuracy of 99.9% after a change, more than the" in text_of(
        page_of(tmp_path, run)
    )


@pytest.mark.parametrize("certificate", [[1], {"certified_accuracy": 1.5}, {"certified_accuracy": "much"}, {}])
def test_a_damaged_certificate_is_left_out_and_named(tmp_path, run, certificate):
    path = write_measured(run, certificate=certificate)
    page = page_of(tmp_path, run)
    assert f"{path.name} is left out: " in text_of(page)
    assert path.name not in {row["record"] for row in numbers_of(page)}


def test_a_summary_that_disagrees_with_its_rows_is_named(tmp_path, run):
    path = write_measured(run, after={"accuracy": 0.5})
    assert (
        f"{path.name} is left out: it must have the summary that its rows give, but its accuracy after the change is"
        in text_of(page_of(tmp_path, run))
    )
