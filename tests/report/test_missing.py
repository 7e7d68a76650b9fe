"""What is missing, unfinished, damaged or contradictory is named in one line, and the rest is still shown."""

import json
from pathlib import Path

import numpy as np
import pytest

from rhobust.report import write_report

from .folders import write_attack, write_certificate, write_run
from .test_page import numbers_of, only, page_of, text_of


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "nal")


def test_a_folder_without_config_is_refused_in_one_line(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"config\.json must exist") as caught:
        write_report([tmp_path / "empty"], tmp_path / "r.html")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "r.html").exists()


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


def test_an_unfinished_record_is_left_out_and_named(tmp_path, run):
    only(run, "attack-eot-*").unlink()
    path = write_attack(run, "eot", np.ones(5), scored="smoothed", sigma=0.25, finish=False)
    page = page_of(tmp_path, run)
    assert f"{path.name} is unfinished (25 rows so far): left out." in text_of(page)
    assert path.name not in {row["record"] for row in numbers_of(page)}
    assert "No finished attack on the smoothed classifier" in text_of(page)


def test_a_half_written_last_line_counts_as_unfinished(tmp_path, run):
    path = only(run, "certify-cohen-*")
    path.write_bytes(path.read_bytes()[:-20])
    assert f"{path.name} is unfinished" in text_of(page_of(tmp_path, run))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda lines: [*lines[:3], "{broken", *lines[3:]], "line 4 must be a JSON object"),
        (lambda lines: lines[1:], "must start with a header line"),
        (lambda lines: [lines[0], lines[1], *lines[1:]], "an example must stand once, got 0 twice"),
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
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")
    page = page_of(tmp_path, run)
    assert f"{path.name} is damaged and left out" in text_of(page)
    assert reason in text_of(page)
    records = {row["record"] for row in numbers_of(page)}
    assert path.name not in records
    assert len(records) == 3


def test_a_record_of_an_unknown_kind_is_named(tmp_path, run):
    (run / "odd.jsonl").write_text('{"kind": "dance", "settings": {}}\n{"summary": {}}\n')
    assert "odd.jsonl is of kind 'dance', which this report does not know" in text_of(page_of(tmp_path, run))


def test_a_transfer_matrix_and_another_norm_are_named(tmp_path, run):
    (run / "transfer-pgd-1.jsonl").write_text('{"kind": "transfer", "settings": {}}\n{"summary": {}}\n')
    path = only(run, "attack-eot-*")
    path.write_text(path.read_text().replace('"scored"', '"norm": "linf", "scored"', 1))
    text = text_of(page_of(tmp_path, run))
    assert "transfer-pgd-1.jsonl is a transfer matrix, which this page does not show" in text
    assert f"{path.name} is not an L2 attack, and this page compares by L2 radius: left out" in text


def test_an_attack_says_what_it_was_crafted_on(tmp_path, run):
    path = only(run, "attack-eot-*")
    source = '"source": {"name": "erm-digits", "model_hash": "1", "sigma": null}, "scored"'
    path.write_text(path.read_text().replace('"scored"', source, 1))
    names = {row["quantity"] for row in numbers_of(page_of(tmp_path, run))}
    assert "EOT, 20 steps, crafted on erm-digits, smoothed classifier" in names


def test_an_attack_that_skips_an_example_is_damaged(tmp_path, run):
    path = only(run, "attack-eot-*")
    lines = path.read_text().splitlines()
    standing = next(i for i, line in enumerate(lines) if '"radius": 0.5' in line and '"broken": false' in line)
    path.write_text("\n".join(lines[:standing] + lines[standing + 1 :]) + "\n")
    assert "radius 0.5 must have a row for every example, 1 lack it" in text_of(page_of(tmp_path, run))


def test_an_attack_may_drop_what_is_broken_already(tmp_path, run):
    path = only(run, "attack-eot-*")
    whole = {row["where"]: row["value"] for row in numbers_of(page_of(tmp_path, run)) if row["record"] == path.name}
    lines, broken = [], set()
    for line in path.read_text().splitlines():
        row = json.loads(line)
        if row.get("index") in broken:
            continue
        if row.get("broken"):
            broken.add(row["index"])
        lines.append(line)
    path.write_text("\n".join(lines) + "\n")
    page = page_of(tmp_path, run)
    assert {row["where"]: row["value"] for row in numbers_of(page) if row["record"] == path.name} == whole


def test_a_summary_its_rows_do_not_give_is_named(tmp_path, run):
    path = only(run, "attack-eot-*")
    lines = path.read_text().splitlines()
    summary = json.loads(lines[-1])
    summary["summary"]["robust_accuracy"][1]["accuracy"] = 0.999
    path.write_text("\n".join([*lines[:-1], json.dumps(summary)]) + "\n")
    assert f"{path.name}: the summary's accuracy at radius 0.25 (0.999) is not what its rows give" in text_of(
        page_of(tmp_path, run)
    )


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
    assert "at radius 0.5" in text
    assert "certifies 100.0% of 200 examples" in text
    assert "Guaranteed." not in text


def test_a_sound_run_has_no_error(tmp_path, run):
    assert "cannot both be right" not in text_of(page_of(tmp_path, run))


@pytest.mark.parametrize("change", [{"model_hash": "other"}, {"data_fingerprint": "other"}, {"sigma": 0.5}])
def test_other_weights_or_data_are_not_compared(tmp_path, run, change):
    only(run, "certify-cohen-*").unlink()
    path = write_certificate(run, np.full(200, 0.55), sigma=0.25)
    lines = path.read_text().splitlines()
    header = json.loads(lines[0])
    header["settings"] |= change
    path.write_text("\n".join([json.dumps(header), *lines[1:]]) + "\n")
    assert "cannot both be right" not in text_of(page_of(tmp_path, run))


def test_the_base_network_may_fall_below_the_certificate(tmp_path, run):
    only(run, "attack-eot-*").unlink()
    assert "cannot both be right" not in text_of(page_of(tmp_path, run))


def test_single_broken_certified_examples_are_a_warning(tmp_path, run):
    for path in (only(run, "certify-cohen-*"), only(run, "attack-eot-*")):
        path.unlink()
    margin = np.full(200, 0.9)
    write_certificate(run, np.where(np.arange(200) < 150, 0.8, 0.0), sigma=0.25)
    margin[:2] = 0.1
    write_attack(run, "eot", margin, scored="smoothed", sigma=0.25)
    text = text_of(page_of(tmp_path, run))
    assert "2 of the broken examples are certified at this radius" in text
    assert "cannot both be right" not in text


def test_a_shift_certificate_above_its_own_accuracy_is_an_error(tmp_path, run):
    path = only(run, "certify-shift-*")
    lines = path.read_text().splitlines()
    summary = json.loads(lines[-1])
    summary["summary"]["curve"][0]["certified_accuracy"] = 1.0
    path.write_text("\n".join([*lines[:-1], json.dumps(summary)]) + "\n")
    assert "claims 100.0% under a shift, more than" in text_of(page_of(tmp_path, run))
