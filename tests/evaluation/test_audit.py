"""The audit: it confirms what was recorded, and nothing that was changed afterwards."""

import json
import re
import shutil

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from evaluation.auditing import audit, forge
from rhobust.bounds import clopper_pearson, smallest_found
from rhobust.certificates import certification_plan
from rhobust.cli import run
from rhobust.evaluation.audit import MISSED, _choose, _smoothing
from rhobust.evaluation.base import evaluation_of
from rhobust.evaluation.certify import certified_summary
from rhobust.measurements import unproved_rows
from rhobust.proofs.plan import ClassVotes
from rhobust.records import COMPRESSED, compress, read_record, settings_hash

PROCEDURES = {
    "grid": ["--radii", "0", "0.25", "0.5"],
    "cohen": ["--procedure", "fixed", "--n", "1000"],
    "two-stage": ["--tolerance", "0.05", "--n", "2000"],
}


@pytest.fixture(scope="module")
def folder(folder):
    """A run with a record of each way."""
    for options in PROCEDURES.values():
        assert run(["certify", str(folder), *options, "--n", "1000", "--limit", "12", "--quiet"]) == 0
    return folder


def record_of(folder, way):
    (path,) = folder.glob(f"certify-{way}-*.jsonl")
    return path


@pytest.fixture
def tampered(folder):
    """A record changed by a function of its lines, put back afterwards."""
    kept = {}

    def change(way, alter):
        path = record_of(folder, way)
        kept[path] = path.read_bytes()
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        alter(lines)
        forge(path, lines)
        return path

    yield change
    for path, content in kept.items():
        path.write_bytes(content)


@pytest.mark.parametrize("way", PROCEDURES)
def test_what_was_recorded_is_confirmed(folder, way):
    found = audit(record_of(folder, way))
    assert found["problems"] == []
    assert (found["examples"], found["redrawn"], found["finished"]) == (12, 12, True)
    assert audit(record_of(folder, way), share=0.1)["redrawn"] == 2
    assert audit(record_of(folder, way), share=0.0)["redrawn"] == 0


def test_a_record_from_before_runner_up_classes_were_kept_is_confirmed(folder, tampered):
    def older(lines):
        for row in lines[1:-1]:
            del row["runner_up"], row["runner_up_votes"]

    assert audit(tampered("cohen", older))["problems"] == []

    def impossible(lines):
        lines[1]["runner_up_votes"] = 1 + lines[1]["n"] - lines[1]["count"]

    [problem] = audit(tampered("cohen", impossible), share=0.0)["problems"]
    assert "impossible votes of the runner-up class" in problem


def test_a_compressed_record_is_confirmed_and_a_renamed_one_is_not(folder, tmp_path):
    given = compress(record_of(folder, "grid"), tmp_path)
    assert audit(given, share=0.0)["problems"] == []
    renamed = given.rename(tmp_path / f"certify-grid-00000000{COMPRESSED}")
    [problem] = audit(renamed, share=0.0)["problems"]
    assert "the file was renamed" in problem


def certified(lines):
    """The row of an example with the largest radius."""
    return max(lines[1:-1], key=lambda row: row["radius"])


def test_a_compressed_record_is_confirmed(folder, tmp_path):
    path = compress(record_of(folder, "cohen"), tmp_path)
    assert audit(path, share=0.0)["problems"] == []


def one_vote_less(lines):
    row = certified(lines)
    row["count"] -= 1
    if row.get("evidence"):
        row["evidence"][-1][1] -= 1


def larger_radius(lines):
    certified(lines)["radius"] += 0.01


def claim_an_abstention(lines):
    row = min(lines[1:-1], key=lambda row: row["p_lower"])
    row["prediction"], row["radius"], row["p_lower"] = row["label"], 0.5, 0.98


def other_label(lines):
    lines[1]["label"] = (lines[1]["label"] + 1) % 10


def rosy_summary(lines):
    lines[-1]["summary"]["certified_accuracy"][-1]["accuracy"] = 1.0


def no_proviso(lines):
    summary = lines[-1]["summary"]
    summary["statement"] = summary["statement"].removesuffix(" Holds for 8-bit images.")


def rosy_words(lines):
    no_proviso(lines)
    lines[-1]["summary"]["statement"] += " Holds for all images."


def drop_a_row(lines):
    del lines[3]


def twice_the_same(lines):
    lines[2]["index"] = lines[1]["index"]


def other_alpha(lines):
    lines[0]["settings"]["alpha"] = 0.05


@pytest.mark.parametrize("way", PROCEDURES)
@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (one_vote_less, "example"),
        (larger_radius, "the counts give the radius"),
        (claim_an_abstention, "the counts give the"),
        (other_label, "label|summary"),
        (rosy_summary, "another certified_accuracy than the summary"),
        (rosy_words, "another statement than the summary"),
        (drop_a_row, "summary|missing"),
        (twice_the_same, "occurs twice"),
        (other_alpha, "the header is not that of the file's name"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_was_changed_is_found(tampered, way, alter, message):
    problems = audit(tampered(way, alter))["problems"]
    assert problems
    assert re.search(message, " ".join(problems))


def test_an_example_that_was_left_out_of_rows_and_summary_is_missed(tampered):
    def leave_out(lines):
        del lines[3]
        lines[-1]["summary"] |= certified_summary(lines[1:-1], lines[0]["settings"])

    assert audit(tampered("cohen", leave_out))["problems"] == [
        "0 examples are not those of the settings, and 1 are missing"
    ]


def test_a_record_from_before_the_last_sentence_is_sound(tampered):
    assert audit(tampered("cohen", no_proviso), share=0.0)["problems"] == []


def test_evidence_that_does_not_hold_is_found(tampered):
    def earlier(lines):
        row = certified(lines)
        step = row["evidence"][-1]
        row["count"] = step[1] = step[1] - step[0] // 20
        row["n"], step[2] = step[0], step[0] - step[1]
        row["runner_up_votes"] = step[2]

    assert "do not prove the radius" in audit(tampered("grid", earlier), share=0.0)["problems"][0]


def test_fewer_votes_for_the_runner_up_than_an_equal_share_are_found(tampered):
    """They would make the class look further ahead of every other class than its votes can be."""

    def spread(lines):
        row = next(row for row in lines[1:-1] if row["n"] - row["count"] > 9)
        row["runner_up_votes"] = 1

    assert "impossible votes of the runner-up class" in audit(tampered("grid", spread), share=0.0)["problems"][0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"top": 1}, r"impossible counts, 1 of \d+ for the class of 10 with most"),
        ({"count": "all"}, "its counts must be whole numbers"),
        ({"n": True}, "its counts must be whole numbers"),
        ({"top": 12.0}, "its counts must be whole numbers"),
        ({"evidence": [[128.0, 128, 0]]}, "its counts must be whole numbers"),
        ({"selected": 10}, "the class must be one of 10, got 10"),
        ({"selected": 3, "runner_up": 3}, "the runner-up must be another class than 3"),
    ],
    ids=str,
)
def test_counts_that_no_votes_give_are_found(tampered, change, said):
    problems = audit(tampered("grid", lambda lines: lines[1].update(change)), share=0.0)["problems"]
    assert re.search(said, problems[0])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_classes": None}, "num_classes must be a whole number >= 2, got None"),
        ({"num_classes": float("nan")}, "num_classes must be a whole number >= 2, got nan"),
        ({"stopping": None}, "stopping must be one of pairwise, boundary, e-value, got None"),
        ({"stopping": []}, r"stopping must be one of pairwise, boundary, e-value, got \[\]"),
        ({"share": 0.9}, "share must be 0.1, by which votes were tested, got 0.9"),
    ],
    ids=str,
)
def test_a_header_by_which_the_rows_would_prove_more_is_a_problem(tampered, change, said):
    record = read_record(tampered("grid", lambda lines: None))
    found = list(unproved_rows(record.rows, {**record.settings, **change}))
    assert re.fullmatch(said, found[0])
    assert not list(unproved_rows(record.rows, record.settings))


def test_counts_from_other_noise_are_found_by_drawing_again(tampered, folder):
    # A row that is sound in itself, with the counts of another example.
    def swap(lines):
        one, two = lines[1], next(row for row in lines[2:-1] if row["count"] != lines[1]["count"])
        for key in one.keys() - {"index", "label"}:
            one[key], two[key] = two[key], one[key]
        lines.pop()  # unfinished: no summary stands against it

    path = tampered("cohen", swap)
    assert audit(path, share=0.0)["problems"] == []
    assert "sampled again" in audit(path)["problems"][0]


def test_forged_counts_cannot_be_hidden_from_an_unknown_seed(tampered, folder):
    # Every row but those that seed 0 looks at is forged, with a digest to match.
    path = record_of(folder, "cohen")
    known = {row["index"] for row in _choose(read_record(path).rows, 0.1, 0)}

    def forged(lines):
        settings = lines[0]["settings"]
        best = clopper_pearson(1000, 1000, settings["alpha"], "lower")
        plan = certification_plan(
            evaluation_of("certify", settings).certification(),
            _smoothing(settings),
            dimension=settings["dimension"],
            alpha=settings["alpha"],
        )
        claims = plan.claims(ClassVotes(*np.array([[100], [1000], [0], [1000]])), [[]])
        assert claims.p_lower[0] == pytest.approx(best, abs=1e-6)
        for row in lines[1:-1]:
            if row["index"] not in known:
                row |= {"count": 1000, "top": 100, "selected": row["label"], "prediction": row["label"]}
                row |= {"radius": float(claims.radius[0]), "p_lower": float(claims.p_lower[0])}
        lines[-1]["summary"] |= certified_summary(lines[1:-1], settings)

    before = path.read_bytes()
    path = tampered("cohen", forged)
    assert path.read_bytes() != before
    assert audit(path, share=0.1, seed=0)["problems"] == []
    found = [audit(path, share=0.1) for _ in range(8)]
    assert len({one["seed"] for one in found}) == 8
    assert any(one["problems"] for one in found)
    again = audit(path, share=0.1, seed=found[0]["seed"])
    assert again == found[0]


def test_the_verdict_says_what_it_would_miss(folder, capsys):
    found = audit(record_of(folder, "cohen"), share=0.1)
    assert (found["redrawn"], found["found_from"]) == (2, smallest_found(12, 2, MISSED))
    assert audit(record_of(folder, "cohen"), share=0.0)["found_from"] is None
    assert run(["audit", str(folder), "--share", "0.1", "--seed", "7", "--quiet"]) == 0
    shown = capsys.readouterr().out
    assert "2 of 12" in shown
    assert f"{100 * found['found_from'] / 12:.1f}"[:-1] in shown
    assert "chosen by seed 7" in shown
    assert "missed all of them with probability at most 1%" in shown
    assert run(["audit", str(folder), "--share", "0", "--quiet"]) == 0
    assert "forged counts would not be noticed" in capsys.readouterr().out


def test_a_record_without_a_digest_is_a_problem(folder, tmp_path):
    path = tmp_path / record_of(folder, "cohen").name
    *lines, end = record_of(folder, "cohen").read_text().splitlines()
    path.write_text("\n".join([*lines, json.dumps({"summary": json.loads(end)["summary"]})]) + "\n")
    assert audit(path, share=0.0)["problems"] == [
        "it has no digest: another program wrote it, or the digest was removed"
    ]


def test_what_cannot_be_read_fails_the_audit_of_its_folder(folder, tmp_path, capsys):
    for way in PROCEDURES:
        shutil.copyfile(record_of(folder, way), tmp_path / record_of(folder, way).name)
    path = tmp_path / record_of(folder, "grid").name
    path.write_bytes(path.read_bytes()[1:])
    (tmp_path / "attack-x-00000000.jsonl").write_text('{"kind": "attack", "settings": {}}\n{"index": 0}\n')
    assert run(["audit", str(tmp_path), "--share", "0", "--quiet", "--json"]) == 1
    audits = json.loads(capsys.readouterr().out)["audits"]
    assert [len(one["problems"]) for one in audits] == [1, 0, 1, 0]
    assert "not that of the file's name" in audits[0]["problems"][0]
    assert "it cannot be read" in audits[2]["problems"][0]
    assert run(["audit", str(path), "--share", "0", "--quiet"]) == 1
    assert f"{path.name}: it cannot be read" in capsys.readouterr().out


def test_other_weights_are_found(folder):
    weights = folder / "model.safetensors"
    kept = weights.read_bytes()
    with safe_open(weights, framework="pt") as file:
        metadata = file.metadata()
    tensors = load_file(weights)
    name = next(iter(tensors))
    save_file({**tensors, name: tensors[name] + 0.01}, weights, metadata=metadata)
    fingerprint = folder / "weights.json"
    known = fingerprint.read_bytes()
    try:
        with pytest.raises(ValueError, match="must be as it was written"):
            audit(record_of(folder, "cohen"))
        fingerprint.unlink()
        assert "the record is of the model_hash" in audit(record_of(folder, "cohen"))["problems"][0]
    finally:
        weights.write_bytes(kept)
        fingerprint.write_bytes(known)


def test_the_command_fails_loudly(folder, tampered, capsys):
    assert run(["audit", str(folder), "--share", "0.1", "--quiet"]) == 0
    assert capsys.readouterr().out.count("confirmed") == 3
    path = tampered("grid", larger_radius)
    capsys.readouterr()
    assert run(["audit", str(folder), "--quiet", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [bool(one["problems"]) for one in found["audits"]] == [False, True, False]
    assert run(["audit", str(path), "--quiet"]) == 1
    assert "FAILED" in capsys.readouterr().out


def test_what_cannot_be_audited_is_refused(folder, tampered, tmp_path, capsys):
    def elsewhere(lines):
        lines[0]["settings"]["device"] = "cuda"

    path = tampered("cohen", elsewhere)
    lines = path.read_text().splitlines()
    renamed = path.with_name(f"certify-cohen-{settings_hash(json.loads(lines[0])['settings'])}.jsonl")
    renamed.write_bytes(path.read_bytes())
    try:
        with pytest.raises(ValueError, match="must be sampled again on a cuda, got cpu"):
            audit(renamed)
        assert audit(renamed, share=0.0)["problems"] == []
    finally:
        renamed.unlink()
    other = tmp_path / "attack-x.jsonl"
    other.write_text('{"kind": "attack", "settings": {}}\n')
    with pytest.raises(ValueError, match="must be a record of certify, certify-shift, conform, got one of attack"):
        audit(other)
    other.write_text('{"kind": "certify", "settings": {"way": "cohen"}}\n{"index": 0}\n')
    with pytest.raises(ValueError, match="must hold the settings and rows of certify"):
        audit(other)
    other.unlink()
    for arguments, message in [
        (["audit", str(tmp_path)], "must name a record of certify, certify-shift, conform, or a folder with one"),
        (["audit", str(folder), "--share", "2"], "share must be in [0, 1], got 2"),
    ]:
        assert run(arguments) == 2
        assert message in capsys.readouterr().err
