"""What is missing, unfinished, damaged or contradictory is named in one line, and the rest is still shown."""

import json
from pathlib import Path

import numpy as np
import pytest

from report.folders import change_summary, rewrite, write_attack, write_certificate, write_run
from report.test_page import numbers_of, only, page_of, text_of
from rhobust.cli import run as cli
from rhobust.records import RecordWriter
from rhobust.report import write_report


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "nal")


def test_a_folder_without_config_is_refused_in_one_line(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"config\.json must exist") as caught:
        write_report([tmp_path / "empty"], tmp_path / "r.html")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "r.html").exists()


def test_a_missing_run_is_named_and_the_rest_drawn(tmp_path, run):
    written = write_report([tmp_path / "gone", run], tmp_path / "r.html")
    line = f"{tmp_path / 'gone'} is left out: there is no such file or folder"
    assert written.problems == (line,)
    page = written.path.read_text()
    assert line in text_of(page)
    assert len({row["record"] for row in numbers_of(page)}) == 4


@pytest.mark.parametrize("pattern", ["attack-eot-*.jsonl", "certify-cohen-*", "certify-shift-*"])
@pytest.mark.parametrize(("old", "new"), [('"seed": 0', '"seed": 1'), ('"index": 3,', '"index": 3, '), ("0.5", "0.51")])
def test_a_record_edited_by_hand_is_named_and_the_rest_drawn(tmp_path, run, pattern, old, new):
    path = only(run, pattern)
    path.write_text(path.read_text().replace(old, new, 1))
    written = write_report([run], tmp_path / "r.html")
    line = f"{path.name} is left out: it must be as it was written, but it was changed: delete it to evaluate it again"
    assert f"nal: {line}" in written.problems
    page = written.path.read_text()
    assert line in text_of(page)
    records = {row["record"] for row in numbers_of(page)}
    assert len(records) == 3
    assert path.name not in records


def test_no_run_at_all_is_refused(tmp_path):
    with pytest.raises(ValueError, match="runs must name at least one run folder"):
        write_report([], tmp_path / "r.html")


def test_config_that_is_no_object_is_refused(tmp_path, run):
    (run / "config.json").write_text("[1]")
    with pytest.raises(ValueError, match="must hold a JSON object, got list"):
        write_report([run], tmp_path / "r.html")


def test_a_bare_folder_still_makes_a_page(tmp_path):
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.json").write_text("{}")
    text = text_of(page_of(tmp_path, tmp_path / "bare"))
    assert "bare" in text
    assert "there are no numbers yet" in text
    assert "there are no curves yet" in text
    assert "metrics.jsonl is missing" in text
    assert "environment.json is missing or damaged" in text


@pytest.mark.parametrize("kept", [1 + 5 * 30, 1 + 5 * 30 + 3])
def test_an_unfinished_attack_shows_its_whole_examples(tmp_path, run, kept):
    path = only(run, "attack-eot-*.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:kept]) + lines[kept][:9])
    page = page_of(tmp_path, run)
    assert "unfinished: 30 examples so far, and the attack was not probed" in text_of(page)
    shown = {row["where"]: row for row in numbers_of(page) if row["record"] == path.name}
    broken = [json.loads(line)["broken"] for line in lines[1 : 1 + 5 * 30] if '"radius": 0.5,' in line]
    assert shown[0.5]["n"] == 30
    assert shown[0.5]["value"] == 1 - sum(broken) / 30


def test_an_unfinished_attack_without_an_example_is_named(tmp_path, run):
    path = only(run, "attack-eot-*.jsonl")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    assert f"{path.name} is left out: it must have one whole example at least, got none" in text_of(
        page_of(tmp_path, run)
    )


def test_a_half_written_last_line_loses_nothing_else(tmp_path, run):
    path = only(run, "certify-cohen-*")

    def numbers():
        rows = [row for row in numbers_of(page_of(tmp_path, run)) if row["record"] == path.name]
        return {(row["quantity"], row["where"]): row["value"] for row in rows}

    whole = numbers()
    path.write_bytes(path.read_bytes()[:-20])
    assert "unfinished: 200 examples so far" in text_of(page_of(tmp_path, run))
    left = numbers()
    assert left == {where: whole[where] for where in left}
    assert {0.0, 0.5, None} <= {where for _, where in left}


def test_an_unfinished_certificate_is_not_said_to_hold_for_all_its_examples(tmp_path, run):
    for path in run.glob("certify-*"):
        if path.name != only(run, "certify-cohen-*").name:
            path.unlink()
    assert "classified right by the smoothed classifier" in text_of(page_of(tmp_path, run))
    path = only(run, "certify-cohen-*")
    path.write_bytes(path.read_bytes()[:-20])
    page = page_of(tmp_path, run)
    assert "classified right by the smoothed classifier" not in text_of(page)
    assert "nothing is guaranteed yet: no finished certificate is in this folder" in text_of(page)
    found = {row["quantity"] for row in numbers_of(page) if row["record"] == path.name}
    assert any(quantity.startswith("certified accuracy") for quantity in map(str.lower, found))
    assert not any("all examples at once" in quantity for quantity in found)


def test_a_finished_certificate_is_quoted_before_an_unfinished_one_over_more_examples(tmp_path, run):
    for path in run.glob("certify-shift-*"):
        path.unlink()
    path = write_certificate(run, np.full(300, -1.0), sigma=0.25, way="grid")
    path.write_bytes(path.read_bytes()[:-20])
    text = text_of(page_of(tmp_path, run))
    assert "unfinished: 300 examples so far" in text
    assert "of these 200 test inputs are classified right by the smoothed classifier" in text


def test_an_unfinished_shift_certificate_claims_nothing(tmp_path, run):
    path = only(run, "certify-shift-*")
    path.write_bytes(path.read_bytes()[:-20])
    page = page_of(tmp_path, run)
    assert f"{path.name} is left out: it must be finished, but it has 200 rows and no summary" in text_of(page)
    assert path.name not in {row["record"] for row in numbers_of(page)}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda lines: [*lines[:3], "{broken", *lines[3:]], "line 4 must be a JSON object"),
        (lambda lines: lines[1:], "must start with a header line"),
        (lambda lines: [lines[0], lines[1], *lines[1:]], "an example must have one row, got 0 twice"),
        (
            lambda lines: [lines[0], lines[1].replace('"index": 0', '"index": "a"'), *lines[2:]],
            "index must be an integer",
        ),
        (
            lambda lines: [lines[0], '{"index": 0, "label": 1, "prediction": 1, "radius": NaN}', *lines[2:]],
            "radius must be",
        ),
        (lambda lines: [*lines[:-1], '{"summary": 3}'], "summary must be a JSON object"),
        (lambda lines: [*lines[:-1], '{"summary": {"certified_accuracy": 3}}'], "must be a list of objects"),
    ],
)
def test_a_damaged_record_is_named_and_the_rest_drawn(tmp_path, run, change, reason):
    path = only(run, "certify-cohen-*")
    rewrite(path, change)
    page = page_of(tmp_path, run)
    assert f"{path.name} is left out: " in text_of(page)
    assert reason in text_of(page)
    records = {row["record"] for row in numbers_of(page)}
    assert path.name not in records
    assert len(records) == 3


def test_a_record_of_an_unknown_kind_is_named(tmp_path, run):
    RecordWriter(run, "dance", "", {}).finish({})
    (run / "dance-44136fa3.jsonl").rename(run / "odd.jsonl")
    assert "odd.jsonl is left out: it is of kind 'dance', which this report does not know" in text_of(
        page_of(tmp_path, run)
    )


def test_an_attack_that_skips_an_example_is_damaged(tmp_path, run):
    path = only(run, "attack-eot-*.jsonl")
    lines = path.read_text().splitlines()
    standing = next(i for i, line in enumerate(lines) if '"radius": 0.5' in line and '"broken": false' in line)
    rewrite(path, lambda lines: lines[:standing] + lines[standing + 1 :])
    assert "radius 0.5 must have a row for every example, but some lack it" in text_of(page_of(tmp_path, run))


@pytest.mark.parametrize(
    ("pattern", "change", "line"),
    [
        (
            "attack-eot-*.jsonl",
            lambda summary: summary["robust_accuracy"][1].update(accuracy=0.999),
            "its accuracy at radius 0.25 is 0.999, and by the rows",
        ),
        (
            "certify-cohen-*",
            lambda summary: summary.update(average_certified_radius=0.9),
            "its average certified radius is 0.9, and by the rows",
        ),
        (
            "certify-shift-*",
            lambda summary: summary.update(accuracy_under_noise=0.99),
            "its accuracy under noise is 0.99, and by the rows",
        ),
    ],
)
def test_a_summary_its_rows_do_not_give_is_refused(tmp_path, run, pattern, change, line):
    path = only(run, pattern)
    change_summary(path, change)
    page = page_of(tmp_path, run)
    assert f"{path.name} is left out: it must have the summary that its rows give, but {line}" in text_of(page)
    assert path.name not in {row["record"] for row in numbers_of(page)}


def test_contradictions_that_an_evaluation_found_are_errors(tmp_path, run, capsys):
    change_summary(only(run, "attack-eot-*.jsonl"), lambda summary: summary.update(contradictions=["it cannot be"]))
    text = text_of(page_of(tmp_path, run))
    assert "These numbers cannot both be right. nal-digits: it cannot be." in text
    assert "Guaranteed." not in text
    assert cli(["report", str(run), "--out", str(tmp_path / "again.html")]) == 1
    assert "nal-digits: it cannot be." in capsys.readouterr().err


def test_half_a_metrics_file_draws_the_epochs_there_are(tmp_path, run):
    path = run / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:700])
    page = page_of(tmp_path, run)
    assert "of 30 epochs: the training is not finished" in text_of(page)
    assert "Training loss" in text_of(page)


def test_damaged_metrics_are_named(tmp_path, run):
    (run / "metrics.jsonl").write_text("no json\n")
    assert "metrics.jsonl is damaged and left out" in text_of(page_of(tmp_path, run))


def test_a_certificate_above_the_attack_is_an_error(tmp_path, run):
    only(run, "certify-cohen-*").unlink()
    write_certificate(run, np.full(200, 0.55), sigma=0.25)
    text = text_of(page_of(tmp_path, run))
    assert "These numbers cannot both be right." in text
    assert "certifies 100.0% of 200 examples at radius 0.5, but under attack-eot-" in text
    assert (
        "of 200 certified examples are misclassified within their certified radius by votes significant at 1e-6" in text
    )
    assert "Guaranteed." not in text


def test_a_few_close_votes_refute_no_certificate(tmp_path, run):
    """Three examples in common, and one of them lost by 9 votes of 20: that is no proof of anything."""
    for path in (only(run, "certify-cohen-*"), *run.glob("attack-eot-*")):
        path.unlink()
    write_certificate(run, np.full(3, 0.55), sigma=0.25)
    path = write_attack(run, "eot", np.array([0.1, 0.9, 0.9]), scored="smoothed", sigma=0.25)
    votes = '"votes": 100, "label_votes": 20, "rival_votes": 70'
    rewrite(
        path, lambda lines: [line.replace(votes, '"votes": 20, "label_votes": 9, "rival_votes": 10') for line in lines]
    )
    change_summary(path, lambda summary: summary.pop("robust_accuracy"))
    text = text_of(page_of(tmp_path, run))
    assert "cannot both be right" not in text
    assert "1 misclassified example is certified at this radius" in text


def test_a_certificate_that_proves_nothing_is_not_refuted(tmp_path, run):
    only(run, "certify-cohen-*").unlink()
    write_certificate(run, np.zeros(200), sigma=0.25)
    assert "cannot both be right" not in text_of(page_of(tmp_path, run))


@pytest.mark.parametrize(("restarts", "refuted"), [(0, True), (100_000, False), ("many", True)])
def test_every_restart_is_another_chance_of_a_fluke(tmp_path, run, restarts, refuted):
    for path in (only(run, "certify-cohen-*"), *run.glob("attack-eot-*")):
        path.unlink()
    write_certificate(run, np.full(200, 0.55), sigma=0.25)
    margin = np.where(np.arange(200) < 90, 0.1, 0.9)
    attack = {"kind": "eot", "steps": 20, "restarts": restarts}
    write_attack(run, "eot", margin, scored="smoothed", sigma=0.25, attack=attack)
    assert ("cannot both be right" in text_of(page_of(tmp_path, run))) is refuted


def test_all_attacks_that_refute_a_certificate_are_named(tmp_path, run):
    only(run, "certify-cohen-*").unlink()
    write_certificate(run, np.full(200, 0.55), sigma=0.25)
    write_attack(run, "eot", np.full(200, 0.3), scored="smoothed", sigma=0.25, seed=1)
    text = text_of(page_of(tmp_path, run))
    assert text.count("These numbers cannot both be right.") == 2
    assert "200 of 200 certified examples are misclassified within their certified radius" in text


def test_a_sound_run_has_no_error(tmp_path, run):
    assert "cannot both be right" not in text_of(page_of(tmp_path, run))


@pytest.mark.parametrize("change", [{"model_hash": "other"}, {"data_fingerprint": "other"}, {"sigma": 0.5}])
def test_other_weights_or_data_are_not_compared(tmp_path, run, change):
    only(run, "certify-cohen-*").unlink()
    path = write_certificate(run, np.full(200, 0.55), sigma=0.25)
    header = json.loads(path.read_text().splitlines()[0])
    header["settings"] |= change
    rewrite(path, lambda lines: [json.dumps(header), *lines[1:]])
    assert "cannot both be right" not in text_of(page_of(tmp_path, run))


def test_the_base_network_may_fall_below_the_certificate(tmp_path, run):
    only(run, "attack-eot-*.jsonl").unlink()
    assert "cannot both be right" not in text_of(page_of(tmp_path, run))


def test_single_broken_certified_examples_are_a_warning(tmp_path, run):
    for path in (only(run, "certify-cohen-*"), *run.glob("attack-eot-*")):
        path.unlink()
    margin = np.full(200, 0.9)
    write_certificate(run, np.where(np.arange(200) < 150, 0.8, 0.0), sigma=0.25)
    margin[:2] = 0.1
    write_attack(run, "eot", margin, scored="smoothed", sigma=0.25)
    text = text_of(page_of(tmp_path, run))
    assert "2 misclassified examples are certified at this radius" in text
    assert "cannot both be right" not in text


def test_a_shift_certificate_above_what_its_rows_prove_is_left_out(tmp_path, run):
    path = only(run, "certify-shift-*")
    change_summary(path, lambda summary: summary["curve"][0].update(certified_accuracy=1.0))
    text = text_of(page_of(tmp_path, run))
    assert f"{path.name} is left out: it must have the summary that its rows give" in text
    assert "but its certified accuracy at eps 0.05 is 1.0, and by the rows 0." in text


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda path: path.write_bytes(b"no zip"), "it must be an .npz file of arrays"),
        (lambda path: path.write_bytes(path.read_bytes()[:300]), "it must be an .npz file of arrays"),
        (lambda path: spoil(path, before=None), "it must hold before"),
        (lambda path: spoil(path, after=np.full((6, 1, 8, 8), 7.0)), "its attacked images must be in [0, 1]"),
        (lambda path: spoil(path, after=np.zeros((6, 1, 8, 9))), "its images must be uint8"),
        (lambda path: spoil(path, index=np.arange(5)), "it must hold one number per image, 6"),
        (lambda path: spoil(path, index=np.arange(900, 906)), "example 900 must be misclassified at radius"),
        (lambda path: spoil(path, classes=np.array(["a"])), "its labels must be below 1"),
    ],
)
def test_damaged_pictures_are_named_and_the_numbers_stay(tmp_path, run, change, reason):
    path = only(run, "attack-eot-*.npz")
    change(path)
    page = page_of(tmp_path, run)
    assert f"{path.name} is damaged and left out: " in text_of(page)
    assert reason in text_of(page)
    assert "<img" not in page
    assert len({row["record"] for row in numbers_of(page)}) == 4


def spoil(path: Path, **arrays: np.ndarray | None) -> None:
    with np.load(path) as file:
        whole = dict(file) | arrays
    np.savez(path, **{name: array for name, array in whole.items() if array is not None})
