"""Measured changes on the page: every number and the sentence proved from the rows, damage named."""

import math
from pathlib import Path

import numpy as np
import pytest

from report.folders import change_summary, write_measured, write_run
from report.test_page import numbers_of, page_of, text_of
from rhobust.records import read_record


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "nal", examples=50)


def test_the_numbers_are_proved_from_the_rows(tmp_path, run):
    path = write_measured(run)
    certificate = read_record(path).summary["certificate"]
    page = page_of(tmp_path, run)
    proved, estimate = [row for row in numbers_of(page) if row["record"] == path.name]
    distances = np.random.default_rng(0).uniform(0, 0.04, 30)
    assert proved["where"] == pytest.approx(math.sqrt(np.mean(distances**2)))
    value = certificate["certified_accuracy"]
    shown = f"{math.floor(1000 * value) / 10:.1f}%"
    assert (proved["status"], proved["shown"], proved["value"], proved["n"]) == ("proved", shown, value, 30)
    assert 0.3 < value < 0.9
    assert proved["quantity"] == "Certified accuracy after the change (before and after)"
    assert proved["interval"] == "confidence 99.9%"
    assert (estimate["status"], estimate["value"]) == ("estimate", 0.9)
    assert certificate["statement"] in text_of(page)


def test_without_labels_nothing_is_measured_after(tmp_path, run):
    path = write_measured(run, labelled=False)
    [proved] = [row for row in numbers_of(page_of(tmp_path, run)) if row["record"] == path.name]
    assert proved["status"] == "proved"


def test_distances_alone_are_named(tmp_path, run):
    path = write_measured(run, network=False)
    page = page_of(tmp_path, run)
    assert f"{path.name} measures distances only, without a network" in text_of(page)
    assert path.name not in {row["record"] for row in numbers_of(page)}


def test_a_claim_above_the_measurement_is_an_alarm(tmp_path, run):
    path = write_measured(run, after=10)
    text = text_of(page_of(tmp_path, run))
    assert f"{path.name} certifies an accuracy of" in text
    assert "after a change, more than the 0.0% measured after it" in text


@pytest.mark.parametrize(
    "forge",
    [
        lambda summary: summary.update(certificate=[1]),
        lambda summary: summary.update(certificate={}),
        lambda summary: summary["certificate"].update(certified_accuracy=0.999),
        lambda summary: summary["certificate"].update(certified_accuracy="much"),
        lambda summary: summary["certificate"].update(statement="Every change whatsoever is classified right."),
        lambda summary: summary["certificate"].update(alpha=1e-9),
        lambda summary: summary["after"].update(accuracy=0.99),
        lambda summary: summary["shift"].update(eps_upper=0.0001),
        lambda summary: summary.update(dimension=1),
    ],
)
def test_a_forged_summary_is_left_out_and_named(tmp_path, run, forge):
    path = write_measured(run)
    change_summary(path, forge)
    page = page_of(tmp_path, run)
    assert f"{path.name} is left out: " in text_of(page)
    assert "whatsoever" not in page.replace(text_of(page), "") or "it must have the summary" in text_of(page)
    assert path.name not in {row["record"] for row in numbers_of(page)}
