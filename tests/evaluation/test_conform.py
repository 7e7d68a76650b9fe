"""Prediction sets of a half-space, where their coverage is known: from Python, in records and on the command line."""

import numpy as np
import pytest
import torch

from rhobust.certificates import conformalize, nonconformity
from rhobust.cli import run as command
from rhobust.evaluation import Conform, audit_file, run
from rhobust.measurements import COVERAGE, SET_COVERAGE, SET_SIZE, measurements, read_finished
from rhobust.progress import no_progress
from rhobust.proofs.conformal import SCORES, threshold_grid
from rhobust.records import read_record

FEW = {"coverage": 0.7, "eps": 0.0, "draws": 5, "alpha": 0.1, "score": "probability"}


def test_scores_order_classes_by_their_probability():
    logits = torch.tensor([[2.0, 0.0, 1.0, -1.0]])
    p = logits.double().softmax(1)[0]
    assert nonconformity(logits, "probability")[0].tolist() == pytest.approx((1 - p).tolist())
    above = [0.0, float(p[0] + p[2]), float(p[0]), float(p[0] + p[2] + p[1])]
    assert nonconformity(logits, "adaptive")[0].tolist() == pytest.approx(above)
    assert nonconformity(logits, "regularised")[0].tolist() == pytest.approx(
        [above[0], above[1] + 0.1, above[2], above[3] + 0.2]
    )


@pytest.mark.parametrize("score", SCORES)
def test_the_grid_starts_with_all_classes_and_shrinks(score):
    grid = threshold_grid(score, 10)
    assert grid[0] == np.inf
    assert (np.diff(grid) < 0).all()
    worst = nonconformity(torch.eye(10) * 40, score).max()
    assert worst > grid[-1]
    assert (nonconformity(torch.zeros(1, 10), score) <= grid[1]).any()


def test_sets_hold_the_label(half_space, grey_images):
    x, y = grey_images.images.repeat(20, 1, 1, 1), grey_images.labels.repeat(20)
    sets = conformalize(half_space, x, y, sigma=0.25, coverage=0.8, eps=0.05, draws=4, alpha=0.01)
    held = sets.predict_set(x, seed=3)
    assert held.dtype == bool
    assert held.shape == (800, 2)
    assert held[np.arange(800), y].mean() > 0.8
    assert held.sum(1).mean() == pytest.approx(sets.certificate.mean_size, abs=0.1)
    assert np.array_equal(held, sets.predict_set(x, seed=3))
    # A change that brings every image nearer to the border by as much as eps leaves the coverage above its target.
    moved = (x.int() + (1 - 2 * y.view(-1, 1, 1, 1)) * round(0.05 * 255 / 4)).clamp(0, 255).to(torch.uint8)
    assert sets.predict_set(moved)[np.arange(800), y].mean() > 0.8
    assert "within W2 distance 0.05 of the data's" in sets.certificate.statement()
    assert "holds the label at least 80.0% of the time" in sets.certificate.statement()


def test_sets_of_several_noisy_inputs_and_every_class(half_space, grey_images):
    x, y = grey_images.images.repeat(10, 1, 1, 1), grey_images.labels.repeat(10)
    options = {"sigma": 0.25, "coverage": 0.7, "draws": 6, "alpha": 0.05, "score": "probability"}
    sets = conformalize(half_space, x, y, conditional=True, votes=3, **options)
    assert len(sets.certificate.thresholds) == 2
    assert "of that of any one class" in sets.certificate.statement()
    assert "the majority of 3 noisy inputs" in sets.certificate.statement()
    held = sets.predict_set(x)[np.arange(400), y]
    assert min(held[y == label].mean() for label in (0, 1)) > 0.7


def test_a_threshold_of_one_class_is_not_said_to_be_that_of_all(half_space, grey_images):
    x, y = grey_images.images.repeat(10, 1, 1, 1), grey_images.labels.repeat(10)
    few = torch.cat([(y == 0).nonzero()[:, 0], (y == 1).nonzero()[:2, 0]])
    options = {"sigma": 0.25, "coverage": 0.7, "draws": 6, "alpha": 0.05, "score": "probability"}
    certificate = conformalize(half_space, x[few], y[few], conditional=True, **options).certificate
    assert [threshold is None for threshold in certificate.thresholds] == [False, True]
    assert "score at most" not in certificate.statement()
    common = conformalize(half_space, x, y, **options).certificate
    assert "probability score at most 0." in common.statement()


def test_the_record_is_proved_again_from_its_rows(target):
    record = run(Conform(**FEW), target, progress=no_progress)
    assert read_record(record.path) == record
    found = {one.quantity: one for one in measurements(read_finished(record.path))}
    certificate = record.summary["certificate"]
    assert (found[COVERAGE].at, found[COVERAGE].value) == (0.0, 0.7)
    assert found[COVERAGE].detail["statement"] == certificate["statement"]
    assert found[SET_SIZE].value == pytest.approx(certificate["mean_size"])
    assert found[SET_COVERAGE].value == pytest.approx(certificate["measured_coverage"])
    for change in ({"coverage": 0.8}, {"thresholds": [0.1]}, {"statement": "always right"}, {"mean_size": 0.5}):
        forged = read_record(record.path)
        forged.summary["certificate"] |= change
        with pytest.raises(ValueError, match="must"):
            measurements(forged)
    forged = read_record(record.path)
    forged.rows[0]["last"]["probability"][0] = 999
    with pytest.raises(ValueError, match="places of the score probability must be 5 numbers"):
        measurements(forged)


def test_a_finished_calibration_is_audited(folder, capsys):
    options = ["--coverage", "0.5", "--eps", "0", "--score", "probability", "--draws", "4", "--limit", "60", "--quiet"]
    assert command(["conform", str(folder), *options]) == 0
    shown = capsys.readouterr().out
    assert "a class is in the set if its probability score is at most" in shown
    assert "holds the label at least 50.0% of the time" in shown
    [path] = folder.glob("conform-*.jsonl*")
    audited = audit_file(path, device="cpu", share=0.2)
    assert (audited["kind"], audited["problems"], audited["redrawn"]) == ("conform", [], 12)


def test_sets_of_all_classes_are_called_so(folder, capsys):
    assert command(["conform", str(folder), "--draws", "2", "--limit", "5", "--quiet"]) == 0
    shown = capsys.readouterr().out
    assert "every class is in every set: these calibration points prove nothing smaller" in shown
    assert "score is at most" not in shown.split("For ")[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coverage": 1.0}, r"coverage must be in \(0, 1\), got 1"),
        ({"eps": -0.1}, r"eps must be >= 0, got -0\.1"),
        ({"votes": 30}, r"votes must be <= draws \(20\), got 30"),
        ({"score": "margin"}, "score must be"),
    ],
)
def test_mistakes_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Conform(**options)
