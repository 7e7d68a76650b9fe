"""Records compared image by image: what is paired, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from rhobust.measurements import AVERAGE_RADIUS, CERTIFIED, ROBUST, difference, same_classifier
from rhobust.records import Record
from rhobust.stats import mean_difference, share_difference


def certificates(*radii, wrong=(), label=3, **settings):
    rows = [
        {"index": 10 * place, "label": label, "prediction": label + (place in wrong), "radius": radius}
        for place, radius in enumerate(radii)
    ]
    return Record(Path("certify.jsonl"), "certify", settings, rows, None)


def test_certificates_are_compared_image_by_image():
    ours, theirs = certificates(0.5, 0.25, 0.75, 0.5, wrong=(3,)), certificates(0.25, 0.25, 0.75, 0.0)
    theirs.rows[3]["prediction"] = None
    theirs.rows.reverse()
    assert difference(ours, theirs, CERTIFIED, 0.0) == share_difference([1, 1, 1, 0], [1, 1, 1, 0])
    assert difference(ours, theirs, CERTIFIED, 0.5) == share_difference([1, 0, 1, 0], [0, 0, 1, 0])
    assert difference(ours, theirs, AVERAGE_RADIUS) == mean_difference([0.5, 0.25, 0.75, 0], [0.25, 0.25, 0.75, 0])


def test_certificates_that_cannot_be_compared_are_refused():
    ours = certificates(0.5, 0.25, 0.75, 0.5)
    twice = certificates(0.5, 0.25, 0.75, 0.5)
    twice.rows[1]["index"] = 0
    with pytest.raises(ValueError, match=r"must list an image once .* some are listed twice"):
        difference(twice, twice, CERTIFIED, 0.0)
    for others in (certificates(0.5, 0.25, 0.75), certificates(0.5, 0.25, 0.75, 0.5, label=4)):
        with pytest.raises(ValueError, match="must be of the same images"):
            difference(ours, others, CERTIFIED, 0.0)
    with pytest.raises(ValueError, match="a record of certify is not compared with one of attack"):
        difference(ours, attack(False), CERTIFIED, 0.0)
    with pytest.raises(ValueError, match=r"must have the robust accuracy of images at 0\.5, but it does not"):
        difference(ours, ours, ROBUST, 0.5)


@pytest.mark.parametrize(
    ("key", "called"),
    [("data_fingerprint", "images"), ("split", "split"), ("way", "procedure"), ("n", "n"), ("alpha", "alpha")],
)
def test_certificates_made_in_another_way_are_refused(key, called):
    settings = {"data_fingerprint": "f00d", "split": "test", "way": "cohen", "n": 1000, "alpha": 0.001}
    ours = certificates(0.5, **settings)
    with pytest.raises(ValueError, match=f"must have the same {called} to be compared"):
        difference(ours, certificates(0.5, **settings | {key: "other"}), CERTIFIED, 0.0)
    del settings[key]
    assert difference(ours, certificates(0.5, **settings), CERTIFIED, 0.0).value == 0, "unsaid is no difference"


def test_a_test_against_each_other_class_is_not_compared_with_one_that_proves_less():
    alike = {"data_fingerprint": "f00d", "split": "test", "way": "grid", "n": 1000, "alpha": 0.001}
    pairs, alone, old = (
        certificates(0.5, **alike, **one) for one in ({"stopping": "pairwise"}, {"stopping": "boundary"}, {})
    )
    for other in (alone, old):
        with pytest.raises(ValueError, match=r"must have the same stopping \(pairwise or not\) to be compared"):
            difference(pairs, other, CERTIFIED, 0.0)
    assert difference(alone, old, CERTIFIED, 0.0).value == 0, "boundaries and e-values decide nearly alike"
    assert difference(pairs, certificates(0.5), CERTIFIED, 0.0).value == 0, "a table does not say how it was made"


def attack(*broken, radius=0.5, labels=3, **settings):
    rows = [
        {"index": index, "label": index % labels, "radius": radius, "broken": lost} for index, lost in enumerate(broken)
    ]
    return Record(Path("attack.jsonl"), "attack", {"radii": [radius], **settings}, rows, None)


def test_attacks_are_compared_image_by_image():
    ours, theirs = attack(True, False, True, False), attack(True, True, True, False)
    theirs.rows.reverse()
    assert difference(ours, theirs, ROBUST, 0.5) == share_difference([0, 1, 0, 1], [0, 0, 0, 1])


def test_attacks_that_cannot_be_compared_are_refused():
    ours = attack(True, False, True)
    with pytest.raises(ValueError, match=r"must have the robust accuracy of images at 0\.25"):
        difference(ours, attack(True, radius=0.25), ROBUST, 0.25)
    for others in (attack(True, False), attack(True, False, True, labels=2)):
        with pytest.raises(ValueError, match="must be of the same images"):
            difference(ours, others, ROBUST, 0.5)
    with pytest.raises(ValueError, match="must list an image once"):
        difference(replace(ours, rows=ours.rows * 2), ours, ROBUST, 0.5)
    with pytest.raises(ValueError, match="must have the same attack"):
        difference(attack(True, attack={"kind": "pgd"}), attack(True, attack={"kind": "eot"}), ROBUST, 0.5)


@pytest.mark.parametrize("key", ["model_hash", "data", "split", "data_fingerprint", "sigma", "scored", "norm"])
def test_records_of_another_classifier_are_not_compared(key):
    settings = dict.fromkeys(("model_hash", "data", "split", "data_fingerprint", "sigma", "scored", "norm"), "one")
    assert same_classifier(settings, {**settings, "seed": 3, "dtype": "bfloat16"})
    assert not same_classifier(settings, {**settings, key: "another"})
    # What only one of them says is no difference.
    assert same_classifier(settings, {name: value for name, value in settings.items() if name != key})
