"""Pairs of images walked through a half space, where every answer is known."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rhobust.certificates import MeasuredCertificate, MeasuredShift
from rhobust.data import Pairs, pair_distances
from rhobust.evaluation import MeasureDistance, MeasureShift, Untargeted, distance_summary, run
from rhobust.measurements import RECENTRED, measurements, read_finished
from rhobust.progress import no_progress
from rhobust.proofs.claim import NoiseSamples
from rhobust.records import read_record


@pytest.fixture
def pairs(grey_images):
    after = (grey_images.images.to(torch.int16) + 4).to(torch.uint8)
    names = tuple(grey_images.classes[label] for label in grey_images.labels)
    return Pairs("grey and brighter", grey_images.images, after, names)


def without_time(summary):
    return {key: value for key, value in summary.items() if key != "seconds"}


def test_the_record_holds_what_its_summary_rests_on(target, pairs):
    record = run(MeasureShift(draws=8, alpha=0.05), target.with_pairs(pairs), progress=no_progress)
    assert read_record(record.path) == record
    distances, errors = (np.array([row[key] for row in record.rows]) for key in ("distance", "errors"))
    assert np.array_equal(distances, pair_distances(pairs.before, pairs.after))
    certificate = MeasuredCertificate.from_counts(
        errors, distances, NoiseSamples(draws=8, sigma=0.25, dimension=16, alpha=0.05, noise="grid")
    )
    summary = record.summary
    assert summary["certificate"]["certified_accuracy"] == certificate.certified_accuracy
    assert summary["certificate"]["statement"] == certificate.statement()
    shift = MeasuredShift.from_distances(distances, dimension=16, alpha=0.05)
    assert summary["shift"]["eps_upper"] == shift.eps_upper
    assert summary["shift"] == distance_summary(pair_distances(pairs.before, pairs.after), pairs, 0.05)
    assert summary["before"]["accuracy"] == pytest.approx(1 - errors.mean() / 8)
    after = np.array([row["errors_after"] for row in record.rows])
    assert summary["after"]["accuracy"] == pytest.approx(1 - after.mean() / 8)
    # Brighter images are taken for bright more often, under the very same noise.
    dark = np.array([row["label"] == 0 for row in record.rows])
    assert (after[dark] >= errors[dark]).all()
    assert (after[~dark] <= errors[~dark]).all()
    assert after[dark].sum() > errors[dark].sum()
    assert (record.kind, record.settings["points"], record.settings["sigma"]) == ("measure-shift", "before", 0.25)


@pytest.mark.parametrize("count", [15, 70])
def test_without_labels_the_test_data_are_certified(target, pairs, count):
    part = torch.arange(count) % len(pairs)
    unlabelled = Pairs("some", pairs.before[part], pairs.after[part], None)
    record = run(MeasureShift(draws=8, alpha=0.05), target.with_pairs(unlabelled), progress=no_progress)
    assert record.settings["points"] == "test data"
    assert sum("distance" in row for row in record.rows) == count
    assert [row["errors"] for row in record.rows if "errors" in row] == [
        row["errors"]
        for row in run(MeasureShift(draws=8, alpha=0.05), target.with_pairs(pairs), progress=no_progress).rows
    ]
    assert record.summary["after"] is None
    assert record.summary["certificate"]["points"] == 40
    assert record.summary["certificate"]["pairs"] == record.summary["shift"]["pairs"] == count


def test_around_the_changed_data(target, pairs):
    evaluation = MeasureShift(draws=8, label_draws=5, alpha=0.05, eps=(0.0, 0.1))
    labelled = run(evaluation, target.with_pairs(pairs), progress=no_progress)
    found = labelled.summary["recentred"]
    assert [point["source"] for point in found["curve"]] == ["labels", "labels"]
    assert (found["points"], found["pairs"], found["labelled_pairs"], found["label_draws"]) == (40, 40, 40, 5)
    unlabelled = run(evaluation, target.with_pairs(replace(pairs, labels=None)), progress=no_progress)
    for ours, theirs in zip(labelled.rows, unlabelled.rows, strict=True):
        assert theirs == {key: value for key, value in ours.items() if key != "errors_after"}
    around = unlabelled.summary["recentred"]["curve"]
    assert "No label of a changed image was used" in around[0]["statement"]
    assert "on images changed like these" in around[0]["statement"]
    assert "within W2 distance 0.1 of that of the changed images" in around[1]["statement"]
    assert found["curve"][0]["certified_accuracy"] > around[0]["certified_accuracy"] > around[1]["certified_accuracy"]
    some = replace(pairs, labels=(*pairs.labels[:30], *[None] * 10))
    partly = run(evaluation, target.with_pairs(some), progress=no_progress)
    assert partly.summary["recentred"]["labelled_pairs"] == 30
    assert partly.summary["after"]["n"] == 30
    values = [one for one in measurements(read_finished(partly.path)) if one.quantity == RECENTRED]
    assert [(one.at, one.value) for one in values] == [
        (point["eps"], point["certified_accuracy"]) for point in partly.summary["recentred"]["curve"]
    ]


def test_several_votes_are_certified_and_named(target, pairs):
    evaluation = MeasureShift(draws=20, alpha=0.05, eps=(0.0,), classifier="k-vote", votes=5)
    summary = run(evaluation, target.with_pairs(pairs), progress=no_progress).summary
    for statement in (summary["certificate"]["statement"], summary["recentred"]["curve"][0]["statement"]):
        assert "the majority of 5 noisy votes" in statement
    assert summary["certificate"]["votes"] == summary["recentred"]["votes"] == 5


def test_a_forged_floor_is_refused(target, pairs):
    record = run(MeasureShift(draws=8, alpha=0.05), target.with_pairs(pairs), progress=no_progress)
    point = record.summary["recentred"]["curve"][1]
    point["certified_accuracy"] += 0.01
    with pytest.raises(ValueError, match=r"certified accuracy at eps 0\.05"):
        measurements(record)
    point["certified_accuracy"] -= 0.01
    point["statement"] = point["statement"].replace("labels of 40", "labels of 39")
    with pytest.raises(ValueError, match="statement"):
        measurements(record)


def test_an_interrupted_walk_ends_as_the_uninterrupted_one(target, pairs, monkeypatch):
    monkeypatch.setattr("rhobust.evaluation.base.BLOCK", 11)
    whole = run(MeasureShift(draws=4), target.with_pairs(pairs), progress=no_progress)
    lines = whole.path.read_text().splitlines(keepends=True)
    whole.path.write_text("".join(lines[:23]) + lines[23][:7])
    again = run(MeasureShift(draws=4), target.with_pairs(pairs), progress=no_progress)
    assert again.rows == whole.rows
    assert without_time(again.summary) == without_time(whole.summary)


def test_pairs_alone_make_a_record(pairs, tmp_path):
    record = run(MeasureDistance(alpha=0.01), Untargeted(tmp_path / "new", pairs=pairs), progress=no_progress)
    assert read_record(record.path) == record
    assert record.summary["shift"] == distance_summary(pair_distances(pairs.before, pairs.after), pairs, 0.01)
    lines = record.path.read_text().splitlines(keepends=True)
    record.path.write_text("".join(lines[:5]))
    again = run(MeasureDistance(alpha=0.01), Untargeted(tmp_path / "new", pairs=pairs), progress=no_progress)
    assert (again.rows, without_time(again.summary)) == (record.rows, without_time(record.summary))
    assert (
        run(MeasureDistance(alpha=0.02), Untargeted(tmp_path / "new", pairs=pairs), progress=no_progress).path
        != record.path
    )


def test_other_images_are_other_records(target, pairs):
    one = run(MeasureShift(draws=2), target.with_pairs(pairs), progress=no_progress)
    other = run(MeasureShift(draws=2), target.with_pairs(replace(pairs, after=pairs.before)), progress=no_progress)
    assert one.path != other.path


def test_mistakes_are_refused(target, pairs):
    with pytest.raises(ValueError, match="pass sigma"):
        run(MeasureShift(), replace(target, sigma=None).with_pairs(pairs))
    small = Pairs("small", pairs.before[:, :, :2], pairs.after[:, :, :2], None)
    with pytest.raises(
        ValueError, match=r"images of small must have the shape of grey, \(1, 4, 4\) .* got \(1, 2, 4\)"
    ):
        run(MeasureShift(), target.with_pairs(small))
    with pytest.raises(ValueError, match="must be one of dark, bright, got grey"):
        run(MeasureShift(), target.with_pairs(replace(pairs, labels=("grey",) * 40)))
    with pytest.raises(ValueError, match=r"alpha must be in \(0, 1\), got 2"):
        distance_summary(pair_distances(pairs.before, pairs.after), pairs, 2)
