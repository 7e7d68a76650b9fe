"""Common corruptions of images of a half space: rows, their summary, and that nothing false is certified."""

import json
from dataclasses import replace

import numpy as np
import pytest

from rhobust.certificates import MeasuredCertificate
from rhobust.cli import run as command
from rhobust.data import CORRUPTIONS, corrupt, pair_distances
from rhobust.evaluation import Corruptions, evaluation_of, find_record, run
from rhobust.measurements import (
    AFTER,
    BASE_AFTER,
    BASE_BEFORE,
    BEFORE,
    CERTIFIED_AFTER,
    CHANGE,
    contradictions,
    corruptions,
    measurements,
)
from rhobust.noise import ExampleNoise
from rhobust.progress import no_progress
from rhobust.proofs.claim import NoiseSamples
from rhobust.records import read_record
from rhobust.report import write_report

FEW = Corruptions(corruptions=("brightness", "gaussian-noise"), severities=(1, 3), draws=8, alpha=0.2)


@pytest.fixture
def record(target):
    return run(FEW, target, progress=no_progress)


def test_a_row_is_one_image_under_one_corruption(target, record):
    assert read_record(record.path) == record
    assert len(record.rows) == 40 * 5
    assert [(row["corruption"], row["severity"]) for row in record.rows[:5]] == [("none", 0), *FEW.cells]
    assert {row["draws"] for row in record.rows} == {8}
    for row in record.rows[5:10]:
        image = target.data.images[[row["index"]]]
        if row["severity"]:
            rng = ExampleNoise(0, f"corruption:{row['corruption']}", [row["index"]])
            after = corrupt(image, row["corruption"], row["severity"], rng=rng)
            assert row["distance"] == pair_distances(image, after)[0]
    alone = run(replace(FEW, limit=3, stride=7), target, progress=no_progress).rows
    assert alone == [row for row in record.rows if row["index"] in (0, 7, 14)]


def test_the_certificates_hold_at_once(target, record):
    clean = np.array([row["errors"] for row in record.rows if row["severity"] == 0])
    for point in record.summary["table"]:
        cell = [row for row in record.rows if all(row[key] == point[key] for key in ("corruption", "severity"))]
        distances = np.array([row["distance"] for row in cell])
        certificate = MeasuredCertificate.from_counts(
            clean, distances, NoiseSamples(draws=8, sigma=0.25, dimension=16, alpha=0.2 / 4, noise="grid")
        )
        assert point["certified_accuracy"] in (certificate.certified_accuracy, 0.0)
        assert point["eps"] == pytest.approx(np.sqrt(np.mean(distances**2)))
        assert point["eps"] <= point["eps_capped"]
        assert point["certified_accuracy"] <= point["noisy"]["high"]
        assert point["base"]["accuracy"] == np.mean([row["prediction"] == row["label"] for row in cell])
        assert point["level"] == CORRUPTIONS[point["corruption"]].levels[point["severity"] - 1]
    assert max(point["certified_accuracy"] for point in record.summary["table"]) > 0
    assert record.summary["clean"]["base"]["accuracy"] == 1


def test_no_certificate_is_tried_where_a_smaller_shift_has_none(target, monkeypatch):
    tried = []

    class Nothing:
        certified_accuracy = 0.0

        @classmethod
        def from_counts(cls, errors, distances, *_, **__):
            tried.append(distances)
            return cls()

    monkeypatch.setattr(corruptions, "MeasuredCertificate", Nothing)
    run(replace(FEW, seed=1), target, progress=no_progress)  # what was proved with seed 0 is remembered
    assert len(tried) == 2, "one severity of each corruption"


def test_several_votes_are_certified_from_the_same_counts(target, record):
    assert "votes" not in record.settings, "the header of one vote is that of records from before there was a choice"
    three = run(replace(FEW, classifier="k-vote"), target, progress=no_progress)
    assert three.rows == record.rows
    clean = np.array([row["errors"] for row in record.rows if row["severity"] == 0])
    assert evaluation_of("corruptions", three.settings) == replace(FEW, classifier="k-vote").resolve(target)
    samples = NoiseSamples(draws=8, sigma=0.25, dimension=16, alpha=0.2 / 4, noise="grid")
    point = three.summary["table"][0]
    cell = [row for row in three.rows if all(row[key] == point[key] for key in ("corruption", "severity"))]
    distances = np.array([row["distance"] for row in cell])
    found = MeasuredCertificate.from_counts(clean, distances, samples, votes=3)
    assert point["certified_accuracy"] == found.certified_accuracy
    assert "the majority of 3 noisy votes" in corruptions.corruptions_in_words(three.settings)


def test_the_header_gives_the_evaluation_back(target, record):
    assert evaluation_of("corruptions", record.settings) == FEW.resolve(target)
    assert find_record(FEW, target.folder, model_hash=target.model_hash, sigma=0.25) == record.path
    assert record.settings["dimension"] == 16


def test_the_reader_counts_from_the_rows(record):
    found = measurements(record)
    assert [one.quantity for one in found[:6]] == [BASE_BEFORE, BEFORE, CHANGE, BASE_AFTER, AFTER, CERTIFIED_AFTER]
    assert found[5].detail == {"corruption": "brightness", "severity": 1, "level": 0.02}
    assert found[5].status == "proved"
    assert contradictions([record]) == []
    after = next(one for one in found if one.quantity == AFTER)
    false = [replace(one, value=1.0) if one.quantity == CERTIFIED_AFTER else one for one in found]
    assert after.value < 1
    assert len(contradictions([record], [false])) > 0
    high = [{**point, "certified_accuracy": 1.0} for point in record.summary["table"]]
    with pytest.raises(ValueError, match=r"its certified accuracy at eps .* is 1\.0, and by the rows 0"):
        measurements(replace(record, summary={**record.summary, "table": high}))
    for change, message in [
        ({"distance": -1.0}, "distance must be a number >= 0"),
        ({"errors": 9}, r"errors must be in 0\.\.draws, got 9 of 8"),
        ({"prediction": None}, "prediction must be an integer, got None"),
        ({"prediction": 7}, "must have the summary that its rows give"),
        ({"index": 99}, "must have one row per example"),
    ]:
        rows = [*record.rows[:-1], {**record.rows[-1], **change}]
        with pytest.raises(ValueError, match=message):
            measurements(replace(record, rows=rows))


def test_a_base_network_without_noise_is_measured_only(target):
    record = run(FEW, replace(target, sigma=None), progress=no_progress)
    assert "errors" not in record.rows[0]
    assert "certified_accuracy" not in record.summary["table"][0]
    assert {one.quantity for one in measurements(record)} == {BASE_BEFORE, CHANGE, BASE_AFTER}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"corruptions": ("rain",)}, "corruptions must be among jpeg"),
        ({"corruptions": ()}, "corruptions must name at least one of jpeg"),
        ({"severities": (0,)}, r"severities must be whole numbers in 1\.\.5, got 0"),
        ({"severities": (1.5,)}, r"severities must be whole numbers in 1\.\.5, got 1\.5"),
        ({"severities": (2, 1)}, "severities must increase"),
        ({"draws": 0}, "draws must be >= 1, got 0"),
        ({"alpha": 1.0}, r"alpha must be in \(0, 1\)"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Corruptions(**settings)


def test_the_command_and_the_page(folder, capsys, tmp_path):
    options = [
        "--corruptions",
        "jpeg",
        "contrast",
        "--severities",
        "1",
        "5",
        "--limit",
        "60",
        "--draws",
        "5",
        "--quiet",
    ]
    assert command(["measure-shift", str(folder), *options]) == 0
    shown = capsys.readouterr().out
    assert "contrast           5" in shown
    assert f"For {folder.name}, if the 60 test images of " in shown
    assert "hold at once, for the classifier that takes one noisy vote (sigma" in shown
    assert command(["measure-shift", "--run", str(folder), *options, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [point["corruption"] for point in document["summary"]["table"]] == ["jpeg", "jpeg", "contrast", "contrast"]
    page = write_report([folder], tmp_path / "report.html")
    assert page.problems == ()
    assert "after jpeg, severity 1" in page.path.read_text(encoding="utf-8")
    assert command(["measure-shift", str(folder), "x", *options]) == 2
    assert "--corruptions must come with one run folder" in capsys.readouterr().err
    assert command(["measure-shift", str(folder), "--quiet"]) == 2
    assert "or a run folder with --corruptions" in capsys.readouterr().err


ALL = ["--corruptions", "--severities", "1", "4", "--limit", "100", "--draws", "5", "--alpha", "0.05", "--quiet"]


@pytest.fixture(scope="module")
def measured(folder):
    """All corruptions of digits for a trained network."""
    assert command(["measure-shift", str(folder), *ALL]) == 0
    records = [read_record(path) for path in folder.glob("corruptions-*.jsonl")]
    [record] = [record for record in records if len(record.rows) == 100 * (1 + len(CORRUPTIONS) * 2)]
    return record


def test_no_certified_floor_is_above_what_was_measured(measured):
    found = measurements(measured)
    cells = {}
    for one in found:
        if one.detail:
            cells.setdefault((one.detail["corruption"], one.detail["severity"]), {})[one.quantity] = one
    assert len(cells) == len(CORRUPTIONS) * 2
    for cell in cells.values():
        assert cell[CERTIFIED_AFTER].value <= cell[AFTER].high
        assert cell[CERTIFIED_AFTER].status == "proved"
        assert {cell[quantity].status for quantity in (CHANGE, AFTER, BASE_AFTER)} == {"estimate"}
    assert max(cell[CERTIFIED_AFTER].value for cell in cells.values()) > 0
    assert contradictions([measured], [found]) == []


def test_the_table_has_distances_accuracies_and_floors_side_by_side(measured, capsys):
    folder = measured.path.parent
    assert command(["measure-shift", str(folder), *ALL]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    columns = ("corruption", "severity", "mean L2", "eps (W2)", "at most", "base network", "one noisy vote", "95%")
    assert [head.index(name) for name in columns] == sorted(head.index(name) for name in columns)
    assert "certified" in head
    shown = {tuple(line.split()[:2]): line.split() for line in lines[1 : 1 + len(CORRUPTIONS) * 2]}
    assert len(shown) == len(CORRUPTIONS) * 2
    for point in measured.summary["table"]:
        cells = shown[point["corruption"], str(point["severity"])]
        mean, eps = map(float, cells[2:4])
        assert point["mean_distance"] <= mean < point["mean_distance"] + 0.0011
        assert mean <= eps + 0.001
        assert float(cells[-1]) <= point["noisy"]["high"] + 1e-3
