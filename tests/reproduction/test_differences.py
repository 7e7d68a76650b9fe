"""Tables of differences: what a record says of each image, and what is compared with what."""

import pytest

from reproduction.certified import RIVAL, rows
from reproduction.differences import difference_lines, outcomes
from reproduction.plan import plan
from reproduction.scales import SCALES
from reproduction.specs import Differences, Pair, Reading
from rhobust.records import Record
from rhobust.stats import mean_difference, share_difference


def reading(what="certified_at", at=0.0, job="a"):
    return Reading(job, what, at)


def certificates(tmp_path):
    radii = {4: 0.5, 0: 0.25, 2: 1.0}
    found = [
        {"index": index, "label": 1, "prediction": 0 if index == 2 else 1, "radius": radius}
        for index, radius in radii.items()
    ]
    curve = [{"radius": 0.0, "accuracy": 2 / 3}]
    return Record(tmp_path / "c.jsonl", "certify", {}, found, {"certified_accuracy": curve})


def test_what_certificates_say_of_each_image(tmp_path):
    record = certificates(tmp_path)
    assert outcomes(reading(at=0.25), record).images == (0, 2, 4)
    assert outcomes(reading(at=0.25), record).values == (1.0, 0.0, 1.0)
    assert outcomes(reading(at=0.3), record).values == (0.0, 0.0, 1.0)
    assert outcomes(reading("average_radius"), record).values == (0.25, 0.0, 0.5), "a wrong answer has radius 0"
    record.summary["certified_accuracy"][0]["accuracy"] = 1.0
    with pytest.raises(ValueError, match="the summary that its rows give"):
        outcomes(reading(), record)


def test_what_an_attack_says_of_each_image(tmp_path):
    broken = {(7, 0.0): False, (3, 0.0): False, (7, 0.5): True, (3, 0.5): False}
    found = [{"index": index, "radius": radius, "broken": lost} for (index, radius), lost in broken.items()]
    curve = [{"radius": 0.0, "accuracy": 1.0}, {"radius": 0.5, "accuracy": 0.5}]
    record = Record(tmp_path / "a.jsonl", "attack", {}, found, {"robust_accuracy": curve})
    assert outcomes(reading("robust", 0.5), record).images == (3, 7)
    assert outcomes(reading("robust", 0.5), record).values == (1.0, 0.0)


def told(*values, start=0, record="ours"):
    images = list(range(start, start + len(values)))
    return {"images": images, "values": list(values), "record": record, "warnings": [f"{record}: careful", "both"]}


def compared(ours, theirs, what="certified_at"):
    pair = Pair("0.5", reading(what, 0.5, "a"), reading(what, 0.5, "b"))
    spec = Differences("apart", "a table", ("method",), ((("NAL",), (pair,)),))
    assert spec.readings == (pair.ours, pair.theirs)
    (line,) = difference_lines(spec, {pair.ours: ours, pair.theirs: theirs})
    assert line["keys"] == ["NAL"]
    (cell,) = line["cells"]
    assert (cell["column"], cell["printed"]) == ("0.5", None)
    (number,) = cell["ours"]
    return number


def test_a_line_says_how_far_ours_lies_above():
    ours, theirs = (1.0, 1.0, 0.0, 1.0), (1.0, 0.0, 0.0, 0.0)
    number = compared(told(*ours), told(*theirs, record="theirs"))
    apart = share_difference(ours, theirs)
    assert (number["value"], number["low"], number["high"]) == (0.5, apart.low, apart.high)
    assert (number["n"], number["bound"], number["record"]) == (4, False, "ours theirs")
    assert number["warnings"] == ["ours: careful", "both", "theirs: careful"]
    number = compared(told(0.5, 0.75), told(0.25, 0.25), "average_radius")
    apart = mean_difference((0.5, 0.75), (0.25, 0.25))
    assert (number["value"], number["low"], number["high"]) == (0.375, apart.low, apart.high)


def test_what_cannot_be_compared_says_why():
    absent = {"fault": "not there", "absent": True}
    assert compared(absent, told(1.0)) == {"source": "ours", **absent}
    assert compared(told(1.0), absent) == {"source": "ours", **absent}
    assert "the same images" in compared(told(1.0, 0.0), told(1.0, 0.0, start=1))["fault"]
    assert "two images at least" in compared(told(0.5), told(0.25), "average_radius")["fault"]


def test_every_certified_row_is_compared_with_smoothadv_at_its_noise():
    scale = SCALES["gpu"]
    table = plan(["table-ahead"], scale).specs[0]
    named = rows(scale)
    assert len(table.lines) == sum(map(len, named.values())) - len(named)
    for (name, sigma), pairs in table.lines:
        own = named[float(sigma)]
        assert not {pair.ours.job.run for pair in pairs} - {own[name]}
        (rival,) = {pair.theirs.job.run for pair in pairs}
        assert rival == next(run for row, run in own.items() if row.startswith(RIVAL))
        assert all((pair.ours.what, pair.ours.at) == (pair.theirs.what, pair.theirs.at) for pair in pairs)
        assert pairs[0].column == "ACR"
    assert {job.run.method.eps for _, pairs in table.lines for job in (pairs[0].theirs.job,)} == {0.92, 0.5, 1.0}
    assert set(table.jobs) < set(plan(["table-certified"], scale).jobs), "it rests on nothing of its own"
