"""From records to numbers, and from numbers to Markdown and CSV."""

import csv
import io
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from reproduction.filling import Question, answers, faults
from reproduction.readings import number, trace
from reproduction.specs import Reading
from reproduction.spent import cost
from reproduction.writing import comma_separated, markdown
from rhobust.records import Record


def record(kind, rows, summary, settings=None):
    return Record(Path("out/run/record.jsonl"), kind, settings or {}, rows, summary)


def read(what, at, found, how=number):
    return how(Reading(None, what, at), found)


def attack(broken, told=None):
    rows = [{"index": i, "radius": at, "broken": b} for at, column in broken.items() for i, b in enumerate(column)]
    accuracy = {at: sum(not b for b in column) / len(column) for at, column in broken.items()}
    curve = [{"radius": at, "accuracy": value} for at, value in (told or accuracy).items()]
    return record("attack", rows, {"robust_accuracy": curve})


def test_an_attack_is_counted_from_its_rows():
    found = attack({0.0: [False] * 8 + [True] * 2, 0.5: [False] * 5 + [True] * 5})
    robust, error = read("robust", 0.5, found), read("error", 0.5, found)
    assert (robust.value, robust.n, robust.way) == (0.5, 10, "nearest")
    assert (robust.low, robust.high) == pytest.approx((0.1870860284, 0.8129139716))
    assert (error.low, error.high) == pytest.approx((1 - robust.high, 1 - robust.low))
    curve = read("robust", 0.0, found, trace)
    assert (curve.x, curve.y) == ((0.0, 0.5), (0.8, 0.5))
    point = read("tradeoff", 0.5, found, trace)
    assert (point.x, point.y) == ((0.8,), (0.5,))


def test_a_number_carries_the_warnings_and_contradictions_of_its_record():
    question, found = Question(number, Reading(None, "robust", 0.0)), attack({0.0: [False]})
    found.summary.update(warnings=["Weak."], contradictions=["Unsound."])
    answer = answers([question], found, Path("out"))[question]
    assert (answer["value"], answer["record"]) == (1.0, "run/record.jsonl")
    assert answer["warnings"] == ["Weak.", "Unsound."]


def test_the_rate_of_a_training_leaves_out_the_epoch_that_compiles(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"epochs": 4, "seed": 0}))
    environment = {"device_name": "x", "torch": "2", "command": "rhobust train"}
    (tmp_path / "environment.json").write_text(json.dumps(environment))
    rows = [{"seconds": 1.0 + rate, "images_per_second": rate} for rate in (1.0, 8.0, 6.0, 7.0)]
    for count, rate in ((1, 1.0), (2, 8.0), (4, 7.0)):
        found = cost(None, Record(tmp_path / "metrics.jsonl", "training", {}, rows[:count], {}))
        assert (found.rate, found.seconds) == (rate, sum(row["seconds"] for row in rows[:count]))


@pytest.mark.parametrize("told", [{0.0: 0.9}, {0.0: 0.8, 0.5: 0.8}, {}])
def test_a_summary_that_disagrees_with_its_rows_is_refused(told):
    found = attack({0.0: [False] * 8 + [True] * 2})
    found = record("attack", found.rows, {"robust_accuracy": [{"radius": k, "accuracy": v} for k, v in told.items()]})
    with pytest.raises(ValueError, match=r"record\.jsonl must have the summary that its rows give, but the acc"):
        read("robust", 0.0, found)


def test_certified_accuracy_counts_right_answers_up_to_the_radius():
    rows = [
        {"prediction": 1, "label": 1, "radius": 0.2401},
        {"prediction": 2, "label": 1, "radius": 0.4},
        {"prediction": None, "label": 1, "radius": 0.0},
        {"prediction": 1, "label": 1, "radius": 0.1},
    ]
    summary = {"certified_accuracy": [{"radius": 0.0, "accuracy": 0.5}, {"radius": 0.2, "accuracy": 0.25}]}
    curve = read(
        "certified_accuracy", 0.0, record("certify", rows, summary, {"sigma": 0.1, "n": 1000, "alpha": 1e-3}), trace
    )
    at = dict(zip((round(x, 6) for x in curve.x), curve.y, strict=True))
    assert (at[0.0], at[0.1], at[0.105], at[0.24], at[0.245], at[0.4]) == (0.5, 0.5, 0.25, 0.25, 0.0, 0.0)
    high = dict(zip(at, curve.high, strict=True))
    assert high[0.245] > 0.5, "4 images say little about a share"
    assert high[0.25] == high[0.4] == 0, "1000 draws prove at most 2.462 sigma, whatever the image"


def test_certificates_are_read_at_a_radius_on_average_and_for_a_shift():
    rows = [
        {"prediction": 1, "label": 1, "radius": 0.5},
        {"prediction": 2, "label": 1, "radius": 0.4},
        {"prediction": 1, "label": 1, "radius": 0.25},
        {"prediction": None, "label": 1, "radius": 0.0},
    ]
    found = record("certify", rows, {"certified_accuracy": [{"radius": 0.25, "accuracy": 0.5}]})
    assert (read("certified_at", 0.25, found).value, read("certified_at", 0.3, found).value) == (0.5, 0.25)
    assert read("average_radius", 0.0, found).value == pytest.approx(0.1875)
    shift = record("certify-shift", [{}] * 3, {"curve": [{"eps": 0.1, "certified_accuracy": 0.25}]})
    bound = read("accuracy_at_least", 0.1, shift)
    assert (bound.value, bound.low, bound.way) == (0.25, 0.25, "down")


def test_a_certified_error_is_rounded_up_and_a_distance_has_its_interval():
    rows = [{"errors": 1, "draws": 4}, {"errors": 0, "draws": 4}]
    summary = {"accuracy_under_noise": 0.875, "curve": [{"eps": 0.1, "certified_accuracy": 0.25}]}
    found = record("certify-shift", rows, summary)
    bound = read("error_at_most", 0.1, found)
    assert (bound.value, bound.way) == (0.75, "up")
    rows = [{"squared_distance": value} for value in (1.0, 1.0, 4.0, 4.0)]
    distance = read("distance", 0.0, record("match", rows, {"eps": 2.5**0.5}))
    assert distance.value == pytest.approx(2.5**0.5)
    margin = 1.96 * (3 / 4) ** 0.5
    assert (distance.low**2, distance.high**2) == pytest.approx((2.5 - margin, 2.5 + margin))


def test_the_largest_curvature_has_the_interval_of_its_image():
    rows = [{"curvature": -0.3, "standard_error": 0.01}, {"curvature": 0.2, "standard_error": 0.5}]
    found = read("curvature", 0.0, record("curvature", rows, {"largest": 0.3, "sharp": 0.48}))
    assert (found.value, found.n) == (0.3, 2)
    assert (found.low, found.high) == pytest.approx((0.2804, 0.3196))


def test_the_claim_of_theorem_2():
    rows = [{"gamma": 25.0, "claimed": 0.84, "loss": 1.0}]
    found = record("counterexample", rows, {})
    assert read("claimed", 25.0, found).value == 0.84
    assert read("true_loss", 25.0, found).value == 1.0
    rows = [{"errors": 1, "draws": 4}, {"errors": 0, "draws": 4}]
    votes = record("certify-shift", rows, {"accuracy_under_noise": 0.875})
    assert read("true_loss", 1.5, votes).value == 0.125


FAULTY = {"source": "EOT", "fault": "x must be y", "absent": False}
ABSENT = {"source": "EOT", "fault": "x must be there", "absent": True}


def ours(value, way="nearest", low=None, high=None):
    low, high = (value if bound is None else bound for bound in (low, high))
    found = {"source": "EOT", "value": value, "low": low, "high": high, "n": 40, "way": way, "bound": way != "nearest"}
    return {**found, "record": "runs/a.jsonl", "warnings": ["Weak."] if value == 0.65 else []}


DOCUMENT = {
    "name": "table2",
    "title": "accuracy",
    "keys": ["method"],
    "sources": ["EOT"],
    "flat": False,
    "notes": ["For MNIST stands digits."],
    "lines": [
        {
            "keys": ["NAL"],
            "cells": [
                {
                    "column": "robust",
                    "printed": 0.6693,
                    "ours": [ours(0.65, low=0.48321, high=0.79376)],
                    "notes": ["Odd."],
                },
                {
                    "column": "natural",
                    "printed": None,
                    "ours": [FAULTY],
                    "notes": [],
                },
            ],
        },
        {
            "keys": ["PGD"],
            "cells": [
                {"column": "robust", "printed": None, "ours": [ours(0.123449, way="down")], "notes": []},
                {"column": "natural", "printed": None, "ours": [ours(0.123411, way="up")], "notes": []},
            ],
        },
    ],
}


def test_markdown_shows_printed_and_ours_with_interval_marks_and_notes():
    lines = markdown(DOCUMENT).splitlines()
    assert lines[0] == "# table2: accuracy"
    assert lines[2:8] == [
        "| method |  | robust | natural | n |",
        "| --- | --- | ---: | ---: | ---: |",
        "| NAL | printed | 0.6693 [1] |  |  |",
        "|  | EOT | 0.6500 (0.483 to 0.794) [2] | missing [3] | 40 |",
        "| PGD | EOT | 0.1234 | 0.1235 | 40 |",
        "",
    ]
    assert lines[-4:] == ["- For MNIST stands digits.", "- [1] Odd.", "- [2] Weak.", "- [3] x must be y"]


def test_what_is_proved_of_single_images_is_rounded_down_and_keeps_its_interval():
    """A share of certified images and an average radius are estimates of what holds for others, of proved radii."""
    rows = [{"index": i, "label": 0, "prediction": 0, "radius": 0.25 if i < 2 else 0.0} for i in range(3)]
    certificate = record("certify", rows, {"certified_accuracy": [{"radius": 0.25, "accuracy": 2 / 3}]})
    shown = {}
    for what in ("certified_at", "average_radius"):
        found = asdict(read(what, 0.25, certificate))
        cell = {"column": what, "printed": None, "ours": [{"source": "ours", **found, "warnings": []}], "notes": []}
        document = {**DOCUMENT, "sources": ["ours"], "lines": [{"keys": ["NAL"], "cells": [cell]}]}
        shown[what] = markdown(document).splitlines()[4]
    assert "| 0.6666 (0.094 to 0.992) |" in shown["certified_at"]
    assert "| 0.1666 (0.003 to 0.33" in shown["average_radius"]


def test_csv_holds_every_number_unrounded():
    rows = list(csv.DictReader(io.StringIO(comma_separated(DOCUMENT))))
    assert len(rows) == 4
    assert rows[0]["printed"] == "0.6693"
    assert (rows[0]["value"], rows[0]["low"], rows[0]["record"]) == ("0.65", "0.48321", "runs/a.jsonl")
    assert (rows[1]["value"], rows[1]["fault"]) == ("", "x must be y")
    assert rows[2]["value"] == "0.123449"


@pytest.mark.parametrize(
    ("what", "kind", "rows", "summary"),
    [
        ("distance", "match", [{"squared_distance": 4.0}], {"eps": 1.9}),
        ("curvature", "curvature", [{"curvature": 0.3, "standard_error": 0.01}], {"largest": 0.4}),
        ("true_loss", "certify-shift", [{"errors": 1, "draws": 4}], {"accuracy_under_noise": 0.8}),
        ("error_at_most", "certify-shift", [{"errors": 1, "draws": 4}], {"accuracy_under_noise": 0.8}),
    ],
)
def test_every_summary_is_held_against_its_rows(what, kind, rows, summary):
    with pytest.raises(ValueError, match="must have the summary that its rows give"):
        read(what, 0.0, record(kind, rows, summary))


def test_faults_are_told_once():
    assert faults([DOCUMENT, DOCUMENT]) == ["x must be y"]
