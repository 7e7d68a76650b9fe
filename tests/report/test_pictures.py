"""Pictures of adversarial examples: the pixels, the record's votes, no more than the page bears."""

import base64
import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from report.folders import write_attack, write_pictures, write_run
from report.test_page import page_of, text_of
from rhobust.report import pictures
from rhobust.report.gather import gather
from rhobust.report.pictures import galleries


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "nal", examples=60)


def kept(run: Path, pattern: str = "attack-eot-*.npz") -> dict[str, np.ndarray]:
    (path,) = run.glob(pattern)
    with np.load(path) as file:
        return dict(file)


def decoded(uri: str, mode: str) -> np.ndarray:
    head, _, data = uri.partition(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert(mode))


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB")])
def test_pictures_hold_the_pixels_and_the_change(run, channels, mode):
    (attack,) = run.glob("attack-eot-*.jsonl")
    write_pictures(attack, channels=channels)
    examples = kept(run)
    (gallery,) = galleries(gather([run]).runs)
    assert gallery.kept == len(gallery.pictures) == 6
    assert [float(picture.radius) for picture in gallery.pictures] == sorted(examples["radius"])
    for picture in gallery.pictures:
        place = examples["index"].tolist().index(picture.index)
        before, after = (np.moveaxis(examples[name][place], 0, -1) for name in ("before", "after"))
        assert np.array_equal(decoded(picture.before, mode).reshape(before.shape), before)
        assert np.array_equal(decoded(picture.after, mode).reshape(before.shape), np.rint(after * 255))
        moved = after - before / 255
        strong = np.abs(moved) > 0.2 * np.abs(moved).max()
        shown = decoded(picture.change, "RGBA").astype(int)
        if channels == 1:
            # More red where something was added, more blue where it was taken away, nothing where nothing changed.
            sign = np.sign(shown[..., 0] - shown[..., 2])[..., None]
            assert np.array_equal(sign[strong], np.sign(moved)[strong])
            assert (shown[..., 3] <= 255 * np.abs(moved[..., 0]) / np.abs(moved).max() + 20).all()
        else:
            assert np.array_equal(np.sign(shown[..., :3] - 128)[strong], np.sign(moved)[strong])


def test_the_page_shows_votes_and_names(tmp_path, run):
    examples = kept(run)
    page = page_of(tmp_path, run)
    assert page.count('<figure class="example">') == 6
    label, prediction = examples["label"][0], examples["prediction"][0]
    assert f"<{label}> → <{prediction}> at radius {examples['radius'][0]:g}" in text_of(page)
    assert f"votes for <{label}>: 90 → 20 , for <{prediction}>: 70 of 100" in text_of(page)


def test_an_attack_on_the_base_network_has_no_votes(tmp_path):
    run = write_run(tmp_path / "erm", kind="erm", sigma=None, examples=60)
    (attack,) = run.glob("attack-pgd-*.jsonl")
    write_pictures(attack)
    page = page_of(tmp_path, run)
    assert page.count('<figure class="example">') == 6
    assert "one prediction, no votes" in text_of(page)


def test_the_smoothed_classifier_comes_first(run):
    (other,) = run.glob("attack-pgd-*.jsonl")
    write_pictures(other)
    write_pictures(write_attack(run, "pgd", np.full(90, 0.4), scored="smoothed", sigma=0.25, norm="linf"))
    (gallery,) = galleries(gather([run]).runs)
    assert gallery.attack == "EOT-PGD, 20 steps"
    assert gallery.predictor == "smoothed classifier"


def test_runs_share_what_the_page_bears(tmp_path, monkeypatch):
    runs = [write_run(tmp_path / f"{i}", name=f"run {i}", examples=40) for i in range(3)]
    whole = sum(picture.size for gallery in galleries(gather(runs).runs) for picture in gallery.pictures)
    monkeypatch.setattr(pictures, "BUDGET", whole // 2)
    found = galleries(gather(runs).runs)
    assert sum(picture.size for gallery in found for picture in gallery.pictures) <= whole // 2
    assert {len(gallery.pictures) for gallery in found} <= {2, 3, 4}
    assert "of 6 kept" in text_of(page_of(tmp_path, *runs))


@pytest.mark.slow
def test_ten_runs_with_colour_pictures_stay_small(tmp_path):
    runs = []
    for number in range(10):
        runs.append(write_run(tmp_path / f"run-{number}", name=f"nal-cifar10-{number}", strength=0.4 + 0.1 * number))
        (attack,) = runs[-1].glob("attack-eot-*.jsonl")
        write_pictures(attack, channels=3, side=32)
    page = page_of(tmp_path, *runs)
    assert len(page.encode()) < 700_000
    assert len(re.findall('<details class="gallery"', page)) == 20, "attacked and certified images of each"
