"""The table over seeds is counted from the records, and its average radius weights few images to all."""

from pathlib import Path
from statistics import fmean

import pytest

from reproduction.seeds import (
    DISTILLED,
    RADII,
    average_radius,
    by_name,
    differences,
    means,
    stratified_mean,
    write_seeds,
)
from rhobust.records import Record

RESULTS = Path(__file__).parents[2] / "results"


def test_the_table_over_seeds_is_what_the_records_give(redrawn):
    assert redrawn(write_seeds, "pretrained", "records")


def test_two_runs_of_one_name_are_refused():
    run = RESULTS / "pretrained" / DISTILLED
    with pytest.raises(ValueError, match="must have one recipe each, but two are NAL, seed 0, one of them cifar10-nal"):
        by_name([run, run])


def certificates(radii, way):
    """A record in which every class is right."""
    rows = [{"index": index, "label": 1, "prediction": 1, "radius": radius} for index, radius in radii.items()]
    return Record(Path(f"certify-{way}-0.jsonl"), "certify", {"way": way, "radii": list(RADII)}, rows, {})


def test_radii_of_all_images_give_their_mean():
    radii = {index: index / 100 for index in range(95)}
    decided = {index: max(one for one in RADII if one <= radius) for index, radius in radii.items()}
    found = average_radius(certificates(decided, "grid"), certificates(radii, "two-stage"))
    assert found.value == pytest.approx(fmean(radii.values()))
    assert found.low < found.value < found.high


def test_a_few_images_that_are_harder_than_the_rest_are_weighted():
    """Of 100 images 80 reach 0.75, and of the ten that were measured only two."""
    decided = {index: 0.75 if index < 80 else 0.25 for index in range(100)}
    radii = {0: 0.9, 1: 0.8} | dict.fromkeys(range(80, 88), 0.3)
    found = average_radius(certificates(decided, "grid"), certificates(radii, "two-stage"))
    assert found.value == pytest.approx(0.8 * 0.85 + 0.2 * 0.3)
    assert found.n == 100


def test_what_the_decided_radii_settle_is_not_estimated():
    """The share of images that reach 0.5 is that of all, whichever were measured; its interval is over all."""
    decided = {index: 0.75 if index < 60 else 0.25 for index in range(100)}
    few = dict.fromkeys(range(2), 1.0) | dict.fromkeys(range(60, 70), 0.0)
    found = stratified_mean(certificates(decided, "grid"), few)
    assert found.value == pytest.approx(0.6)
    assert found.high - found.value == pytest.approx(1.96 * (0.6 * 0.4 / 100) ** 0.5, rel=1e-3)


def test_networks_that_were_evaluated_otherwise_are_compared_where_both_were():
    """An attack on all images at one radius, for a final row, stands next to one on few images at two."""
    whole = {0.0: dict.fromkeys(range(10), 1.0), 0.5: {index: float(index < 6) for index in range(10)}}
    few = {0.0: {0: 1.0, 5: 1.0}, 0.5: {0: 1.0, 5: 0.0}, 0.92: {0: 0.0, 5: 0.0}}
    found = differences([few], [whole])
    assert {radius: (cell.value, cell.n) for radius, cell in found.items()} == {"0": (0.0, 2), "0.5": (-0.5, 2)}
    assert differences([whole], [few])["0.5"].value == 0.5
    assert {radius: (cell.value, cell.n) for radius, cell in means([few, whole]).items()} == {
        "0": (1.0, 2),
        "0.5": (0.75, 2),
    }
