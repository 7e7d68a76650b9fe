"""Summaries and radii that a forger wrote, with a digest that fits: what the rows do not prove is never shown."""

import json

import numpy as np
import pytest

from report.folders import change_summary, rewrite, write_certificate, write_losses, write_run, write_shift
from report.test_page import numbers_of, only, text_of
from rhobust.cli import run as cli
from rhobust.measurements import measurements, read_compared
from rhobust.records import read_record

ROSY = "With probability 99.9999% every distribution whatsoever is classified right 100.0% of the time."


@pytest.fixture
def run(tmp_path):
    folder = write_run(tmp_path / "nal", examples=60)
    write_losses(folder)
    return folder


def shown(tmp_path, run, capsys):
    """Exit code of the report, its lines on stderr, and the page."""
    code = cli(["report", str(run), "--out", str(tmp_path / "page.html"), "--quiet"])
    return code, capsys.readouterr().err.splitlines(), (tmp_path / "page.html").read_text()


def rosy_curve(summary):
    for point in summary["curve"]:
        point |= {"certified_accuracy": 1.0, "statement": ROSY}
    summary["statement"] = ROSY


FORGERIES = {
    "the sentence of a curve": ("certify-shift-*", lambda summary: summary.update(statement=ROSY)),
    "the sentence of a point": ("certify-shift-*", lambda summary: summary["curve"][0].update(statement=ROSY)),
    "bounds and sentences": ("certify-shift-*", rosy_curve),
    "one bound": ("certify-shift-*", lambda summary: summary["curve"][1].update(certified_accuracy=0.97)),
    "the number of points": ("certify-shift-*", lambda summary: summary.update(points=10_000)),
    "the size of an image": ("certify-shift-*", lambda summary: summary.update(dimension="few")),
    "a point less": ("certify-shift-*", lambda summary: summary["curve"].pop()),
    "another eps": ("certify-shift-*", lambda summary: summary["curve"][0].update(eps=7.0)),
    "no curve": ("certify-shift-*", lambda summary: summary.update(curve=None)),
    "a loss from above": ("curves-*", lambda summary: summary["curve"][0].update(certified=0.01)),
    "a loss from below": ("curves-*", lambda summary: summary["curve"][0].update(lower=1.9)),
    "the estimate": ("curves-*", lambda summary: summary["curve"][0].update(estimate=0.01)),
    "the sentence of a loss": ("curves-*", lambda summary: summary.update(statement=ROSY)),
}


@pytest.mark.parametrize(("pattern", "forge"), FORGERIES.values(), ids=FORGERIES)
def test_a_forged_summary_is_left_out(tmp_path, run, capsys, pattern, forge):
    path = only(run, pattern)
    change_summary(path, forge)
    assert read_record(path).intact
    code, lines, page = shown(tmp_path, run, capsys)
    assert code == 1
    assert sum(f"{path.name} is left out: " in line for line in lines) == 1
    assert f"{path.name} is left out: " in text_of(page)
    assert path.name not in {row["record"] for row in numbers_of(page)}
    # The forger's sentence is quoted only as what is refused.
    assert text_of(page).count(ROSY) <= text_of(page).count(f"its statement is '{ROSY}', and by the rows")


def test_a_bound_a_little_off_is_shown_as_the_rows_prove_it(tmp_path, run, capsys):
    path = only(run, "certify-shift-*")
    proved = [point["certified_accuracy"] for point in read_record(path).summary["curve"]]

    def nudge(summary):
        summary["curve"][0]["certified_accuracy"] += 5e-6
        summary["curve"][1]["certified_accuracy"] -= 5e-5

    change_summary(path, nudge)
    code, _, page = shown(tmp_path, run, capsys)
    rows = [row for row in numbers_of(page) if row["record"] == path.name and "under W2 shift" in row["quantity"]]
    assert code == 0
    assert [row["value"] for row in rows] == [proved[0], proved[1] - 5e-5, *proved[2:]]


def test_radii_that_the_votes_do_not_prove_are_refused(tmp_path, run, capsys):
    path = only(run, "certify-cohen-*")

    def forge(lines):
        row = json.loads(lines[1])
        row["radius"] += 0.2
        return [lines[0], json.dumps(row), *lines[2:]]

    rewrite(path, forge)
    code, lines, page = shown(tmp_path, run, capsys)
    assert code == 1
    assert any(
        "must hold radii that its counts prove, but example 0: the counts give the radius" in one for one in lines
    )
    assert path.name not in {row["record"] for row in numbers_of(page)}
    with pytest.raises(ValueError, match="radii that its counts prove"):
        read_compared(path)
    assert cli(["compare", str(path), "--quiet"]) == 2


@pytest.mark.parametrize("key", ["count", "n", "top", "selected", "p_lower"])
def test_certificates_without_their_counts_are_refused(tmp_path, key):
    path = write_certificate(tmp_path, np.full(5, 0.3), sigma=0.25)

    def forge(lines):
        rows = [{name: value for name, value in json.loads(line).items() if name != key} for line in lines[1:-1]]
        return [lines[0], *map(json.dumps, rows), lines[-1]]

    rewrite(path, forge)
    with pytest.raises(ValueError, match="must hold the settings and counts of certificates"):
        measurements(read_record(path))


def test_fewer_errors_give_another_bound_and_the_old_one_is_refused(tmp_path):
    errors = np.random.default_rng(0).binomial(20, 0.2, 60)
    path = write_shift(tmp_path, errors, sigma=0.25)
    rewrite(path, lambda lines: [line.replace('"errors": 4,', '"errors": 0,') for line in lines])
    with pytest.raises(ValueError, match="its accuracy under noise is"):
        measurements(read_record(path))


def test_a_record_of_more_samples_than_can_be_proved_again_is_refused(tmp_path):
    path = write_shift(tmp_path, np.array([0, 1, 2]), sigma=0.25)
    rewrite(path, lambda lines: [line.replace('"draws": 20', f'"draws": {10**15}') for line in lines])
    change_summary(path, lambda summary: summary.pop("accuracy_under_noise"))
    with pytest.raises(ValueError, match="draws must be those of the settings, at most 100000"):
        measurements(read_record(path))
    rewrite(path, lambda lines: [lines[0].replace("[0.05,", f"[{'0.05,' * 2000}"), *lines[1:]])
    rewrite(path, lambda lines: [line.replace(f'"draws": {10**15}', '"draws": 20') for line in lines])
    with pytest.raises(ValueError, match="eps must be a list of at most 1000 numbers"):
        measurements(read_record(path))
