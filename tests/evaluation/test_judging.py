"""Votes: what is counted, what is close, and what that leaves open."""

import pytest
import torch
from scipy.stats import binomtest

from rhobust.attacks import EOT, PGD
from rhobust.evaluation import Attack, run, sweep
from rhobust.evaluation.sweep import Predictor
from rhobust.measurements import VOTE_LEVEL, not_significant, robust_accuracy
from rhobust.progress import no_progress


def row(ours, theirs, broken=None):
    return {
        "broken": theirs >= ours if broken is None else broken,
        "votes": 100,
        "label_votes": ours,
        "rival_votes": theirs,
    }


@pytest.mark.parametrize(
    ("counts", "prediction", "broken"), [([3, 5, 2], 1, False), ([5, 5, 0], 0, True), ([2, 3, 5], 2, True)]
)
def test_the_class_with_most_votes_answers_and_a_tie_is_wrong(target, monkeypatch, counts, prediction, broken):
    monkeypatch.setattr(sweep, "count_votes", lambda *_, **__: torch.tensor([counts]))
    (verdict,) = Predictor(target, "smoothed", 10).predict(torch.zeros(1, 1, 4, 4), [1], [0], 0, "test")
    rival = max(counts[0], counts[2])
    assert verdict == {
        "prediction": prediction,
        "broken": broken,
        "votes": 10,
        "label_votes": counts[1],
        "rival_votes": rival,
    }


@pytest.mark.parametrize("ours", range(0, 101, 7))
@pytest.mark.parametrize("theirs", [0, 20, 45, 60])
def test_a_vote_is_undecided_where_the_two_sided_test_is(ours, theirs):
    if ours + theirs:
        exact = binomtest(ours, ours + theirs, 0.5).pvalue
        assert not_significant([row(ours, theirs)]) == [exact > VOTE_LEVEL]


def test_undecided_votes_leave_an_interval():
    rows = [row(90, 10), row(52, 48), row(51, 49), row(48, 52), row(10, 90)]
    curve = robust_accuracy(rows)
    assert (curve["accuracy"], curve["n"], curve["undecided"]) == (0.6, 5, 3)
    assert (curve["least"], curve["most"]) == (0.2, 0.8)
    plain = robust_accuracy([{"broken": False}, {"broken": True}])
    assert "undecided" not in plain
    assert plain["accuracy"] == 0.5


def test_a_record_holds_the_votes(target):
    record = run(
        Attack(attack=EOT(steps=2, draws=2), radii=(0.0, 0.5), votes=30, probe=False), target, progress=no_progress
    )
    for one in record.rows:
        assert one["votes"] == 30
        assert one["label_votes"] + one["rival_votes"] == 30  # two classes
        assert one["broken"] == (one["rival_votes"] >= one["label_votes"])
        assert (one["prediction"] == one["label"]) != one["broken"]
    assert record.settings["votes"] == 30
    assert record.summary["vote_level"] == VOTE_LEVEL
    for point in record.summary["robust_accuracy"]:
        assert point["least"] <= point["accuracy"] <= point["most"]


def test_answers_that_are_no_numbers_are_refused(target, monkeypatch):
    monkeypatch.setattr(target.model, "offset", float("nan"))
    with pytest.raises(ValueError, match="the network returned NaN"):
        run(Attack(attack=PGD(), radii=(0.0,)), target, progress=no_progress)


def test_no_votes_are_refused(target):
    with pytest.raises(ValueError, match="votes must be >= 1, got 0"):
        run(Attack(attack=EOT(), radii=(0.0,), votes=0), target)
