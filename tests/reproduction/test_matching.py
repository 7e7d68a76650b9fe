"""Methods at equal natural accuracy: the line between two members, its interval, and what is refused."""

import numpy as np
import pytest

from reproduction.jobs import Attack
from reproduction.matching import front_lines, matched, standing
from reproduction.specs import Front, Reading
from rhobust.attacks import PGD
from rhobust.methods import ERM
from rhobust.records import Record
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
    told = standing(reading(), record)
    assert told.images == (3, 5, 7)
    assert told.standing == {0.0: (True, False, True), 0.5: (False, False, True)}
    record.summary["robust_accuracy"][0]["accuracy"] = 1.0
    with pytest.raises(ValueError, match="the summary that its rows give"):
        standing(reading(), record)


def reading(seed=0):
    job = Attack(
        TrainConfig(ERM(), data="digits", model="cnn-small", seed=seed),
        PGD(),
        (0.0, 0.5),
        "base",
        None,
        1,
        None,
        probe=False,
    )
    return Reading(job, "standing")


def told(natural, robust, n=20):
    base, under = outcomes(natural, robust, n).astype(bool).tolist()
    return {"images": list(range(n)), "standing": {0.0: base, 0.5: under}, "record": "r", "warnings": []}


def front():
    members, rivals = (("a", reading(0)), ("b", reading(1))), (("PGD", reading(2)), ("TRADES", reading(3)))
    return Front("front", "a front", "NAL", members, rivals, (0.5,))


def test_a_front_has_a_line_for_each_rival_and_says_what_is_missing():
    spec = front()
    found = dict(zip(spec.readings, (told(0.8, 0.5), told(0.95, 0.2), told(0.9, 0.4), told(0.7, 0.6)), strict=True))
    first, second = front_lines(spec, found)
    assert [cell["column"] for cell in first["cells"]] == ["natural", "at 0.5", "NAL, at 0.5", "difference at 0.5"]
    assert [cell["ours"][0]["value"] for cell in first["cells"]] == pytest.approx([0.8, 0.5, 0.5, 0.0])
    beside = [cell["ours"][0] for cell in second["cells"]]
    assert [number.get("value") for number in beside] == [0.95, 0.2, None, None]
    assert "must be <= 0.9, the family's highest" in beside[2]["fault"]
    absent = {"fault": "not there", "absent": True}
    first, second = front_lines(spec, found | {spec.rivals[0][1]: absent})
    assert all(cell["ours"][0]["absent"] for cell in first["cells"])
    first, _ = front_lines(spec, found | {spec.members[1][1]: absent})
    assert [cell["ours"][0].get("absent", False) for cell in first["cells"]] == [False, False, True, True]
    others = {**told(0.7, 0.6), "images": list(range(1, 21))}
    first, _ = front_lines(spec, found | {spec.members[1][1]: others})
    assert "the same images" in first["cells"][3]["ours"][0]["fault"]
