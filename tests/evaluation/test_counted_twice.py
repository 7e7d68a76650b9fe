"""Rows that were added or left out consistently: readers and audits refuse what would make a claim stronger."""

from dataclasses import replace

import pytest

from evaluation.test_forgeries import audit, write
from rhobust.evaluation import Accuracy, AttackShift, CertifyShift, Conform, Target, WorstCaseCurves, run
from rhobust.measurements import measurements, read_finished
from rhobust.measurements.conformal import conform_summary
from rhobust.measurements.proved import shift_summary
from rhobust.progress import no_progress
from rhobust.records import read_record, settings_hash


@pytest.mark.parametrize(
    "evaluation",
    [
        Accuracy(draws=2),
        AttackShift(eps=(0.1,), draws=2),
        CertifyShift(eps=(0.1,), draws=2),
        Conform(draws=2, coverage=0.5),
        WorstCaseCurves(eps=(0.1,), draws=2, loss="0-1"),
    ],
    ids=lambda evaluation: evaluation.kind,
)
def test_an_example_counts_once(target, evaluation):
    record = run(evaluation, target, progress=no_progress)
    assert measurements(read_finished(record.path))
    write(record.path, record, [*record.rows, *record.rows], {})
    with pytest.raises(ValueError, match=r"must have one row, got 0 twice|must list an image once"):
        measurements(read_finished(record.path))


@pytest.fixture
def staged(folder):
    """A record with a second stage, whose file is put back."""
    target = Target.from_run(folder, device="cpu")
    record = run(CertifyShift(eps=(0.1,), limit=60, second_draws=10, second_share=0.5), target, progress=no_progress)
    kept = record.path.read_bytes()
    yield record
    record.path.write_bytes(kept)


def forge(record, change):
    """Write the record with changed rows, and everything that follows from them."""
    rows = [change(dict(row)) for row in read_record(record.path).rows]
    write(record.path, record, rows, shift_summary(rows, record.settings, 64))
    return rows


@pytest.mark.parametrize("kind", ["certify-shift", "conform"])
def test_an_audit_finds_rows_that_are_there_twice(folder, kind):
    evaluation = CertifyShift(eps=(0.1,), limit=20) if kind == "certify-shift" else Conform(draws=2, limit=20)
    record = run(evaluation, Target.from_run(folder, device="cpu"), progress=no_progress)
    kept = record.path.read_bytes()
    assert audit(record.path, share=1)["problems"] == []
    summary = shift_summary([*record.rows] * 2, record.settings, 64) if kind == "certify-shift" else {}
    write(record.path, record, [*record.rows, *record.rows], summary)
    assert any("must have one row, got 0 twice" in problem for problem in audit(record.path, share=0)["problems"])
    record.path.write_bytes(kept)


def test_samples_of_a_second_stage_that_were_never_taken_are_found(staged):
    def chosen(row):
        return {**row, "second": 0} if row["errors"] == 0 else row

    assert audit(staged.path, share=1)["problems"] == []
    rows = forge(staged, chosen)
    assert sum("second" in row for row in rows) > sum("second" in row for row in staged.rows)
    assert measurements(read_finished(staged.path)), "it is consistent in itself"
    assert any("it has no second, the record says 0" in problem for problem in audit(staged.path, share=1)["problems"])


@pytest.mark.parametrize("errors", [True, False])
def test_a_second_stage_has_a_count_exactly_where_there_was_no_error(staged, errors):
    def other(row):
        return {**row, "second": 0 if errors else None} if "second" in row and (row["errors"] > 0) is errors else row

    forge(staged, other)
    with pytest.raises(ValueError, match="second must be a count where errors is 0, and null elsewhere"):
        measurements(read_finished(staged.path))


def test_an_audit_finds_a_header_with_fewer_scores_than_shared_alpha(folder):
    record = run(Conform(draws=2, limit=20), Target.from_run(folder, device="cpu"), progress=no_progress)
    settings = {**record.settings, "scores": ["probability"]}
    path = record.path.with_name(f"conform-{settings_hash(settings)}.jsonl")
    write(path, replace(record, settings=settings), record.rows, conform_summary(record.rows, settings, 64))
    assert measurements(read_finished(path)), "it is consistent in itself"
    [problem] = audit(path, share=1)["problems"]
    assert problem.startswith("the record is of the scores ['probability'], here it is ['probability', 'adaptive'")
    path.unlink()
