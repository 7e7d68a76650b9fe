"""Networks on the same images: paired differences, and methods at equal natural accuracy."""

import numpy as np
import pytest

from reproduction.documents import Question, fill
from reproduction.metrics import Reader, matched, per_image
from reproduction.our_tables import BASELINE, certified_runs
from reproduction.runner import plan
from reproduction.scales import SCALES
from reproduction.specs import Differences, Job, Metric, Pair, ParetoTable
from rhobust.methods import ERM
from rhobust.records import Record
from rhobust.stats import mean_difference, share_difference
from rhobust.training import TrainConfig


def outcomes(natural, robust, n=1000):
    """The first images are right, the first of these stand."""
    place = np.arange(n) / n
    return np.stack([place < natural, place < robust]).astype(float)


def test_a_family_is_read_off_between_its_members():
    family = [outcomes(0.9, 0.3), outcomes(0.7, 0.5), outcomes(0.8, 0.45)]
    value, difference = matched(family, outcomes(0.75, 0.4))
    assert value == pytest.approx(0.475), "halfway between those at 0.7 and 0.8"
    assert difference.value == pytest.approx(0.075)
    assert difference.low < difference.value < difference.high
    assert matched(family, outcomes(0.9, 0.3))[1].value == pytest.approx(0.0), "a member matches itself"


def test_the_interval_is_that_of_the_same_images():
    """Methods that fail on the same images differ by less than their own intervals suggest."""
    rng = np.random.default_rng(1)
    natural = np.ones(1000)
    ours = rng.random(1000) < 0.5
    theirs = ours & (rng.random(1000) < 0.9)
    family = [np.stack([natural, ours]).astype(float)] * 2
    difference = matched(family, np.stack([natural, theirs]).astype(float))[1]
    lost = ours.mean() - theirs.mean()
    margin = 1.96 * np.sqrt(lost * (1 - lost) / 1000)
    assert difference.value == pytest.approx(lost)
    assert difference.low == pytest.approx(lost - margin, abs=0.003)
    assert difference.high == pytest.approx(lost + margin, abs=0.003)


def test_resamples_are_matched_anew():
    """With the natural accuracy of a resample the family's accuracy moves, here one for one."""
    n, rng = 1000, np.random.default_rng(2)
    right = (rng.random(n) < 0.5).astype(float)
    family = [np.stack([np.zeros(n), np.zeros(n)]), np.stack([np.ones(n), np.ones(n)])]
    value, difference = matched(family, np.stack([right, np.zeros(n)]))
    assert value == difference.value == pytest.approx(right.mean())
    assert difference.high - difference.low == pytest.approx(2 * 1.96 * 0.5 / np.sqrt(n), rel=0.05)


def test_a_method_with_more_natural_accuracy_than_the_family_is_not_compared():
    with pytest.raises(ValueError, match=r"must be <= 0\.9, the family's highest, to be compared with it, got 0\.91"):
        matched([outcomes(0.7, 0.5), outcomes(0.9, 0.3)], outcomes(0.91, 0.4))


def test_natural_accuracy_can_be_given_away():
    value, difference = matched([outcomes(0.9, 0.3), outcomes(0.7, 0.5)], outcomes(0.6, 0.4))
    assert value == pytest.approx(0.5), "that of the member with the least natural accuracy"
    assert difference.value == pytest.approx(0.1)
    assert difference.low < 0.1 < difference.high


def attack_record(tmp_path, broken):
    rows = [
        {"index": index, "radius": radius, "broken": radius >= breaks}
        for radius in (0.0, 0.5)
        for index, breaks in broken.items()
    ]
    curve = [
        {"radius": radius, "accuracy": np.mean([breaks > radius for breaks in broken.values()]).item()}
        for radius in (0.0, 0.5)
    ]
    return Record(tmp_path / "attack.jsonl", "attack", {}, rows, {"robust_accuracy": curve})


def test_what_stands_is_told_image_by_image(tmp_path):
    record = attack_record(tmp_path, {7: 1.0, 3: 0.5, 5: 0.0})
    told = per_image(metric(), Reader(record))
    assert told.images == (3, 5, 7)
    assert told.values == {0.0: (1.0, 0.0, 1.0), 0.5: (0.0, 0.0, 1.0)}
    record.summary["robust_accuracy"][0]["accuracy"] = 1.0
    with pytest.raises(ValueError, match="the summary that its rows give"):
        per_image(metric(), Reader(record))


def metric(seed=0, quantity="robust accuracy", at=0.0):
    return Metric(Job(TrainConfig(ERM(), data="digits", model="cnn-small", seed=seed)), quantity, at)


def told(natural, robust, n=20):
    base, under = outcomes(natural, robust, n).tolist()
    return {"images": list(range(n)), "values": {0.0: base, 0.5: under}, "record": "r", "warnings": []}


def pareto():
    members, baselines = (("a", metric(0)), ("b", metric(1))), (("PGD", metric(2)), ("TRADES", metric(3)))
    return ParetoTable("pareto", "a front", "NAL", members, baselines, (0.5,))


def lines(spec, found):
    return fill(spec, {Question(per_image, one): answer for one, answer in found.items()})["lines"]


def test_a_pareto_table_has_a_line_per_baseline_and_says_what_is_missing():
    spec = pareto()
    found = dict(zip(spec.metrics, (told(0.8, 0.5), told(0.95, 0.2), told(0.9, 0.4), told(0.7, 0.6)), strict=True))
    first, second = lines(spec, found)
    assert [cell["column"] for cell in first["cells"]] == ["natural", "at 0.5", "NAL, at 0.5", "difference at 0.5"]
    assert [cell["ours"][0]["value"] for cell in first["cells"]] == pytest.approx([0.8, 0.5, 0.5, 0.0])
    numbers = [cell["ours"][0] for cell in second["cells"]]
    assert [number.get("value") for number in numbers] == [0.95, 0.2, None, None]
    assert "must be <= 0.9, the family's highest" in numbers[2]["fault"]
    absent = {"fault": "not there", "absent": True}
    first, second = lines(spec, found | {spec.baselines[0][1]: absent})
    assert all(cell["ours"][0]["absent"] for cell in first["cells"])
    first, _ = lines(spec, found | {spec.members[1][1]: absent})
    assert [cell["ours"][0].get("absent", False) for cell in first["cells"]] == [False, False, True, True]
    others = {**told(0.7, 0.6), "images": list(range(1, 21))}
    first, _ = lines(spec, found | {spec.members[1][1]: others})
    assert "the same images" in first["cells"][3]["ours"][0]["fault"]


def certificates(tmp_path):
    radii = {4: 0.5, 0: 0.25, 2: 1.0}
    found = [
        {"index": index, "label": 1, "prediction": 0 if index == 2 else 1, "radius": radius}
        for index, radius in radii.items()
    ]
    curve = [{"radius": 0.0, "accuracy": 2 / 3}]
    return Record(tmp_path / "c.tsv", "certify", {}, found, {"certified_accuracy": curve})


def test_what_certificates_say_of_each_image(tmp_path):
    record = certificates(tmp_path)

    def values(quantity, at=0.0):
        found = per_image(metric(0, quantity, at), Reader(record))
        assert found.images == (0, 2, 4)
        return found.values[at]

    assert values("certified accuracy", 0.25) == (1.0, 0.0, 1.0)
    assert values("certified accuracy", 0.3) == (0.0, 0.0, 1.0)
    assert values("average certified radius") == (0.25, 0.0, 0.5), "a wrong answer has radius 0"
    record.summary["certified_accuracy"][0]["accuracy"] = 1.0
    with pytest.raises(ValueError, match="the summary that its rows give"):
        values("certified accuracy")


def image_values(*values, start=0, record="ours"):
    images = list(range(start, start + len(values)))
    return {"images": images, "values": {0.5: values}, "record": record, "warnings": [f"{record}: careful", "both"]}


def compared(ours, theirs, quantity="certified accuracy"):
    pair = Pair("0.5", metric(0, quantity, 0.5), metric(1, quantity, 0.5))
    spec = Differences("apart", "a table", ("method",), ((("NAL",), (pair,)),))
    assert spec.metrics == (pair.ours, pair.theirs)
    (line,) = lines(spec, {pair.ours: ours, pair.theirs: theirs})
    assert line["keys"] == ["NAL"]
    (cell,) = line["cells"]
    assert (cell["column"], cell["reported"]) == ("0.5", None)
    (number,) = cell["ours"]
    return number


def test_a_line_says_how_far_ours_is_above():
    ours, theirs = (1.0, 1.0, 0.0, 1.0), (1.0, 0.0, 0.0, 0.0)
    number = compared(image_values(*ours), image_values(*theirs, record="theirs"))
    apart = share_difference(ours, theirs)
    assert (number["value"], number["low"], number["high"]) == (0.5, apart.low, apart.high)
    assert (number["n"], number["bound"], number["record"]) == (4, False, "ours theirs")
    assert number["warnings"] == ["ours: careful", "both", "theirs: careful"]
    number = compared(image_values(0.5, 0.75), image_values(0.25, 0.25), "average certified radius")
    apart = mean_difference((0.5, 0.75), (0.25, 0.25))
    assert (number["value"], number["low"], number["high"]) == (0.375, apart.low, apart.high)


def test_what_cannot_be_compared_says_why():
    absent = {"fault": "not there", "absent": True}
    assert compared(absent, image_values(1.0)) == {"source": "ours", **absent}
    assert compared(image_values(1.0), absent) == {"source": "ours", **absent}
    assert "the same images" in compared(image_values(1.0, 0.0), image_values(1.0, 0.0, start=1))["fault"]
    assert "two images at least" in compared(image_values(0.5), image_values(0.25), "average certified radius")["fault"]


def test_every_certified_row_is_compared_with_smoothadv_at_its_noise():
    scale = SCALES["gpu"]
    table = plan(["table-certified-pairs"], scale).specs[0]
    named = certified_runs(scale)
    assert len(table.lines) == sum(map(len, named.values())) - len(named)
    for (name, sigma), pairs in table.lines:
        own = named[float(sigma)]
        assert not {pair.ours.job.run for pair in pairs} - {own[name]}
        (baseline,) = {pair.theirs.job.run for pair in pairs}
        assert baseline == next(run for row, run in own.items() if row.startswith(BASELINE))
        assert all((pair.ours.quantity, pair.ours.at) == (pair.theirs.quantity, pair.theirs.at) for pair in pairs)
        assert pairs[0].column == "ACR"
    assert {job.run.method.eps for _, pairs in table.lines for job in (pairs[0].theirs.job,)} == {0.92, 0.5, 1.0}
    assert set(table.jobs) < set(plan(["table-certified"], scale).jobs), "it needs nothing of its own"
