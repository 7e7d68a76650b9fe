"""Summaries that were edited, with a digest that was computed again: nobody repeats what the rows do not prove."""

import numpy as np
import pytest

from evaluation.test_forgeries import write
from rhobust.cli import run as command
from rhobust.evaluation import Certify, CertifyShift, Conform, run
from rhobust.measurements import measurements, read_finished
from rhobust.progress import no_progress
from rhobust.records import read_record

CERTIFY = Certify(n=500, radii=(0.0, 0.25))


def statement(summary):
    summary["statement"] = summary["statement"].replace("at least", "at the very least")


def at_least(summary):
    summary["certified_accuracy"][0]["at_least"] = 1.0


def false_at_most(summary):
    summary["false_at_most"] -= 1


def deduction(summary):
    summary["deduction"] /= 2


def theorems(summary):
    summary["theorems"][1]["average_certified_radius"] += 1


def accuracy(summary):
    summary["curve"][0]["certified_accuracy"] += 0.01


def coverage(summary):
    summary["certificate"]["coverage"] += 0.01


@pytest.mark.parametrize(
    ("evaluation", "edit"),
    [
        *((CERTIFY, edit) for edit in (statement, at_least, false_at_most, deduction, theorems)),
        (CertifyShift(eps=(0.1,), draws=5, alpha=0.1), accuracy),
        (Conform(draws=5, coverage=0.5, eps=0.0), coverage),
    ],
)
def test_a_finished_record_is_returned_only_if_its_rows_prove_it(target, evaluation, edit):
    record = run(evaluation, target, progress=no_progress)
    assert run(evaluation, target, progress=no_progress) == record
    summary = read_record(record.path).summary
    edit(summary)
    write(record.path, record, record.rows, summary)
    for read in (lambda: measurements(read_finished(record.path)), lambda: run(evaluation, target)):
        with pytest.raises(ValueError, match="must have the summary that its rows give"):
            read()


def test_a_floor_is_not_passed_by_an_edited_record(folder, tmp_path, capsys):
    rng = np.random.default_rng(0)
    for name in ("reference", "changed"):
        np.save(tmp_path / f"{name}.npy", rng.integers(0, 256, (5, 8, 8), dtype=np.uint8))
    pairs = [part for name in ("reference", "changed") for part in (f"--{name}", str(tmp_path / f"{name}.npy"))]
    arguments = ["monitor", str(folder), *pairs, "--draws", "2", "--limit", "5", "--quiet"]
    assert command(arguments) == 1
    [path] = folder.glob("measure-shift-*.jsonl")
    record = read_record(path)
    record.summary["recentred"]["curve"][0]["certified_accuracy"] = 0.99
    write(path, record, record.rows, record.summary)
    capsys.readouterr()
    assert command(arguments) == 2
    shown = capsys.readouterr()
    assert "passed" not in shown.out
    assert "must have the summary that its rows give, but its certified accuracy at eps 0 is 0.99" in shown.err
