"""A certificate above what an attack leaves is an error, unless the votes are too few to say so."""

import json

import pytest

from rhobust.attacks import EOT, PGD
from rhobust.cli import run as cli
from rhobust.evaluation import Attack, Certify, run
from rhobust.measurements import contradictions
from rhobust.progress import no_progress
from rhobust.records import RecordWriter, finished_records, read_record

RADII = (0.0, 0.25, 0.5, 1.0)


def contradicting(record):
    """What contradicts an attack in its folder."""
    return contradictions([record, *finished_records(record.path.parent, "certify")])


def claim(record, radius, given=None, **changes):
    """A certificate that claims the same radius for every example of an attack, or abstains but for those given."""
    keys = ("model_hash", "data", "split", "data_fingerprint", "sigma")
    settings = {key: record.settings[key] for key in keys} | {"alpha": 0.001, "radius": radius} | changes
    writer = RecordWriter(record.path.parent, "certify", "forged", settings)
    examples = {row["index"]: row["label"] for row in record.rows}
    writer.append(
        {"index": index, "label": label, "prediction": label, "radius": radius}
        if given is None or index in given
        else {"index": index, "label": label, "prediction": None, "radius": 0.0}
        for index, label in examples.items()
    )
    writer.finish({"certified_accuracy": []})
    return writer


def test_sound_certificates_contradict_no_attack(target):
    run(Certify(radii=RADII, n0=50, n=2000), target, progress=no_progress)
    record = run(Attack(attack=EOT(draws=8), radii=RADII, probe=False), target, progress=no_progress)
    assert record.summary["contradictions"] == []
    assert record.summary["warnings"] == []


def test_a_false_certificate_is_named_with_both_numbers(target):
    before = run(Attack(attack=EOT(draws=8), radii=RADII, probe=False), target, progress=no_progress)
    assert before.summary["contradictions"] == []
    forged = claim(before, 0.6)
    (text,) = contradicting(before)
    robust = next(at["accuracy"] for at in before.summary["robust_accuracy"] if at["radius"] == 0.5)
    assert f"{forged.path.name} certifies 100.0% of 40 examples at radius 0.5" in text
    assert f"but under {before.path.name} the robust accuracy there is {100 * robust:.1f}%" in text
    after = run(Attack(attack=EOT(draws=9), radii=RADII, probe=False), target, progress=no_progress)
    assert len(after.summary["contradictions"]) == 1


@pytest.mark.parametrize(
    "changes",
    [{"sigma": 0.5}, {"model_hash": "f" * 16}, {"data_fingerprint": "0"}],
)
def test_certificates_of_another_classifier_are_not_compared(target, changes):
    record = run(Attack(attack=EOT(draws=8), radii=RADII, probe=False), target, progress=no_progress)
    claim(record, 0.6, **changes)
    assert contradicting(record) == []


def test_the_base_network_and_other_norms_are_not_compared(target):
    base = run(Attack(attack=PGD(), radii=RADII, probe=False), target, progress=no_progress)
    linf = run(Attack(attack=EOT(draws=8, norm="linf"), radii=RADII, probe=False), target, progress=no_progress)
    claim(base, 0.6)
    assert contradicting(base) == contradicting(linf) == []


def test_a_certificate_may_fail_as_often_as_alpha_allows(target):
    record = run(Attack(attack=EOT(draws=8), radii=RADII, probe=False), target, progress=no_progress)
    broken = sum(row["broken"] for row in record.rows if row["radius"] == 0.5)
    assert 0 < broken < 40
    claim(record, 0.6, alpha=0.49)
    assert contradicting(record) == []


def made(folder, count, distance=0.5, restarts=0):
    """An attack at radius 0.5 on forty examples that breaks so many of them beyond doubt, at a distance."""
    identity = {"model_hash": "0" * 16, "data": "grey", "split": "test", "data_fingerprint": "1", "sigma": 0.25}
    settings = {**identity, "scored": "smoothed", "norm": "l2", "radii": [0.5], "attack": {"restarts": restarts}}
    writer = RecordWriter(folder, "attack", "made", settings)
    votes = {"votes": 1000, "label_votes": 300, "rival_votes": 700}
    writer.append(
        {"index": index, "label": 0, "radius": 0.5, "broken": index < count, "distance": distance, **votes}
        for index in range(40)
    )
    return writer.record()


@pytest.mark.parametrize(("distance", "count", "found"), [(0.5, 2, 1), (0.5, 1, 0), (0.51, 2, 0)])
def test_more_than_chance_must_lie_within_the_radius_that_is_proved(tmp_path, distance, count, found):
    """Of forty certificates one may be false by chance; a point on the ball's edge is within."""
    record = made(tmp_path, count, distance)
    claim(record, 0.5)
    assert len(contradicting(record)) == found


@pytest.mark.parametrize(("restarts", "found"), [(0, 1), (999, 0)])
def test_every_attempt_has_its_own_vote_and_each_may_be_a_fluke(tmp_path, restarts, found):
    """Of certificates that never fail one is broken by a vote: no wonder among 40 times 1000 votes."""
    record = made(tmp_path, 1, restarts=restarts)
    claim(record, 0.5, alpha=1e-9)
    assert len(contradicting(record)) == found


def test_examples_that_got_no_certificate_might_have_got_a_false_one(target):
    # Where nothing can be proved every certificate given is false: of 40 tries at alpha 0.1, seven are no wonder.
    record = run(Attack(attack=EOT(draws=8), radii=RADII, probe=False), target, progress=no_progress)
    doubtless = {row["index"] for row in record.rows if row["broken"] and row["label_votes"] < 0.2 * row["votes"]}
    given = sorted(doubtless)[:7]
    assert len(given) == 7
    claim(record, 2.0, given=given, alpha=0.1)
    assert contradicting(record) == []
    claim(record, 2.0, given=given, alpha=0.01)
    assert len(contradicting(record)) == 1


def test_few_votes_refute_nothing_but_are_told(target):
    certified = run(Attack(attack=EOT(draws=8), radii=RADII, probe=False), target, progress=no_progress)
    claim(certified, 0.6)
    record = run(Attack(attack=EOT(draws=8), radii=RADII, votes=9, probe=False), target, progress=no_progress)
    assert record.summary["contradictions"] == []
    assert any(warning.endswith("too few votes to tell") for warning in record.summary["warnings"])


def test_the_command_fails_with_one_line(folder, capsys):
    arguments = ["attack", str(folder), "--limit", "30", "--votes", "50", "--radii", "0", "1.5", "--quiet"]
    arguments += ["--attack.steps", "4", "--attack.draws", "4", "--no-probe"]
    assert cli(arguments) == 0
    path = next(line for line in capsys.readouterr().out.splitlines() if line.endswith(".jsonl"))
    forged = claim(read_record(path if not isinstance(path, str) else type(folder)(path)), 2.0)
    try:
        assert cli([*arguments, "--json"]) == 1
        out, err = capsys.readouterr()
        assert err.count("\n") == 1
        assert err.startswith(f"rhobust: {forged.path.name} certifies 100.0% of 30 examples at radius 1.5, but under ")
        assert json.loads(out)["contradictions"] == [err.removeprefix("rhobust: ").strip()]
    finally:
        forged.path.unlink()
