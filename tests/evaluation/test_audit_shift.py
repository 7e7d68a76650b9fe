"""Audits of bounds for distributions: confirmed, also without weights; what was changed is found."""

import json
import shutil

import pytest

from evaluation.auditing import audit, forge
from rhobust.cli import run
from rhobust.data.registry import source
from rhobust.records import settings_hash
from rhobust.training import write_fingerprint

SHIFTS = {
    "accuracy": [],
    "votes": ["--classifier", "k-vote", "--votes", "3", "--baselines"],
    "majority": ["--classifier", "majority", "--cost", "w1"],
    "loss": ["--loss", "cross-entropy"],
    "sample": ["--estimator", "sample"],
    "intervals": ["--estimator", "intervals"],
}


@pytest.fixture(scope="module")
def shifts(folder, tmp_path_factory):
    """The same run with a record of each claim about distributions."""
    other = tmp_path_factory.mktemp("shifts") / folder.name
    shutil.copytree(folder, other, ignore=shutil.ignore_patterns("certify-*"))
    found = {}
    for name, options in SHIFTS.items():
        before = set(other.glob("certify-shift-*"))
        arguments = ["certify-shift", str(other), *options, "--eps", "0", "0.1", "--limit", "40", "--quiet"]
        assert run(arguments) == 0
        (found[name],) = set(other.glob("certify-shift-*")) - before
    return found


@pytest.mark.parametrize("name", SHIFTS)
def test_a_bound_for_distributions_is_confirmed(shifts, name):
    found = audit(shifts[name])
    assert (found["problems"], found["examples"], found["redrawn"], found["draws"]) == ([], 40, 40, 800)
    assert audit(shifts[name], share=0.0)["redrawn"] == 0


def test_a_bound_for_distributions_that_was_changed_is_found(shifts):
    path = shifts["accuracy"]
    kept = path.read_bytes()

    def after(change):
        lines = [json.loads(line) for line in kept.splitlines()]
        change(lines)
        forge(path, lines)
        return audit(path)["problems"]

    def higher(lines):
        lines[-1]["summary"]["curve"][1]["certified_accuracy"] += 0.01

    def fewer_errors(lines):
        row = max(lines[1:-1], key=lambda row: row["errors"])
        row["errors"] -= 1

    def impossible(lines):
        lines[1]["errors"] = -1

    def left_out(lines):
        del lines[3]

    try:
        [line] = after(higher)
        assert "but its certified accuracy at eps 0.1 is 0.49" in line
        wrong = after(fewer_errors)
        assert "but its accuracy under noise is" in wrong[0]
        assert any("sampled again, its errors is" in problem for problem in wrong)
        assert "impossible counts, -1 of 20" in after(impossible)[0]
        assert "1 are missing" in after(left_out)[0]
    finally:
        path.write_bytes(kept)


@pytest.fixture
def published(shifts, tmp_path):
    """The records of the claims as they are published: without weights, with a fingerprint of them."""
    folder = tmp_path / "published"
    folder.mkdir()
    run_folder = shifts["accuracy"].parent
    write_fingerprint(run_folder, folder)
    for path in (run_folder / "config.json", *shifts.values()):
        shutil.copyfile(path, folder / path.name)
    return folder


@pytest.mark.parametrize("name", SHIFTS)
def test_a_bound_for_distributions_is_confirmed_without_weights(shifts, published, name):
    found = audit(published / shifts[name].name, share=0.0)
    assert (found["problems"], found["examples"], found["redrawn"]) == ([], 40, 0)
    with pytest.raises(ValueError, match="must hold a finished run"):
        audit(published / shifts[name].name)


@pytest.mark.parametrize("name", SHIFTS)
def test_a_bound_for_distributions_is_confirmed_where_the_published_data_is_not(shifts, tmp_path, monkeypatch, name):
    folder = shutil.copytree(shifts[name].parent, tmp_path / "run")
    monkeypatch.setitem(vars(source("digits")), "path", tmp_path / "absent")
    found = audit(folder / shifts[name].name, share=0.0)
    assert (found["problems"], found["examples"], found["redrawn"]) == ([], 40, 0)
    with pytest.raises(ValueError, match="must exist, but it does not"):
        audit(folder / shifts[name].name)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"0")
    assert "the record is of the model_hash" in audit(folder / shifts[name].name, share=0.0)["problems"][0]


def test_without_weights_a_changed_record_or_another_network_is_found(shifts, published):
    path = published / shifts["accuracy"].name
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    stated = lines[-1]["summary"]["curve"][1]["certified_accuracy"]

    def after(bound):
        lines[-1]["summary"]["curve"][1]["certified_accuracy"] = bound
        forge(path, lines)
        return audit(path, share=0.0)["problems"]

    assert stated > 0.01
    for bound in (stated + 2e-5, stated - 0.001):
        [line] = after(bound)
        assert "must have the summary that its rows give, but its certified accuracy at eps" in line
    assert after(stated - 1e-5) == [], "an older release with larger margins states a little less than is proved"
    fingerprint = published / "weights.json"
    fingerprint.write_text(json.dumps({**json.loads(fingerprint.read_text()), "model_hash": "0" * 16}))
    assert "the record is of the model_hash" in after(stated)[0]


def test_without_weights_a_record_of_other_noise_than_its_images_is_a_problem(shifts, published):
    path = published / shifts["accuracy"].name
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["settings"]["noise"] = "float"
    renamed = path.with_name(f"certify-shift-{settings_hash(lines[0]['settings'])}.jsonl")
    forge(renamed, lines)
    assert audit(renamed, share=0.0)["problems"] == ["the record is of float noise, the images need grid"]


def test_the_command_audits_bounds_for_distributions_too(shifts, capsys):
    folder = shifts["accuracy"].parent
    assert run(["audit", str(folder), "--quiet"]) == 0
    shown = capsys.readouterr()
    assert shown.out.count("confirmed") == len(SHIFTS)
    assert shown.err == ""
