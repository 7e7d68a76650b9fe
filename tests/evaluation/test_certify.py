"""Records of certificates over a half space: what they say, and what does not change them."""

from dataclasses import replace

import numpy as np
import pytest

from rhobust.attacks import PGD
from rhobust.bounds import failure_quantile, lecuyer_radius, li_radius
from rhobust.certificates import passes
from rhobust.certificates import sampling as votes
from rhobust.data import to_unit
from rhobust.evaluation import Attack, Certify, run
from rhobust.evaluation.certify import certified_summary
from rhobust.executors import base as executors
from rhobust.formatting import format_percent
from rhobust.measurements import certified_curve, read_tsv, write_tsv
from rhobust.measurements.certified import other_parts
from rhobust.progress import no_progress
from rhobust.records import read_record
from tests.executors.scripted import Scripted

RADII = (0.0, 0.25, 0.5, 1.0)


def certify(target, **settings):
    progress, executor = settings.pop("progress", no_progress), settings.pop("executor", None)
    return run(Certify(**{"n": 1000} | settings), target, progress=progress, executor=executor)


@pytest.mark.parametrize(
    ("settings", "way"),
    [
        ({}, "cohen"),
        ({"radii": RADII}, "grid"),
        ({"radii": RADII, "procedure": "fixed"}, "cohen"),
        ({"tolerance": 0.1}, "two-stage"),
        ({"procedure": "two-stage"}, "two-stage"),
    ],
)
def test_the_procedure_is_that_which_the_options_ask_for(target, settings, way):
    record = certify(target, limit=2, **settings)
    assert record.settings["way"] == way
    assert record.path.name.startswith(f"certify-{way}-")
    assert ("evidence" in record.rows[0]) == (way == "grid")


def test_a_record_says_what_the_certificates_rest_on(target):
    settings = certify(target, radii=RADII, limit=3, seed=4, alpha=0.01).settings
    expected = {"n0": 0, "n": 1000, "alpha": 0.01, "seed": 4, "noise": "grid", "dtype": "float32", "sigma": 0.25}
    expected |= {"model_hash": "0" * 16, "compiled": False, "dimension": 16}
    now = {"stopping": "pairwise", "futility": 0.4, "first": 0.7, "last": 0.1, "share": 0.1}
    assert (expected | now).items() <= settings.items()
    # Records from before there were two ways to stop have the header that they always had.
    before = certify(target, radii=RADII, limit=3, seed=4, alpha=0.01, stopping="e-value")
    assert (expected | {"early": 0.2, "futility": 0.005}).items() <= before.settings.items()
    assert "stopping" not in before.settings
    assert Certify.from_settings(before.settings).certification().stopping == "e-value"
    assert Certify.from_settings(settings).certification().stopping == "pairwise"
    # Those from before classes were compared have two numbers per step, those since have three.
    alone = certify(target, radii=RADII, limit=3, seed=4, alpha=0.01, stopping="boundary")
    assert "share" not in alone.settings
    for record, numbers in ((alone, 2), (before, 2), (certify(target, radii=RADII, limit=3, seed=4, alpha=0.01), 3)):
        assert {len(step) for row in record.rows for step in row["evidence"]} == {numbers}


@pytest.mark.parametrize("stopping", ["pairwise", "boundary", "e-value"])
def test_a_smaller_futility_gives_up_less_and_costs_more_samples(target, stopping):
    """The same votes are looked at for longer, so that no image loses a radius."""
    usual, patient = (certify(target, radii=RADII, stopping=stopping, futility=futility) for futility in (0.4, 0.001))
    assert patient.settings["futility"] == 0.001
    assert Certify.from_settings(patient.settings).futility == 0.001
    assert patient.path != usual.path
    pairs = list(zip(usual.rows, patient.rows, strict=True))
    assert all(one["radius"] <= other["radius"] and one["n"] <= other["n"] for one, other in pairs)
    assert any(one["n"] < other["n"] for one, other in pairs)
    with pytest.raises(ValueError, match="futility must come with the procedure sequential, got the procedure fixed"):
        Certify(procedure="fixed", futility=0.1)
    with pytest.raises(ValueError, match="futility must be in"):
        Certify(radii=RADII, futility=1.5)


def test_the_summary_counts_right_and_certified(target, half_space, grey_images):
    labels = grey_images.labels.clone()
    labels[-1] = 0  # one that is certified and wrong
    target = replace(target, data=replace(grey_images, labels=labels))
    record = certify(target, procedure="fixed", radii=RADII, n=2000)
    rows, summary = record.rows, record.summary
    right = [row["radius"] for row in rows if row["prediction"] is not None and row["prediction"] == row["label"]]
    assert rows[-1]["prediction"] == 1
    false = failure_quantile(40, 0.001, 0.001)
    assert summary["false_at_most"] == false > 0
    for point in summary["certified_accuracy"]:
        hits = sum(radius >= point["radius"] for radius in right)
        assert point["accuracy"] == hits / 40
        assert point["at_least"] == max(0, hits - false) / 40
    assert summary["average_certified_radius"] == pytest.approx(sum(right) / 40)
    assert summary["abstained"] == sum(row["prediction"] is None for row in rows)
    assert summary["mean_draws"] == 2000
    # sqrt(16) / 510: what rounding an image to the grid can move it by.
    assert summary["deduction"] == pytest.approx(4 / 510)
    true = half_space(to_unit(grey_images.images))[:, 1].abs() >= 0.5 - 0.5 / 255
    assert summary["certified_accuracy"][2]["at_least"] <= true.float().mean()
    assert "within L2 distance 0.5. Holds for 8-bit images." in summary["statement"]
    assert "ideal Gaussian draws" in certify(target, procedure="fixed", n=100, noise="float").summary["statement"]


def test_other_theorems_speak_from_the_same_counts(target):
    record = certify(target, procedure="fixed", radii=RADII, n=2000)
    lower = np.array([row["p_lower"] if row["prediction"] == row["label"] else 0.0 for row in record.rows])
    cohen, lecuyer, li = record.summary["theorems"]
    assert [theorem["name"] for theorem in (cohen, lecuyer, li)] == ["cohen", "lecuyer", "li"]
    assert lecuyer["average_certified_radius"] == pytest.approx(lecuyer_radius(lower, 0.25).mean())
    assert li["certified_accuracy"][1] == np.mean(li_radius(lower, 0.25) >= 0.25)
    assert cohen["average_certified_radius"] == pytest.approx(record.summary["average_certified_radius"])
    assert cohen["certified_accuracy"] == [point["accuracy"] for point in record.summary["certified_accuracy"]]
    assert lecuyer["average_certified_radius"] < li["average_certified_radius"] < cohen["average_certified_radius"]
    grid = certify(target, radii=RADII).summary
    assert grid["theorems"][0]["certified_accuracy"] == [point["accuracy"] for point in grid["certified_accuracy"]]


def without_time(record):
    return record.rows, {**record.summary, "seconds": None}


@pytest.mark.parametrize(
    "settings", [{"radii": RADII}, {"procedure": "fixed"}, {"tolerance": 0.05}], ids=lambda s: next(iter(s))
)
def test_batches_kills_and_processes_change_nothing(target, settings, monkeypatch):
    monkeypatch.setattr(executors, "PIECE", 7)
    whole = certify(target, **settings)
    assert [row["index"] for row in whole.rows] == list(range(40))
    lines = whole.path.read_text().splitlines(keepends=True)

    # Killed in the middle of a line, and gone on with larger batches.
    whole.path.write_text("".join(lines[:17]) + lines[17][:9])
    monkeypatch.setitem(passes.ROWS, "cpu", 512)
    assert without_time(certify(target, **settings)) == without_time(whole)

    # Workers that answer in any order, of which some die; the driver is interrupted, and another number goes on.
    whole.path.unlink()
    with pytest.raises(KeyboardInterrupt):
        certify(target, **settings, executor=Scripted(3, deaths=2, stop=3))
    assert 0 < len(read_record(whole.path).rows) < 40
    together = certify(target, **settings, executor=Scripted(5, seed=1))
    assert without_time(together) == without_time(whole)
    assert read_record(whole.path) == together


def test_a_finished_record_is_not_computed_again(target, monkeypatch):
    record = certify(target, limit=3)
    monkeypatch.setattr("rhobust.evaluation.target_cache.VoteCounter", None)
    assert certify(target, limit=3) == record


def test_long_work_is_told_beforehand_for_the_images_that_are_left(target, monkeypatch):
    monkeypatch.setattr(votes.VoteCounter, "seconds_per_sample", lambda counter: 0.01)
    steps = []
    whole = certify(target, limit=30, progress=steps.append)
    assert steps[0] == (
        "30 images with 1,100 noise samples each take about 6 min: radii or a tolerance stop sampling early,"
        " a limit or a stride takes fewer images, a smaller n fewer samples"
    )
    lines = whole.path.read_text().splitlines(keepends=True)
    whole.path.write_text("".join(lines[:11]))
    steps.clear()
    assert certify(target, limit=30, progress=steps.append).rows == whole.rows
    assert steps[0].startswith("20 images with 1,100 noise samples each take about 4 min: ")


def test_a_worker_measures_its_speed_once_and_not_for_every_block(target, monkeypatch):
    measured = []
    monkeypatch.setattr(votes.VoteCounter, "seconds_per_sample", lambda counter: measured.append(counter) or 1e-6)
    evaluation = Certify(n=200).resolve(target)
    for block in ([0, 1], [2, 3], [4]):
        assert len(list(evaluation.rows(target, block, no_progress))) == len(block)
    assert len(measured) == 1


@pytest.mark.parametrize("settings", [{"limit": 5}, {"radii": RADII}, {"tolerance": 0.05}], ids=str)
def test_short_work_and_work_that_stops_early_are_not_foretold(target, monkeypatch, settings):
    monkeypatch.setattr(votes.VoteCounter, "seconds_per_sample", lambda counter: 0.01)
    steps = []
    certify(target, progress=steps.append, **settings)
    assert not any(isinstance(step, str) for step in steps)


def test_other_noise_than_in_training_is_told(target):
    assert certify(target, limit=2).summary["warnings"] == []
    other = replace(target, trained_sigma=0.5)
    (warning,) = certify(other, limit=2, seed=1).summary["warnings"]
    assert warning == "the network was trained with noise 0.5 and is smoothed with 0.25"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 0.0}, r"alpha must be in \(0, 1\), got 0.0"),
        ({"n": 50}, "n must be >= n0 >= 1, got n=50 and n0=100"),
        ({"procedure": "sequential"}, "radii must be given for the procedure sequential"),
        ({"procedure": "fixed", "tolerance": 0.1}, "tolerance must come with the procedure two-stage"),
        ({"dtype": "float16"}, "dtype must be float32 or bfloat16 on a cpu"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_written(target, settings, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        certify(target, **settings)
    assert not list(tmp_path.iterdir())


def test_the_table_of_cohen_et_al(target, tmp_path):
    record = certify(target, procedure="fixed", radii=RADII, n=200)
    write_tsv(record, tmp_path / "table.tsv")
    lines = (tmp_path / "table.tsv").read_text().splitlines()
    assert lines[0].split("\t") == ["idx", "label", "predict", "radius", "correct", "time"]
    read = read_tsv(tmp_path / "table.tsv")
    for ours, theirs, line in zip(record.rows, read, lines[1:], strict=True):
        assert {key: theirs[key] for key in ("index", "label", "prediction")} == {
            key: ours[key] for key in ("index", "label", "prediction")
        }
        assert 0 <= ours["radius"] - theirs["radius"] < 1e-6
        assert line.split("\t")[4] == str(int(ours["prediction"] == ours["label"]))
    assert any(line.split("\t")[2] == "-1" for line in lines[1:])


def test_a_peers_table_is_read_and_a_damaged_one_is_named(tmp_path):
    path = tmp_path / "peer.tsv"
    table = "idx\tlabel\tpredict\tradius\tcorrect\ttime\n0\t3\t3\t0.953\t1\t0:00:14.1\n20\t8\t-1\t0.0\t1\t0:00:15\n"
    for encoding in ("utf-8", "utf-8-sig"):
        path.write_text(table, encoding=encoding)
        assert read_tsv(path) == [
            {"index": 0, "label": 3, "prediction": 3, "radius": 0.953},
            {"index": 20, "label": 8, "prediction": None, "radius": 0.0},
        ]
    for text, message in [
        ("", "must start with the columns"),
        ("a\tb\n", "must start with the columns idx label predict radius"),
        ("idx\tlabel\tpredict\tradius\n", "at least one example"),
        ("idx\tlabel\tpredict\tradius\n1\t2\tx\t0.1\n", "line 2 must hold three whole numbers"),
        ("idx\tlabel\tpredict\tradius\n1\t2\t2\t0.1\n1\t2\t2\t0.1\n", r"tsv, line 3: an example .* got 1 twice"),
        ("idx\tlabel\tpredict\tradius\n1\t2\t2\t-0.1\n", "line 2: a radius must be >= 0"),
    ]:
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_tsv(path)


def test_an_empty_claim_is_summed_up_too(target):
    rows = [{**row, "prediction": None, "radius": 0.0, "p_lower": 0.0} for row in certify(target, limit=2).rows]
    settings = certify(target, limit=2).settings
    summary = certified_summary(rows, settings)
    assert summary["average_certified_radius"] == 0.0
    assert all(point["accuracy"] == point["at_least"] == 0 for point in summary["certified_accuracy"])


def test_what_an_attack_leaves_standing_is_not_certified(target):
    attacked = run(Attack(attack=PGD(steps=1), radii=[0.0, 0.25], limit=4, probe=False), target, progress=no_progress)
    with pytest.raises(ValueError, match="rows must be those of certificates, got those of an attack"):
        certified_curve(attacked.rows, [0.0, 0.25])
    with pytest.raises(ValueError, match="rows must be those of certificates, got none"):
        certified_curve([], [0.0])


def test_a_statement_is_about_a_radius_at_which_something_is_certified(target):
    """At the middle one the network may have nothing; records that say so, as older ones do, are still sound."""
    record = certify(target, radii=(0.0, 0.25, 5.0, 9.0), limit=12)
    points = {point["radius"]: point["at_least"] for point in record.summary["certified_accuracy"]}
    assert points[5.0] == 0.0 < points[0.25]
    assert "L2 distance 0.25." in record.summary["statement"]
    share = f"at least {format_percent(points[0.25], 'down')}%"
    assert share in record.summary["statement"]
    middle = record.summary["statement"].replace(share, "at least 0.0%")
    for said, sound in ((middle.replace("distance 0.25.", "distance 5."), True), (middle, False)):
        older = replace(record, summary={**record.summary, "statement": said})
        assert ("statement" in [part for part, *_ in other_parts(older)]) is not sound


def test_other_theorems_count_what_the_class_alone_proves():
    row = {"label": 3, "prediction": 3, "selected": 3, "radius": 0.25, "count": 500, "n": 1000, "p_lower": 0.9}
    rows = [{**row, "index": 0}, {**row, "index": 1, "radius": 0.0, "p_lower": 0.0}]
    settings = {"alpha": 0.001, "sigma": 0.25, "radii": [0.0, 0.25], "dimension": 64, "noise": "grid"}
    found = certified_summary(rows, settings)
    assert [point["accuracy"] for point in found["certified_accuracy"]] == [1.0, 0.5]
    assert {one["name"]: one["certified_accuracy"][0] for one in found["theorems"]} == dict.fromkeys(
        ("cohen", "lecuyer", "li"), 0.5
    )
