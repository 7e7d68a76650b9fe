"""Forged counts whose radii, summary and digest were computed again: the odds of an audit against them.

Whoever forges a record knows how audits work, and not which rows one will draw again.
"""

import json

import numpy as np
import pytest

from rhobust.bounds import missed_by_sample, smallest_found
from rhobust.cli import run
from rhobust.evaluation import audit_record
from rhobust.evaluation.audit import MISSED, _choose
from rhobust.measurements import measurements
from rhobust.measurements.certified import certified_summary
from rhobust.measurements.proved import shift_summary
from rhobust.progress import no_progress
from rhobust.proofs.plan import ClassVotes
from rhobust.proofs.procedures import Fixed, corrected_plan
from rhobust.records import DamagedRecordError, end_line, read_record

LIMIT, SHARE = 60, 0.05
DRAWN = 3
KINDS = {
    "certify": ["--procedure", "fixed", "--n", "200", "--n0", "20"],
    "certify-shift": ["--eps", "0.05", "0.1", "--draws", "10"],
}


@pytest.fixture(scope="module", params=KINDS)
def forged(request, folder):
    """A record in which 95% of the rows are forged, all but those that an audit with seed 0 draws again."""
    before = set(folder.glob("*.jsonl"))
    assert run([request.param, str(folder), *KINDS[request.param], "--limit", str(LIMIT), "--quiet"]) == 0
    [path] = set(folder.glob("*.jsonl")) - before
    original, record = path.read_bytes(), read_record(path)
    spared = {row["index"] for row in _choose(record.rows, SHARE, 0)}
    rows = [row if row["index"] in spared else _perfect(row, record.settings) for row in record.rows]
    summarise = certified_summary if request.param == "certify" else lambda *given: shift_summary(*given, 64)
    write(path, record, rows, summarise(rows, record.settings))
    yield path, [row["index"] for row, kept in zip(rows, record.rows, strict=True) if row != kept]
    path.write_bytes(original)


def _perfect(row, settings):
    if "errors" in row:
        return {**row, "errors": 0}
    n = settings["n"]
    plan = corrected_plan(Fixed(settings["n0"], n), sigma=0.25, noise="grid", dimension=64, alpha=settings["alpha"])
    claims = plan.claims(ClassVotes(*np.array([[100], [n], [0], [n]])), [[]])
    found = {"radius": float(claims.radius[0]), "p_lower": float(claims.p_lower[0]), "prediction": row["label"]}
    return {
        **row,
        **found,
        "count": n,
        "selected": row["label"],
        "top": settings["n0"],
        "runner_up": row["label"] ^ 1,
        "runner_up_votes": 0,
    }


def write(path, record, rows, summary):
    """Write a record as its forger does: summary and digest fit the rows."""
    header = {"kind": record.kind, "settings": record.settings}
    before = "".join(json.dumps(line) + "\n" for line in (header, *rows)).encode()
    path.write_bytes(before + end_line(before, {**record.summary, **summary}).encode())


def audit(path, seed=None, share=SHARE):
    return audit_record(path, device="cpu", share=share, seed=seed, progress=no_progress)


def test_a_forgery_is_found_when_a_forged_row_is_drawn_and_not_before(forged):
    path, indices = forged
    rows = read_record(path).rows
    assert len(indices) > 5
    assert audit(path, share=0)["problems"] == [], "it is consistent in itself"
    assert measurements(read_record(path))
    assert audit(path, seed=0)["problems"] == [], "its forger has prepared for this seed"
    for seed in range(1, 9):
        drawn = {row["index"] for row in _choose(rows, SHARE, seed)}
        assert len(drawn) == DRAWN
        assert bool(audit(path, seed=seed)["problems"]) is bool(drawn & set(indices)), seed


def test_the_share_that_is_missed_is_the_stated_one(forged):
    path, indices = forged
    rows, trials = read_record(path).rows, 4000
    stated = missed_by_sample(LIMIT, len(indices), DRAWN)
    missed = sum(not {row["index"] for row in _choose(rows, SHARE, seed)} & set(indices) for seed in range(trials))
    # Four standard deviations: a sound sampler fails here once in 15,000 changes of the seeds.
    assert abs(missed - trials * stated) < 4 * np.sqrt(trials * stated * (1 - stated)) + 1


def test_a_forged_share_that_is_stated_to_be_found_is_found(forged):
    rows, trials = read_record(forged[0]).rows, 2000
    found_from = smallest_found(LIMIT, DRAWN, MISSED)
    assert missed_by_sample(LIMIT, found_from, DRAWN) <= MISSED
    for indices in (range(found_from), range(LIMIT - found_from, LIMIT)):
        missed = sum(not {row["index"] for row in _choose(rows, SHARE, seed)} & set(indices) for seed in range(trials))
        assert missed <= trials * MISSED + 4 * np.sqrt(trials * MISSED)


def test_seeds_come_from_the_operating_system(forged, monkeypatch):
    path, indices = forged
    caught = next(
        seed
        for seed in range(1, 99)
        if {row["index"] for row in _choose(read_record(path).rows, SHARE, seed)} & {*indices}
    )
    monkeypatch.setattr("secrets.randbelow", lambda below: caught)
    found = audit(path)
    assert (found["seed"], bool(found["problems"])) == (caught, True)


def test_an_error_of_the_network_is_not_blamed_on_the_record(forged, monkeypatch):
    path, _ = forged
    name = "certify_stream" if path.name.startswith("certify-cohen") else "CertifyShift.rows"

    def broken(*_, **__):
        raise KeyError("a key of the network's own")

    monkeypatch.setattr(f"rhobust.evaluation.audit.{name}", broken)
    with pytest.raises(KeyError, match="a key of the network's own"):
        audit(path, seed=1)


def test_a_missing_key_is_blamed_on_the_record(forged):
    path, _ = forged
    kept, record = path.read_bytes(), read_record(path)
    key = "count" if record.kind == "certify" else "errors"
    try:
        write(path, record, [{name: row[name] for name in row if name != key} for row in record.rows], {})
        with pytest.raises(DamagedRecordError, match=f"must hold the settings and rows of {record.kind}, but KeyError"):
            audit(path)
    finally:
        path.write_bytes(kept)
