"""Records that are given away without weights: the same tables, nothing done again, no mixing of networks."""

import json

import pytest

from reproduction.plan import plan
from reproduction.publishing import publish
from reproduction.reproduce import reproduce
from reproduction.workshop import Workshop
from rhobust.records import read_record, record_paths
from rhobust.training.run import FINGERPRINT, WEIGHTS
from tests.reproduction.conftest import workshop_in

NAMES = ["table-elu", "fig-training"]


def files(folder):
    return {path.name: path.read_text() for path in folder.glob("*.*") if path.suffix in (".md", ".svg")}


@pytest.fixture
def given(made, tmp_path):
    publish(made, tmp_path / "given")
    return tmp_path / "given"


def test_the_copy_has_no_weights_and_gives_the_same_tables(made, given, tiny):
    assert not list(given.rglob(WEIGHTS))
    assert len(list(given.glob(f"runs/*/{FINGERPRINT}"))) == len(list(made.glob(f"runs/*/{WEIGHTS}"))) > 0
    outcome = reproduce(plan(NAMES, tiny), workshop_in(given), draw_only=True)
    assert outcome.faults == ()
    assert files(given) == {
        name: text.replace(".jsonl", ".jsonl.gz") if name.endswith(".md") else text
        for name, text in files(made).items()
    }


def test_nothing_is_done_again_in_the_copy(given, tiny, monkeypatch):
    def never(*_, **__):
        raise AssertionError("trained again")

    monkeypatch.setattr("reproduction.evaluate.train", never)
    assert reproduce(plan(NAMES, tiny), workshop_in(given)).faults == ()
    missing = record_paths(next(given.glob("runs/*")), "attack")[0]
    missing.unlink()
    [fault] = reproduce(plan(NAMES, tiny), workshop_in(given)).faults
    assert fault == f"{missing.parent} must hold its weights for more records, but they lie elsewhere"


def test_a_second_copy_changes_nothing(made, given):
    before = {path: path.read_bytes() for path in given.rglob("*.gz")}
    publish(made, given)
    assert {path: path.read_bytes() for path in given.rglob("*.gz")} == before
    assert before


def test_records_of_other_weights_are_refused(made, given):
    fingerprint = next(given.glob(f"runs/*/{FINGERPRINT}"))
    fingerprint.write_text(json.dumps({**json.loads(fingerprint.read_text()), "model_hash": "0" * 16}))
    with pytest.raises(ValueError, match="must hold records of the same weights"):
        publish(made, given)


def test_a_damaged_copy_is_one_line(given, tiny):
    path = record_paths(next(given.glob("runs/*")), "attack")[0]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="must be a compressed record, but it is damaged"):
        read_record(path)
    outcome = reproduce(plan(NAMES, tiny), Workshop(given, workshop_in(given).device), draw_only=True)
    assert len(outcome.faults) == 1


@pytest.mark.parametrize("content", [b"", b"no gzip", "cut"], ids=["empty", "other", "cut"])
def test_a_copy_without_a_header_leaves_the_others_readable(given, tiny, content):
    path = record_paths(next(given.glob("runs/*")), "attack")[0]
    path.write_bytes(path.read_bytes()[:60] if content == "cut" else content)
    [fault] = reproduce(plan(NAMES, tiny), workshop_in(given), draw_only=True).faults
    assert fault == f"{path.parent} must hold the record of this attack, but it was not evaluated"
