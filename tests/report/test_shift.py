"""Shifts on the page: other classifiers, certificates beside ours, and losses from both sides."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from report.folders import EPS, change_summary, write_losses, write_run, write_shift
from rhobust.commands.certify_shift import show
from rhobust.commands.options import record_document
from rhobust.measurements import WORST_CERTIFIED, WORST_LOWER
from rhobust.records import Record, read_record
from rhobust.report.figures import figures
from rhobust.report.gather import gather
from rhobust.report.guarantee import beyond_tables
from rhobust.report.overview import entries, headline
from rhobust.report.runs import PageRecord, PageRun
from rhobust.report.tables import table_rows


@pytest.fixture
def folder(tmp_path):
    return write_run(tmp_path / "run", examples=40)


def only_run(folder) -> PageRun:
    [run] = gather([folder]).runs
    return run


def guarantee_of(folder) -> str:
    run = only_run(folder)
    found = entries([run], headline([run]))[0].rows[0].guarantee
    return f"{found.lead}{found.number}{found.rest}"


def write_other(folder, **changes):
    """A shift record about more points, with baselines."""
    errors = np.random.default_rng(0).binomial(20, 0.1, 500)
    return write_shift(folder, errors, sigma=0.25, baselines=True, **{"seed": 1, **changes})


def test_losses_are_drawn_from_both_sides_and_rounded_to_the_safe_one(folder):
    write_losses(folder)
    run = only_run(folder)
    [figure] = [figure for figure in figures([run]) if figure.name.startswith("losses")]
    assert [kind.name for kind in figure.kinds] == ["upper", "lower", "guess"]
    assert "cross-entropy clipped at 2" in figure.title
    upper, lower, guess = figure.document["series"]
    assert (upper["sign"], lower["sign"], guess["sign"]) == ("≤", "≥", "")
    assert (upper["rule"], lower["rule"], guess["rule"]) == ("next", "last", "exact")
    exact = {(one.quantity, one.at): one.value for one in run.of("losses")[0].found}
    high, low = exact[WORST_CERTIFIED, 0.05], exact[WORST_LOWER, 0.05]
    assert upper["points"][0] == [0.05, rounded(high, 4, math.ceil)]
    assert lower["points"][0] == [0.05, rounded(low, 4, math.floor)]
    rows = {(row.quantity, row.number.at): row for row in table_rows([run]) if "cross-entropy" in row.quantity}
    assert rows["Worst cross-entropy clipped at 2 under W2 shift, at most", 0.05].shown == rounded(high, 3, math.ceil)
    assert rows["Worst cross-entropy clipped at 2 under W2 shift, at least", 0.05].shown == rounded(low, 3, math.floor)
    assert rows["Worst cross-entropy clipped at 2 as the paper estimates it", 0.05].number.status == "estimate"
    assert run.contradictions == []


def rounded(value, digits, direction):
    return f"{direction(value * 10**digits) / 10**digits:.{digits}f}"


def test_a_loss_is_named_in_digits_that_people_read():
    record = Record(Path("curves.jsonl"), "curves", {"bound": math.log(10)}, [], {})
    assert PageRecord(record, ()).loss == "cross-entropy clipped at 2.30258"


def test_a_loss_certified_without_an_attack_has_one_line(folder):
    write_losses(folder, attacked=False)
    [figure] = [figure for figure in figures([only_run(folder)]) if figure.name.startswith("losses")]
    assert [kind.name for kind in figure.kinds] == ["upper"]


def test_an_attack_above_the_certificate_is_a_contradiction(folder):
    write_losses(folder, crossing=True, n=600)
    [line] = only_run(folder).contradictions
    assert re.search(r"an attack that reaches more than the certified loss at eps (0.05, )?0.1, 0.25", line)


def test_a_curve_outside_its_range_is_damage(folder):
    path = write_losses(folder)
    change_summary(path, lambda summary: summary["curve"][0].update(certified=2.5))
    run = only_run(folder)
    assert run.of("losses") == []
    assert any("its certified at eps 0.05 is 2.5, and by the rows" in note for note in run.notes)


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
    write_other(folder, **changes)
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
    assert [(row.number.at, row.number.status) for row in rows] == [(eps, "proved") for eps in EPS]


def test_a_curve_of_its_own_is_drawn_once_and_w2_comes_first(folder):
    write_other(folder, cost="w1")
    for path in folder.glob("certify-shift-*"):
        path.unlink()
    errors = np.arange(40) % 5
    write_shift(folder, errors, sigma=0.25, baselines=True, seed=1)
    [alone] = [figure for figure in figures([only_run(folder)]) if figure.name == "shift"]
    write_shift(folder, errors, sigma=0.25, cost="w1")
    [figure] = [figure for figure in figures([only_run(folder)]) if figure.name == "shift"]
    labels = [line["label"] for line in figure.document["series"] if line["rule"] == "next"]
    assert sorted(labels) == sorted({line["label"] for line in alone.document["series"] if line["rule"] == "next"})
    assert figure.kinds[0].words == "W2, one noisy prediction (proved)"


def test_the_sentence_of_a_surface_says_something(folder):
    errors = np.repeat([0, 20], [38, 2])
    write_shift(folder, errors, sigma=0.25, gamma=[1.0, 2.0, 50.0], seed=1)
    [table] = [table for table in beyond_tables([only_run(folder)]) if "subpopulation" in table.title]
    [sentence] = table.sentences
    shown = {cell.shown for _, cells in table.rows for cell in cells if cell}
    assert "0.0%" in shown
    found = re.search(r"at least ([\d.]+)% of the time", sentence)
    assert found is not None
    assert float(found[1]) == min(float(cell.rstrip("%")) for cell in shown - {"0.0%"})


def test_classes_are_called_classes_and_named_groups_groups(folder, capsys):
    path = write_shift(folder, np.arange(40) % 3, sigma=0.25, label_shift=[0.1])
    tables = [table for table in beyond_tables([only_run(folder)]) if table.corner in ("class", "shares within")]
    assert [table.title.split(": ")[1] for table in tables] == ["every class", "changed shares of classes"]
    assert [name for name, _ in tables[0].rows] == [str(number) for number in range(10)]
    found = record_document(read_record(path))
    show(found)
    assert re.findall(r"^(class|shares of .*?)  ", capsys.readouterr().out, re.M) == [
        "class",
        "shares of classes within",
    ]
    show({**found, "settings": {**found["settings"], "groups": "groups.txt"}})
    assert re.findall(r"^(group|shares of .*?)  ", capsys.readouterr().out, re.M) == [
        "group",
        "shares of groups within",
    ]


def test_curves_beside_ours_that_do_not_fit_are_damage(folder):
    path = write_other(folder)
    change_summary(path, lambda summary: summary["beside"][0].update(eps=[0.1]))
    assert any("is left out: it must have the summary that its rows give" in note for note in only_run(folder).notes)


def test_bounds_of_the_loss_at_several_noise_levels_are_told_apart(folder):
    for sigma in (0.25, 0.5):
        write_losses(folder, sigma=sigma)
    (losses,) = (one for one in figures([only_run(folder)]) if one.name.startswith("losses"))
    labels = [line["label"] for line in losses.document["series"]]
    assert len(set(labels)) == len(labels) == 6
    assert {line["part"] for line in losses.document["series"]} == {"σ 0.25", "σ 0.5"}
