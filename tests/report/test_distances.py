"""Distances as pictures: the attack's own direction at the page's lengths, and corruptions with their distances."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from report.folders import write_corruptions, write_run
from report.test_page import page_of, text_of
from rhobust.measurements import AFTER, CERTIFIED_AFTER, measurements
from rhobust.records import read_record
from rhobust.report import distances as module
from rhobust.report.distances import CorruptedImage, _comparison, distances
from rhobust.report.gather import gather
from rhobust.report.overview import Headline, headline
from rhobust.report.pictures import exact, small


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "nal", examples=60)


def shown(run, at=None):
    runs = gather([run]).runs
    found = distances(runs, at or headline(runs))
    assert found is not None
    return found


def pixels(address: str) -> np.ndarray:
    picture = Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2])))
    return np.asarray(picture.convert("L"), dtype=float) / 255


def test_an_image_is_moved_by_the_lengths_it_is_shown_at(run):
    [strip] = shown(run, Headline(0.5, 0.1)).strips
    assert [image.title for image in strip.images][:1] == ["unchanged"]
    assert {"L2 0.1", "L2 0.5"} <= {image.title for image in strip.images}
    roles = {image.title: image.detail for image in strip.images}
    assert (roles["L2 0.1"], roles["L2 0.5"]) == ("this page’s W2 shift", "this page’s radius")
    before = pixels(strip.images[0].source)
    for image in strip.images[1:]:
        if image.title.startswith("L2"):
            moved = np.linalg.norm(pixels(image.source) - before)
            # 8 bits round each of 64 pixels by 1/510 at most, and values stay within [0, 1].
            assert moved <= float(image.title[3:]) + 8 / 510
            assert moved >= 0.8 * float(image.title[3:]) - 8 / 510
    assert strip.images[-1].title == "noise σ 0.25"
    assert float(strip.images[-1].detail[3:]) == pytest.approx(0.25 * 8, rel=0.3)


def test_corruptions_have_their_distances_and_accuracies(tmp_path, run):
    path = write_corruptions(run)
    record = read_record(path)
    assert record.summary is not None
    [table] = shown(run, Headline(0.5, 0.1)).tables
    cells = {(name, cell.severity): cell for name, row in table.rows for cell in row if cell is not None}
    found = measurements(record)
    assert cells.keys() == {("jpeg", 1), ("jpeg", 3), ("fog", 1), ("fog", 3)}
    for (name, severity), cell in cells.items():
        own = [row["distance"] for row in record.rows if (row["corruption"], row["severity"]) == (name, severity)]
        assert cell.w2 == pytest.approx(np.sqrt(np.mean(np.square(own))))
        assert cell.shown_l2 == f"{np.mean(own):.2f}"
        after, *certified = (
            one.value
            for quantity in (AFTER, CERTIFIED_AFTER)
            for one in found
            if one.quantity == quantity and (one.detail["corruption"], one.detail["severity"]) == (name, severity)
        )
        [line] = cell.accuracies
        assert line.shown == f"{100 * after:.1f}%"
        assert bool(line.certified) == (certified[0] > 0)
    assert table.comparison == "The shift that this page quotes, W2 0.1, is about that of fog at severity 1 (0.09)."
    assert "What do these distances look like?" in text_of(page_of(tmp_path, run))


@pytest.mark.parametrize(("scale", "word"), [(50.0, "smaller than all"), (0.01, "larger than all")])
def test_a_shift_unlike_every_corruption_is_said_to_be(run, scale, word):
    write_corruptions(run, scale=scale)
    [table] = shown(run, Headline(0.5, 0.1)).tables
    assert word in table.comparison
    assert bool(table.reach) == (scale < 1)


def test_without_noise_the_base_network_is_quoted(tmp_path):
    run = write_run(tmp_path / "erm", kind="erm", sigma=None, examples=60)
    write_corruptions(run, sigma=None)
    [table] = shown(run).tables
    assert {line.shown for _, row in table.rows for cell in row if cell for line in cell.accuracies} == {"100.0%"}


def test_too_large_pictures_show_fewer_severities(run, monkeypatch):
    write_corruptions(run)
    monkeypatch.setattr(module, "BUDGET", 10)
    [table] = shown(run).tables
    assert table.severities == (1,)


def test_a_photograph_is_made_small_and_a_small_image_is_kept():
    rng = np.random.default_rng(0)
    photograph = rng.integers(0, 256, (3, 300, 200), dtype=np.uint8)
    assert len(small(photograph)) < 25_000
    assert Image.open(io.BytesIO(base64.b64decode(small(photograph).partition(",")[2]))).size == (64, 96)
    digit = rng.integers(0, 256, (1, 8, 8), dtype=np.uint8)
    assert np.array_equal(np.rint(pixels(exact(digit)) * 255), digit[0])


@pytest.mark.parametrize(
    ("shifts", "words"),
    [
        ([0.5, 0.2], "smaller than all of them; the next is fog at severity 2 (0.2)."),
        ([0.01, 0.02], "larger than all of them; the next is fog at severity 2 (0.02)."),
        ([0.02, 0.3, 0.5, 0.01], "between that of fog at severity 1 (0.02) and that of fog at severity 2 (0.3)."),
        ([0.02, 0.07, 0.5], "about that of fog at severity 2 (0.07)."),
    ],
)
def test_the_quoted_shift_is_compared_with_smaller_and_larger_ones(shifts, words):
    cells = [
        CorruptedImage("fog", number, "", shift, f"{shift:g}", "", within=False, accuracies=())
        for number, shift in enumerate(shifts, 1)
    ]
    assert _comparison(0.0625, cells) == f"The shift that this page quotes, W2 0.0625, is {words}"
