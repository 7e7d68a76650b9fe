"""Shifts on the page: other classifiers, certificates beside ours, and losses from both sides."""

import json

import numpy as np
import pytest

from rhobust.records import RecordWriter
from rhobust.report.cards import card, headline
from rhobust.report.figures import figures
from rhobust.report.gather import gather
from rhobust.report.soundness import contradictions
from rhobust.report.table import numbers

from .folders import EPS, write_losses, write_run


@pytest.fixture
def folder(tmp_path):
    return write_run(tmp_path / "run")


def write_other(folder, **changes):
    """A shift record whose certified accuracy is 0.97 at every eps."""
    settings = {"sigma": 0.25, "draws": 20, "alpha": 0.001, "eps": EPS, "classifier": "randomised", "cost": "w2"}
    writer = RecordWriter(folder, "certify-shift", "", settings | {"loss": "0-1", "votes": 1, "seed": 1} | changes)
    writer.append({"index": i, "label": 0, "errors": 2, "draws": 20} for i in range(500))
    curve = [{"eps": eps, "certified_accuracy": 0.97} for eps in EPS]
    beside = [
        {"name": name, "cost": cost, "classifier": classifier, "eps": EPS, "certified_accuracy": [0.6] * len(EPS)}
        for name, cost, classifier in (
            ("kumar", "w1", "randomised"),
            ("ours", "winf", "randomised"),
            ("cohen", "winf", "majority"),
        )
    ]
    writer.finish({"accuracy_under_noise": 0.9, "curve": curve, "statement": "So it is.", "beside": beside})
    return writer.path


def test_losses_are_drawn_from_both_sides_and_rounded_to_the_safe_one(folder):
    write_losses(folder)
    [run] = gather([folder])
    [figure] = [figure for figure in figures([run]) if figure.name.startswith("losses")]
    assert figure.kinds == ("upper", "lower", "guess")
    assert "cross-entropy clipped at 2" in figure.title
    upper, lower, guess = figure.document["series"]
    assert (upper["sign"], lower["sign"], guess["sign"]) == ("≤", "≥", "")
    assert (upper["rule"], lower["rule"], guess["rule"]) == ("next", "last", "exact")
    assert upper["points"][0] == [0.05, "0.4624"]
    assert lower["points"][0] == [0.05, "0.3287"]
    rows = {(row.quantity, row.where): row for row in numbers([run]) if "cross-entropy" in row.quantity}
    assert rows["Worst cross-entropy clipped at 2 under W2 shift, at most", 0.05].shown == "0.463"
    assert rows["Worst cross-entropy clipped at 2 under W2 shift, at least", 0.05].shown == "0.328"
    assert rows["Worst cross-entropy clipped at 2 as the paper estimates it", 0.05].standing == "estimate"
    assert contradictions(run) == []


def test_a_loss_certified_without_an_attack_has_one_line(folder):
    write_losses(folder, attacked=False)
    [run] = gather([folder])
    [figure] = [figure for figure in figures([run]) if figure.name.startswith("losses")]
    assert figure.kinds == ("upper",)


def test_an_attack_above_the_certificate_is_a_contradiction(folder):
    write_losses(folder, crossing=True)
    [run] = gather([folder])
    assert "an attack that reaches more than the certified loss at eps 0.05, 0.1" in contradictions(run)[0]


def test_a_curve_outside_its_range_is_damage(folder):
    path = write_losses(folder)
    lines = path.read_text().splitlines()
    summary = json.loads(lines[-1])
    summary["summary"]["curve"][0]["certified"] = 2.5
    path.write_text("\n".join([*lines[:-1], json.dumps(summary)]) + "\n")
    [run] = gather([folder])
    assert run.losses == ()
    assert any("certified in [0, 2]" in note for note in run.notes)


@pytest.mark.parametrize(
    "changes", [{"classifier": "majority", "votes": None}, {"classifier": "k-vote", "votes": 3}, {"way": "sample"}]
)
def test_cards_quote_one_noisy_vote_about_the_population_only(folder, changes):
    before = card(0, gather([folder])[0], headline(gather([folder]))).sentence
    write_other(folder, **changes)
    [run] = gather([folder])
    assert card(0, run, headline([run])).sentence == before
    # More than one vote may be right more often than one: no contradiction.
    assert contradictions(run) == []
    quantities = {row.quantity for row in numbers([run])}
    assert len([quantity for quantity in quantities if quantity.startswith("Certified accuracy under W2 shift")]) == 2


def test_others_stand_beside_ours(folder):
    write_other(folder)
    [run] = gather([folder])
    [figure] = [figure for figure in figures([run]) if figure.name == "shift"]
    assert {"w2", "winf", "kumar", "cohen"} <= set(figure.kinds)
    rows = [row for row in numbers([run]) if row.quantity == "Kumar et al., W1 shift, randomised"]
    assert [row.where for row in rows] == EPS
    assert {row.shown for row in rows} == {"60.0%"}
    assert np.all([row.standing == "proved" for row in rows])
