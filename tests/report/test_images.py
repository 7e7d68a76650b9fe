"""Image by image and class by class: counted from the rows, within what the page bears, readable from old records."""

import json
import re
import shutil

import numpy as np
import pytest

from report.folders import rewrite, write_certificate, write_certified_images, write_run
from report.test_page import page_of, text_of
from rhobust.bounds import clopper_pearson
from rhobust.records import read_record
from rhobust.report import images
from rhobust.report.figures import figures
from rhobust.report.gather import gather
from rhobust.report.images import class_table, image_summaries
from rhobust.report.overview import Headline


@pytest.fixture
def run(tmp_path):
    folder = write_run(tmp_path / "nal")
    (certificate,) = folder.glob("certify-cohen-*")
    write_certified_images(certificate)
    return folder


def rows_of(run):
    (certificate,) = run.glob("certify-cohen-*.jsonl")
    return read_record(certificate).rows


def test_the_histograms_hold_every_image_once(run):
    [summary] = image_summaries(gather([run]).runs)
    rows = rows_of(run)
    for drawing, total in ((summary.radii, 1.0), (summary.probabilities, 1.0)):
        label = re.search(r'aria-label="(.*?)"', drawing)
        assert label
        shares = [float(share) / 100 for share in re.findall(r"([\d.]+)%", label.group(1))]
        assert sum(shares) == pytest.approx(total, abs=0.02)
    abstained = np.mean([row["prediction"] is None for row in rows])
    assert f"none {abstained:.1%}" in summary.radii
    radii = sorted((row["radius"] if row["prediction"] is not None else 0.0 for row in rows), reverse=True)
    half = int(np.argmax(np.cumsum(radii) >= sum(radii) / 2)) + 1
    assert f"half of it comes from the {100 * half / len(rows):.1f}% of images" in summary.notes[0]


def test_an_image_is_shown_with_radius_votes_and_runner_up(tmp_path, run):
    [summary] = image_summaries(gather([run]).runs)
    assert [image.radius for image in summary.images] == sorted(image.radius for image in summary.images)
    rows = {row["index"]: row for row in rows_of(run)}
    for image in summary.images:
        row = rows[image.index]
        assert (image.votes, image.of, image.runner_up_votes) == (row["count"], row["n"], row["runner_up_votes"])
        assert (image.label, image.runner_up) == (f"<{row['label']}>", f"<{row['runner_up']}>")
        assert float(image.shown_radius) <= row["radius"]
    first = summary.images[-1]
    text = text_of(page_of(tmp_path, run))
    assert f"{first.votes} of {first.of} votes; for {first.runner_up}: {first.runner_up_votes}" in text


def test_an_older_record_has_no_runner_up_and_is_shown(tmp_path, run):
    (certificate,) = run.glob("certify-cohen-*.jsonl")

    def older(lines):
        rows = [json.loads(line) for line in lines[1:-1]]
        for row in rows:
            del row["runner_up"], row["runner_up_votes"]
        return [lines[0], *(json.dumps(row) for row in rows), lines[-1]]

    rewrite(certificate, older)
    [summary] = image_summaries(gather([run]).runs)
    assert {image.runner_up for image in summary.images} == {""}
    assert "Image by image" in text_of(page_of(tmp_path, run))


def test_galleries_share_what_the_page_bears(tmp_path, monkeypatch):
    runs = [write_run(tmp_path / f"{i}", name=f"run {i}", examples=60) for i in range(3)]
    for one in runs:
        write_certified_images(next(one.glob("certify-cohen-*.jsonl")), channels=3, side=32, kept=40)
    whole = sum(image.size for one in image_summaries(gather(runs).runs) for image in one.images)
    assert whole <= images.BUDGET
    monkeypatch.setattr(images, "BUDGET", whole // 2)
    found = image_summaries(gather(runs).runs)
    assert sum(image.size for one in found for image in one.images) <= whole // 2
    assert min(len(one.images) for one in found) > 10


def test_two_noise_levels_are_two_summaries_and_two_named_lines(tmp_path, run):
    write_certificate(run, np.linspace(-0.1, 0.9, 50), sigma=0.5)
    gathered = gather([run]).runs
    assert [one.who for one in image_summaries(gathered)] == ["smoothed, σ 0.25", "smoothed, σ 0.5"]
    (radius,) = (figure for figure in figures(gathered) if figure.name == "radius")
    found = {line["part"] for line in radius.document["series"] if line["kind"] == "certified"}
    assert found == {"σ 0.25", "σ 0.5"}


def test_the_bound_0_of_images_that_comparisons_certify_is_explained(tmp_path, run):
    """Among images without a certificate they looked like such."""
    text = text_of(page_of(tmp_path, run))
    assert "an image that only comparisons certify is at 0, as is one that a sequential test does not certify" in text


def test_training_images_are_never_taken_for_test_images(tmp_path, run):
    write_certificate(run, np.linspace(0.1, 0.9, 50), sigma=0.25, split="train", data_fingerprint="0dd")
    gathered = gather([run]).runs
    named = [one.who for one in image_summaries(gathered)]
    assert named == ["smoothed, σ 0.25, on digits", "smoothed, σ 0.25, on digits (train)"]
    at = Headline(0.25, 0.25)
    found = class_table(gathered, at)
    assert found is not None
    assert [who for _, who in found.columns] == named
    (radius,) = (figure for figure in figures(gathered) if figure.name == "radius")
    lines = {line["label"]: line["n"] for line in radius.document["series"] if line["kind"] == "certified"}
    assert lines == {"nal-digits, certified": 200, "nal-digits, certified, training images": 50}
    assert radius.wide.count(">training images</text>") == 1, "at the end of the staircase"
    assert "Lines over different images (n) may cross." in radius.caption
    page = text_of(page_of(tmp_path, run))
    assert "Certified accuracy, training images" in page
    assert "of these 50 training inputs" in page


def test_a_certificate_at_chosen_radii_says_so_where_radii_are_averaged(run):
    write_certificate(run, np.full(50, 0.5), sigma=0.5, way="grid")
    each, chosen = (one.notes for one in image_summaries(gather([run]).runs))
    assert "Only the radii 0, 0.25, 0.5, 0.75, 1 were tested" in chosen[-1]
    assert not any("were tested" in note for note in each)


def test_histograms_of_nothing_have_an_axis_that_can_be_read(tmp_path):
    run = write_run(tmp_path / "nothing", strength=0.01)
    (certificate,) = run.glob("certify-cohen-*.jsonl")
    certificate.unlink()
    write_certificate(run, np.full(50, -1.0), sigma=0.25)
    [summary] = image_summaries(gather([run]).runs)
    assert ">0.4</text>" in summary.radii
    assert "e-" not in re.sub("<[^>]*>", " ", summary.radii)


def test_pictures_of_another_record_are_left_out(run):
    (certificate,) = run.glob("certify-cohen-*.jsonl")
    path = certificate.with_suffix(".npz")
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **arrays | {"index": arrays["index"] + 1000})
    [found] = gather([run]).runs
    assert "its images must be in its record, but example 1000 is not" in found.left_out[0]
    np.savez(path, **arrays | {"image": arrays["image"].astype(float)})
    assert "must be uint8" in gather([run]).runs[0].left_out[0]


def test_classes_are_counted_with_intervals_for_all_at_once(run):
    table = class_table(gather([run]).runs, Headline(0.25, None))
    assert table is not None
    assert table.classes == 10
    rows = rows_of(run)
    for name, [cell] in table.rows:
        assert cell is not None
        own = [row for row in rows if f"<{row['label']}>" == name]
        hits = sum(row["prediction"] == row["label"] and row["radius"] >= 0.25 for row in own)
        assert (cell.n, cell.value) == (len(own), hits / len(own))
        assert cell.high == float(clopper_pearson(hits, len(own), 0.0025, "upper"))
    highs = [cell.high for _, [cell] in table.rows if cell is not None]
    assert highs == sorted(highs)


def test_a_radius_that_no_certificate_reaches_has_no_classes(tmp_path, run):
    """The page is quoted at a radius at which another model was attacked."""
    certified = gather([run]).runs
    largest = max(record.largest for record in certified[0].of("certify"))
    assert class_table(certified, Headline(largest, None)) is not None
    assert class_table(certified, Headline(largest + 0.01, None)) is None
    chosen = write_certificate(tmp_path / "chosen", np.full(50, 0.5), sigma=0.25, way="grid", listed=[0.0, 0.1])
    shutil.copy(run / "config.json", chosen.parent)
    both = gather([run, chosen.parent]).runs
    for radius, columns in ((0.1, 2), (0.25, 1)):
        table = class_table(both, Headline(radius, None))
        assert table is not None
        assert len(table.columns) == columns
    page = text_of(page_of(tmp_path, run, chosen.parent))
    assert page.count("not tested at this radius") == 1
