"""Subpopulations, groups and abstention in records of certify-shift: proved again from the rows."""

import pytest

from rhobust.certificates import ShiftClaim
from rhobust.evaluation import CertifyShift, run
from rhobust.measurements import GROUP, MIXTURE, SUBPOPULATION, WRONG_ANSWERS, measurements, read_finished
from rhobust.progress import no_progress
from rhobust.records import read_record


@pytest.fixture
def groups(tmp_path):
    path = tmp_path / "groups.txt"
    path.write_text("\n".join("left" if number % 3 else "right" for number in range(40)))
    return str(path)


def certified(target, draws=4, **options):
    return run(CertifyShift(eps=(0.0, 0.1), draws=draws, alpha=0.1, **options), target, progress=no_progress)


def test_the_surface_is_part_of_the_record(target):
    record = certified(target, gamma=(1, 2), outliers=0.05)
    surface = record.summary["surface"]
    assert [(point["gamma"], point["eps"]) for point in surface] == [(1.0, 0.0), (1.0, 0.1), (2.0, 0.0), (2.0, 0.1)]
    values = [point["certified_accuracy"] for point in surface]
    assert values == sorted(values, reverse=True) or values[2] > values[1]
    assert values[0] <= 0.95 * (1 - record.summary["loss_under_noise"])
    sentence = surface[3]["statement"]
    assert "within W2 distance 0.1 of any subpopulation that is at least 50.0% of the data's" in sentence
    assert "of which at most 5.0% are replaced by anything" in sentence
    read = [one for one in measurements(read_finished(record.path)) if one.quantity == SUBPOPULATION]
    assert [(one.detail["gamma"], one.at, one.value) for one in read] == [
        (point["gamma"], point["eps"], point["certified_accuracy"]) for point in surface
    ]


def test_a_record_without_them_is_what_it_was(target):
    record = certified(target)
    assert not {"gamma", "outliers", "label_shift", "groups", "agree"} & set(record.settings)
    assert not {"surface", "groups", "mixtures", "abstaining"} & set(record.summary)


def test_groups_and_classes(target, groups):
    named = certified(target, groups=groups)
    assert {row["group"] for row in named.rows} == {"left", "right"}
    assert [(point["group"], point["points"]) for point in named.summary["groups"][::2]] == [
        ("left", 26),
        ("right", 14),
    ]
    assert [point["tv"] for point in named.summary["mixtures"]] == [1.0, 1.0]
    classes = certified(target, label_shift=(0.1,))
    assert [point["group"] for point in classes.summary["groups"][::2]] == ["0", "1"]
    mixtures = classes.summary["mixtures"]
    assert "whose shares differ from the data's by at most 0.100 in total variation" in mixtures[0]["statement"]
    assert "in any shares" in mixtures[2]["statement"]
    assert mixtures[0]["certified_accuracy"] >= mixtures[2]["certified_accuracy"]
    found = {one.quantity for one in measurements(read_finished(classes.path))}
    assert {GROUP, MIXTURE} <= found


def test_a_classifier_that_abstains_answers_wrongly_less_often(target):
    claim = ShiftClaim("k-vote", votes=3, cost="winf")
    record = certified(target, draws=12, claim=claim, agree=3)
    points = record.summary["abstaining"]
    curve = record.summary["curve"]
    for point, plain in zip(points, curve, strict=True):
        assert point["wrong_answers"] < 1 - plain["certified_accuracy"]
    assert 0.5 < points[0]["right_answers"] < 1
    assert (
        "takes 3 noisy votes (sigma 0.25) and answers only if 3 agree answers wrongly at most" in points[0]["statement"]
    )
    read = [one for one in measurements(read_finished(record.path)) if one.quantity == WRONG_ANSWERS]
    assert [one.direction for one in read] == ["up", "up"]


@pytest.mark.parametrize("part", ["surface", "groups", "mixtures"])
def test_forged_parts_are_refused(target, part):
    claim = ShiftClaim(cost="winf")
    record = read_record(certified(target, claim=claim, gamma=(1, 2), label_shift=(0.1,)).path)
    point = record.summary[part][1]
    point["certified_accuracy"] += 0.02
    with pytest.raises(ValueError, match="certified accuracy"):
        measurements(record)
    point["certified_accuracy"] -= 0.02
    point["statement"] = point["statement"].replace("at least", "about")
    with pytest.raises(ValueError, match="statement"):
        measurements(record)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": (0.5,)}, r"gamma must be increasing numbers >= 1, got 0\.5"),
        ({"gamma": (2, 1)}, "gamma must be increasing numbers >= 1, got 2 1"),
        ({"outliers": 1.0}, r"outliers must be in \[0, 1\), got 1"),
        ({"label_shift": (0.1, 1.5)}, r"label_shift must be in \[0, 1\), got 0\.1 1\.5"),
        ({"agree": 2}, "agree must be more than half of a k-vote classifier's votes, got 2"),
        ({"gamma": (1, 2), "claim": ShiftClaim(estimator="sample")}, "must come with the loss 0-1, majorant"),
    ],
)
def test_mistakes_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        CertifyShift(**options)


def test_a_file_of_groups_must_fit(target, tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("a\nb\n")
    with pytest.raises(ValueError, match="one name per line for each of the 40 test images, got 2 lines"):
        certified(target, groups=str(short))


def test_a_second_stage_is_part_of_the_record(target):
    record = certified(target, second_draws=12, second_share=0.5, gamma=(2,))
    assert (record.settings["second_draws"], record.settings["second_share"]) == (12, 0.5)
    assert not {"second_draws", "second_share"} & set(certified(target).settings)
    chosen = [row for row in record.rows if "second" in row]
    assert 8 <= len(chosen) <= 32
    assert all((row["second"] is None) == (row["errors"] > 0) for row in chosen)
    assert all(row["second"] is None or 0 <= row["second"] <= 12 for row in chosen)
    assert any(row["second"] is None for row in chosen)
    assert any(one.quantity == SUBPOPULATION for one in measurements(read_finished(record.path)))
    again = list(CertifyShift(draws=4, second_draws=12, second_share=0.5).rows(target, [3, 30], no_progress))
    assert again == [record.rows[3], record.rows[30]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"second_share": 0.1}, "second_share must come with second_draws"),
        ({"second_draws": 0}, "second_draws must be"),
        ({"second_draws": 5, "second_share": 1.5}, "second_share must be"),
        ({"second_draws": 5, "claim": ShiftClaim(estimator="sample")}, "second_draws must come with"),
    ],
)
def test_a_second_stage_that_cannot_be_is_refused(target, options, message):
    with pytest.raises(ValueError, match=message):
        certified(target, **options)
