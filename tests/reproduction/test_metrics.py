"""From records to numbers, and from numbers to Markdown and CSV."""

import csv
import io
from dataclasses import asdict
from pathlib import Path

import pytest

from reproduction import claims
from reproduction.documents import Question, answers, faults
from reproduction.metrics import Reader, curve, number, seconds
from reproduction.render import comma_separated, markdown
from reproduction.specs import Metric
from rhobust.measurements.proved import shift_summary
from rhobust.records import Record

assert claims.READERS, "the claims' records are read too"


def record(kind, rows, summary, settings=None):
    # A table of certificates claims radii without counts, so that these tests may choose them.
    name = "record.tsv" if kind == "certify" else "record.jsonl"
    return Record(Path("out/run") / name, kind, settings or {}, rows, summary)


def shift_record(errors, draws=20):
    """A certificate for distributions that its counts prove."""
    settings = {"sigma": 0.25, "draws": draws, "alpha": 0.001, "eps": [0.0, 0.1], "classifier": "randomised"}
    settings |= {"cost": "w2", "loss": "0-1", "bound": 1.0, "votes": 1, "way": "majorant", "noise": "grid", "seed": 0}
    rows = [{"index": i, "label": 0, "errors": wrong, "draws": draws} for i, wrong in enumerate(errors)]
    settings |= {"beside": False, "dimension": 64}
    return record("certify-shift", rows, shift_summary(rows, settings, 64), settings)


def read(quantity, at, found, how=number):
    return how(Metric(None, quantity, at), Reader(found))


def attack(broken, told=None):
    rows = [{"index": i, "radius": at, "broken": b} for at, column in broken.items() for i, b in enumerate(column)]
    accuracy = {at: sum(not b for b in column) / len(column) for at, column in broken.items()}
    curve = [{"radius": at, "accuracy": value} for at, value in (told or accuracy).items()]
    return record("attack", rows, {"robust_accuracy": curve})


def test_an_attack_is_counted_from_its_rows():
    found = attack({0.0: [False] * 8 + [True] * 2, 0.5: [False] * 5 + [True] * 5})
    robust, error = read("robust accuracy", 0.5, found), read("error under attack", 0.5, found)
    assert (robust.value, robust.n, robust.direction) == (0.5, 10, "nearest")
    assert (robust.low, robust.high) == pytest.approx((0.1870860284, 0.8129139716))
    assert (error.low, error.high) == pytest.approx((1 - robust.high, 1 - robust.low))
    drawn = read("robust accuracy", 0.0, found, curve)
    assert (drawn.x, drawn.y) == ((0.0, 0.5), (0.8, 0.5))
    point = read("trade-off", 0.5, found, curve)
    assert (point.x, point.y) == ((0.8,), (0.5,))


def test_a_number_carries_the_warnings_and_contradictions_of_its_record():
    question, found = Question(number, Metric(None, "robust accuracy")), attack({0.0: [False]})
    found.summary.update(warnings=["Weak."], contradictions=["Unsound."])
    answer = answers([question], Reader(found), "run/record.jsonl")[question]
    assert (answer["value"], answer["record"]) == (1.0, "run/record.jsonl")
    assert answer["warnings"] == ["Weak.", "Unsound."]


def test_the_seconds_of_a_training_are_those_of_its_epochs():
    rows = [{"seconds": 1.5}, {"seconds": 2.0}]
    assert read("seconds", 0.0, record("training", rows, {}), seconds).seconds == 3.5
    assert read("seconds", 0.0, record("attack", [], {"seconds": None}), seconds).seconds is None


@pytest.mark.parametrize("told", [{0.0: 0.9}, {0.0: 0.8, 0.5: 0.8}])
def test_a_summary_that_disagrees_with_its_rows_is_refused(told):
    found = attack({0.0: [False] * 8 + [True] * 2})
    found = record("attack", found.rows, {"robust_accuracy": [{"radius": k, "accuracy": v} for k, v in told.items()]})
    with pytest.raises(ValueError, match=r"record\.jsonl must have the summary that its rows give, but its acc"):
        read("robust accuracy", 0.0, found)


def test_certified_accuracy_counts_right_answers_up_to_the_radius():
    rows = [
        {"index": 0, "prediction": 1, "label": 1, "radius": 0.2401},
        {"index": 1, "prediction": 2, "label": 1, "radius": 0.4},
        {"index": 2, "prediction": None, "label": 1, "radius": 0.0},
        {"index": 3, "prediction": 1, "label": 1, "radius": 0.1},
    ]
    summary = {"certified_accuracy": [{"radius": 0.0, "accuracy": 0.5}, {"radius": 0.2, "accuracy": 0.25}]}
    found = record("certify", rows, summary, {"sigma": 0.1, "n": 1000, "alpha": 1e-3})
    drawn = read("certified accuracy", 0.0, found, curve)
    at = dict(zip((round(x, 6) for x in drawn.x), drawn.y, strict=True))
    assert (at[0.0], at[0.1], at[0.105], at[0.24], at[0.245], at[0.4]) == (0.5, 0.5, 0.25, 0.25, 0.0, 0.0)
    high = dict(zip(at, drawn.high, strict=True))
    assert high[0.245] > 0.5, "4 images say little about a share"
    assert high[0.25] == high[0.4] == 0, "1000 draws prove at most 2.462 sigma, whatever the image"


def test_certificates_are_read_at_a_radius_on_average_and_for_a_shift():
    rows = [
        {"index": 0, "prediction": 1, "label": 1, "radius": 0.5},
        {"index": 1, "prediction": 2, "label": 1, "radius": 0.4},
        {"index": 2, "prediction": 1, "label": 1, "radius": 0.25},
        {"index": 3, "prediction": None, "label": 1, "radius": 0.0},
    ]
    found = record("certify", rows, {"certified_accuracy": [{"radius": 0.25, "accuracy": 0.5}]})
    assert [read("certified accuracy", at, found).value for at in (0.25, 0.3)] == [0.5, 0.25]
    assert read("average certified radius", 0.0, found).value == pytest.approx(0.1875)
    shift = shift_record([1, 0] * 200)
    proved = shift.summary["curve"][1]["certified_accuracy"]
    assert 0.5 < proved < 0.975
    bound = read("certified accuracy under shift", 0.1, shift)
    assert (bound.value, bound.low, bound.high, bound.direction, bound.bound) == (proved, proved, 1.0, "down", True)


def test_a_certified_error_is_rounded_up_and_a_distance_has_its_interval():
    found = shift_record([1, 0] * 200)
    proved = 1 - found.summary["curve"][1]["certified_accuracy"]
    bound = read("certified error under shift", 0.1, found)
    assert (bound.value, bound.low, bound.high, bound.direction) == (proved, 0.0, proved, "up")
    rows = [{"squared_distance": value} for value in (1.0, 1.0, 4.0, 4.0)]
    distance = read("matched eps", 0.0, record("match", rows, {"eps": 2.5**0.5}))
    assert distance.value == pytest.approx(2.5**0.5)
    margin = 1.96 * (3 / 4) ** 0.5
    assert (distance.low**2, distance.high**2) == pytest.approx((2.5 - margin, 2.5 + margin))


def test_the_largest_curvature_has_the_interval_of_its_image():
    rows = [{"curvature": -0.3, "standard_error": 0.01}, {"curvature": 0.2, "standard_error": 0.5}]
    found = read("largest curvature", 0.0, record("curvature", rows, {"largest": 0.3, "sharp": 0.48}))
    assert (found.value, found.n) == (0.3, 2)
    assert (found.low, found.high) == pytest.approx((0.2804, 0.3196))


def test_the_claim_of_theorem_2():
    rows = [{"gamma": 25.0, "claimed": 0.84, "loss": 1.0}]
    found = record("counterexample", rows, {})
    assert read("claimed bound", 25.0, found).value == 0.84
    assert read("true loss", 25.0, found).value == 1.0
    assert read("true loss", 1.5, shift_record([1, 4] * 200)).value == 0.125


FAULTY = {"source": "EOT", "fault": "x must be y", "absent": False}
ABSENT = {"source": "EOT", "fault": "x must be there", "absent": True}


def ours(value, direction="nearest", low=None, high=None):
    low, high = (value if bound is None else bound for bound in (low, high))
    found = {"source": "EOT", "value": value, "low": low, "high": high, "n": 40}
    found |= {"direction": direction, "bound": direction != "nearest"}
    return {**found, "record": "runs/a.jsonl", "warnings": ["Weak."] if value == 0.65 else []}


DOCUMENT = {
    "name": "table2",
    "title": "accuracy",
    "keys": ["method"],
    "sources": ["EOT"],
    "flat": False,
    "notes": ["Surrogate: digits."],
    "lines": [
        {
            "keys": ["NAL"],
            "cells": [
                {
                    "column": "robust",
                    "reported": 0.6693,
                    "ours": [ours(0.65, low=0.48321, high=0.79376)],
                    "notes": ["Odd."],
                },
                {
                    "column": "natural",
                    "reported": None,
                    "ours": [FAULTY],
                    "notes": [],
                },
            ],
        },
        {
            "keys": ["PGD"],
            "cells": [
                {"column": "robust", "reported": None, "ours": [ours(0.123449, direction="down")], "notes": []},
                {"column": "natural", "reported": None, "ours": [ours(0.123411, direction="up")], "notes": []},
            ],
        },
    ],
}


def test_markdown_shows_reported_and_ours_with_interval_marks_and_notes():
    lines = markdown(DOCUMENT).splitlines()
    assert lines[0] == "# table2: accuracy"
    assert lines[2:8] == [
        "| method |  | robust | natural | n |",
        "| --- | --- | ---: | ---: | ---: |",
        "| NAL | reported | 0.6693 [1] |  |  |",
        "|  | EOT | 0.6500 (0.483 to 0.794) [2] | missing [3] | 40 |",
        "| PGD | EOT | 0.1234 | 0.1235 | 40 |",
        "",
    ]
    assert lines[-4:] == ["- Surrogate: digits.", "- [1] Odd.", "- [2] Weak.", "- [3] x must be y"]


def test_what_is_proved_of_single_images_is_rounded_down_and_keeps_its_interval():
    """A share of certified images and an average radius are estimates of what holds for others, of proved radii."""
    rows = [{"index": i, "label": 0, "prediction": 0, "radius": 0.25 if i < 2 else 0.0} for i in range(3)]
    certificate = record("certify", rows, {"certified_accuracy": [{"radius": 0.25, "accuracy": 2 / 3}]})
    shown = {}
    for what in ("certified accuracy", "average certified radius"):
        found = asdict(read(what, 0.25, certificate))
        cell = {"column": what, "reported": None, "ours": [{"source": "ours", **found, "warnings": []}], "notes": []}
        document = {**DOCUMENT, "sources": ["ours"], "lines": [{"keys": ["NAL"], "cells": [cell]}]}
        shown[what] = markdown(document).splitlines()[4]
    assert "| 0.6666 (0.094 to 0.992) |" in shown["certified accuracy"]
    assert "| 0.1666 (0.003 to 0.33" in shown["average certified radius"]


def test_csv_holds_every_number_unrounded():
    rows = list(csv.DictReader(io.StringIO(comma_separated(DOCUMENT))))
    assert len(rows) == 4
    assert rows[0]["reported"] == "0.6693"
    assert (rows[0]["value"], rows[0]["low"], rows[0]["record"]) == ("0.65", "0.48321", "runs/a.jsonl")
    assert (rows[1]["value"], rows[1]["fault"]) == ("", "x must be y")
    assert rows[2]["value"] == "0.123449"


@pytest.mark.parametrize(
    ("what", "kind", "rows", "summary"),
    [
        ("matched eps", "match", [{"squared_distance": 4.0}], {"eps": 1.9}),
        ("largest curvature", "curvature", [{"curvature": 0.3, "standard_error": 0.01}], {"largest": 0.4}),
        ("true loss", "certify-shift", [{"index": 0, "errors": 1, "draws": 4}], {"accuracy_under_noise": 0.8}),
        (
            "certified error under shift",
            "certify-shift",
            [{"index": 0, "errors": 1, "draws": 4}],
            {"accuracy_under_noise": 0.8},
        ),
    ],
)
def test_every_summary_is_held_against_its_rows(what, kind, rows, summary):
    with pytest.raises(ValueError, match="must have the summary that its rows give"):
        read(what, 0.0, record(kind, rows, summary))


def test_faults_are_told_once():
    assert faults([DOCUMENT, DOCUMENT]) == ["x must be y"]
