"""One declaration: a field of an evaluation is an option, an entry of the header, and part of what names the record."""

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import pytest
import torch

from reproduction.runner import Store
from reproduction.specs import Job
from rhobust.attacks import EOT, PGD
from rhobust.certificates import ShiftClaim
from rhobust.cli import parse
from rhobust.commands.target import evaluation_command
from rhobust.evaluation import (
    Ascent,
    Attack,
    Certify,
    CertifyShift,
    Evaluation,
    WorstCaseCurves,
    evaluation_of,
    find_record,
    run,
)
from rhobust.methods import ERM
from rhobust.progress import no_progress
from rhobust.records import read_record
from rhobust.training import TrainConfig


@dataclass(frozen=True, kw_only=True)
class Patient(Attack):
    """An attack with one more option."""

    patience: int = 3
    """How long it waits."""


def help_of(command, name: str) -> str:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        parse(command, name, ["--help"])
    return shown.getvalue()


def test_a_new_field_is_an_option_an_entry_of_the_header_and_part_of_the_records_name(target):
    command = evaluation_command(Patient, print)
    assert "--patience INT" in help_of(command, "attack")
    assert "How long it waits." in help_of(command, "attack")
    parsed = parse(command, "attack", ["--patience", "5", "attack:pgd", "--attack.steps", "2"])
    assert parsed.evaluation == Patient(patience=5, attack=PGD(steps=2))

    short = Patient(attack=PGD(steps=2), radii=(0.0, 0.5), probe=False)
    records = {wait: run(replace(short, patience=wait), target, progress=no_progress) for wait in (3, 5)}
    assert {wait: record.settings["patience"] for wait, record in records.items()} == {3: 3, 5: 5}
    assert len({record.path for record in records.values()}) == 2
    for wait, record in records.items():
        wanted = replace(short, patience=wait)
        assert find_record(wanted, target.folder, model_hash=target.model_hash) == record.path
    assert find_record(replace(short, patience=4), target.folder, model_hash=target.model_hash) is None


def test_a_new_field_is_part_of_the_reproductions_jobs(tmp_path):
    config = TrainConfig(ERM(), data="digits", model="cnn-small", epochs=1, batch_size=500)
    store = Store(tmp_path, torch.device("cpu"), progress=no_progress)
    jobs = {
        wait: Job(config, Patient(attack=PGD(steps=1), radii=(0.0, 0.5), limit=3, probe=False, patience=wait))
        for wait in (3, 5)
    }
    assert len(set(jobs.values())) == 2
    first = store.perform(jobs[3])
    assert (store.done(jobs[3]), store.done(jobs[5])) == (True, False)
    assert store.read(jobs[3]).rows == first.rows
    assert store.perform(jobs[5]).settings["patience"] == 5
    assert {store.find(job) for job in jobs.values()} == set(store.folder(config).glob("attack-*.jsonl"))


EVALUATIONS = [
    Attack(attack=EOT(steps=2, draws=2), radii=(0.0, 0.5), votes=9, probe=False, limit=5, seed=3),
    Attack(attack=PGD(steps=2), radii=(0.25,), nested=False, stride=2, fast=True),
    Certify(radii=(0.0, 0.5), n=200, alpha=0.01, limit=3),
    Certify(tolerance=0.1, n=2000, limit=3),
    Certify(n=300, limit=3, stride=None),
    CertifyShift(eps=(0.0, 0.5), draws=4, claim=ShiftClaim(classifier="k-vote", votes=3), baselines=True),
    CertifyShift(eps=(0.1,), draws=4, claim=ShiftClaim(loss="cross-entropy", cost="w2")),
    CertifyShift(eps=(0.1,), draws=200, claim=ShiftClaim(classifier="majority", cost="winf", estimator="intervals")),
    WorstCaseCurves(eps=(0.1,), ascent=Ascent(gammas=(2.0,), steps=1), draws=3, limit=4),
    WorstCaseCurves(eps=(0.1,), loss="0-1", ascent=Ascent(gammas=(2.0,), steps=1), draws=3, limit=4),
]


@pytest.mark.parametrize("evaluation", EVALUATIONS, ids=repr)
def test_an_evaluation_comes_back_from_the_header_of_its_record(target, evaluation: Evaluation):
    record = run(evaluation, target, progress=no_progress)
    assert evaluation_of(record.kind, read_record(record.path).settings) == evaluation.resolve(target)
    assert find_record(evaluation, target.folder, model_hash=target.model_hash, sigma=target.sigma) == record.path
    assert find_record(evaluation, target.folder, model_hash="other") is None
    assert find_record(replace(evaluation, seed=99), target.folder, model_hash=target.model_hash) is None


def test_an_attack_on_the_base_network_is_found_whatever_votes_it_was_given(target):
    asked = Attack(attack=PGD(steps=1), radii=(0.5,), votes=7, probe=False, limit=4)
    record = run(asked, target, progress=no_progress)
    for votes in (7, 9):  # the base network has none
        wanted = replace(asked, votes=votes)
        assert find_record(wanted, target.folder, model_hash=target.model_hash) == record.path
    smoothed = replace(asked, predictor="smoothed")
    assert find_record(smoothed, target.folder, model_hash=target.model_hash) is None


def test_a_record_with_other_settings_than_the_defaults_is_no_record_of_the_defaults(target):
    few = Certify(radii=(0.0, 0.5), n=200, futility=0.02, limit=2)
    record = run(few, target, progress=no_progress)
    for change, found in (({}, True), ({"n": None}, False), ({"futility": None}, False)):
        wanted = replace(few, **change).with_defaults()
        path = find_record(wanted, target.folder, model_hash=target.model_hash, sigma=target.sigma)
        assert (path == record.path) is found


def test_every_field_is_in_the_header(target):
    for evaluation in EVALUATIONS:
        declared: Sequence[str] = [one.name for one in fields(evaluation)]
        assert len(evaluation.resolve(target).settings(target)) >= len(declared)


def test_a_kind_that_is_not_known_is_refused():
    with pytest.raises(ValueError, match=r"the kind of a record must be one of attack, .*, got 'dance'"):
        evaluation_of("dance", {})
