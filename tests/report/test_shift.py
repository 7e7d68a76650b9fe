"""Shifts on the page: other classifiers, certificates beside ours, and losses from both sides."""

import pytest

from report.folders import EPS, change_summary, write_losses, write_run
from rhobust.records import RecordWriter
from rhobust.report.figures import figures
from rhobust.report.gather import gather
from rhobust.report.overview import entry, headline
from rhobust.report.runs import PageRun
from rhobust.report.tables import table_rows


@pytest.fixture
def folder(tmp_path):
    return write_run(tmp_path / "run", examples=40)


def only_run(folder) -> PageRun:
    [run] = gather([folder]).runs
    return run


def guarantee_of(folder) -> str:
    run = only_run(folder)
    found = entry(0, run, headline([run])).guarantee
    return f"{found.lead}{found.number}{found.rest}"


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
    run = only_run(folder)
    [figure] = [figure for figure in figures([run]) if figure.name.startswith("losses")]
    assert [kind.name for kind in figure.kinds] == ["upper", "lower", "guess"]
    assert "cross-entropy clipped at 2" in figure.title
    upper, lower, guess = figure.document["series"]
    assert (upper["sign"], lower["sign"], guess["sign"]) == ("≤", "≥", "")
    assert (upper["rule"], lower["rule"], guess["rule"]) == ("next", "last", "exact")
    assert upper["points"][0] == [0.05, "0.4624"]
    assert lower["points"][0] == [0.05, "0.3287"]
    rows = {(row.quantity, row.number.at): row for row in table_rows([run]) if "cross-entropy" in row.quantity}
    assert rows["Worst cross-entropy clipped at 2 under W2 shift, at most", 0.05].shown == "0.463"
    assert rows["Worst cross-entropy clipped at 2 under W2 shift, at least", 0.05].shown == "0.328"
    assert rows["Worst cross-entropy clipped at 2 as the paper estimates it", 0.05].number.status == "estimate"
    assert run.contradictions == []


def test_a_loss_certified_without_an_attack_has_one_line(folder):
    write_losses(folder, attacked=False)
    [figure] = [figure for figure in figures([only_run(folder)]) if figure.name.startswith("losses")]
    assert [kind.name for kind in figure.kinds] == ["upper"]


def test_an_attack_above_the_certificate_is_a_contradiction(folder):
    write_losses(folder, crossing=True)
    [line] = only_run(folder).contradictions
    assert "an attack that reaches more than the certified loss at eps 0.05, 0.1" in line


def test_a_curve_outside_its_range_is_damage(folder):
    path = write_losses(folder)
    change_summary(path, lambda summary: summary["curve"][0].update(certified=2.5))
    run = only_run(folder)
    assert run.of("losses") == []
    assert any("certified in [0, 2]" in note for note in run.notes)


@pytest.mark.parametrize(
    ("changes", "title"),
    [
        ({"classifier": "majority", "votes": None}, "W2, class most probable under noise"),
        ({"classifier": "k-vote", "votes": 3}, "W2, majority of 3 noisy predictions"),
        ({"way": "sample"}, "W2, one noisy prediction, these points only"),
        ({"way": "intervals", "cost": "w1"}, "W1, one noisy prediction, from intervals"),
    ],
)
def test_the_top_quotes_one_noisy_vote_about_the_population(folder, changes, title):
    before = guarantee_of(folder)
    path = write_other(folder, **changes)
    if changes.get("way"):
        # One vote cannot be proved right more often than it was seen to be.
        change_summary(path, lambda summary: [point.update(certified_accuracy=0.85) for point in summary["curve"]])
    run = only_run(folder)
    assert guarantee_of(folder) == before
    # More than one vote may be right more often than one: no contradiction.
    assert run.contradictions == []
    assert title in {shift.title for record in run.of("certify-shift") for shift in record.shifts}
    cost, _, rest = title.partition(", ")
    assert f"Certified accuracy under {cost} shift, {rest}" in {row.quantity for row in table_rows([run])}


def test_others_stand_beside_ours_and_start_switched_off(folder):
    write_other(folder, classifier="majority")
    run = only_run(folder)
    [figure] = [figure for figure in figures([run]) if figure.name == "shift"]
    switched = {kind.words.removesuffix(" (proved)"): kind.on for kind in figure.kinds}
    assert switched["W2, one noisy prediction"]
    assert not switched["W1, one noisy prediction, bound of Kumar"]
    assert not switched["W∞, class most probable under noise, bound of Cohen"]
    quantity = "Certified accuracy under W1 shift, one noisy prediction, bound of Kumar"
    rows = [row for row in table_rows([run]) if row.quantity == quantity]
    assert [(row.number.at, row.shown, row.number.status) for row in rows] == [(eps, "60.0%", "proved") for eps in EPS]


def test_curves_beside_ours_that_do_not_fit_are_damage(folder):
    path = write_other(folder)
    change_summary(path, lambda summary: summary["beside"][0].update(eps=[0.1]))
    assert any("as many eps as certified accuracies" in note for note in only_run(folder).notes)
