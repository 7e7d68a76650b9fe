"""Photos and drawings as the network sees them, and the page's words about them."""

import base64
import io
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from rhobust.data.sizing import Sizing
from rhobust.demo import DemoClassifier, build_app, decode_drawing, fit_drawing, fit_photo
from rhobust.demo.classifier import LiveCertificate, PredictedImage
from rhobust.demo.page import answer, attacked, corrupted, intro


@pytest.fixture
def classifier(network):
    return DemoClassifier(network.eval(), 0.25, ("zero", "<b>{{one}}", "two", "three"), (1, 8, 8), seed=1)


def stroke(start, end, width=40):
    drawing = Image.new("RGBA", (360, 360))
    ImageDraw.Draw(drawing).line([start, end], fill="black", width=width)
    return drawing


def test_a_photo_of_the_networks_size_is_taken_unchanged(classifier):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)
    assert np.array_equal(fit_photo(Image.fromarray(pixels), classifier)[0], pixels)


def test_a_photo_of_another_size_is_fitted(classifier):
    pixels = np.zeros((40, 80, 3), np.uint8)
    pixels[:, 15:65] = 200  # the central square, and what the filter reaches beyond it
    assert fit_photo(Image.fromarray(pixels), classifier).unique().tolist() == [200]
    colour = replace(classifier, shape=(3, 8, 8))
    assert fit_photo(Image.fromarray(pixels), colour).shape == (3, 8, 8)
    # As in training: resized to 10, of which the central 8 are kept.
    sized = replace(classifier, sizing=Sizing(10, 8))
    expected = Sizing(10, 8).apply(np.asarray(Image.fromarray(pixels).convert("L"))[None])
    assert np.array_equal(fit_photo(Image.fromarray(pixels), sized), expected)


def test_transparency_is_paper(classifier):
    assert fit_photo(Image.new("RGBA", (8, 8), (0, 0, 0, 0)), classifier).unique().tolist() == [255]


def test_an_empty_canvas_is_no_image(classifier):
    assert fit_drawing(None, classifier) is None
    assert fit_drawing(Image.new("RGBA", (360, 360)), classifier) is None


def test_a_drawing_is_centred_and_sized_wherever_it_was_drawn(classifier):
    first = fit_drawing(stroke((30, 30), (30, 150)), classifier)
    second = fit_drawing(stroke((300, 200), (300, 320)), classifier)
    assert torch.equal(first, second)
    ink = first[0] > 128
    assert ink.any(1).sum() in (5, 6)  # three quarters of eight pixels
    assert not first[0, 0].any()
    columns = ink.any(0).nonzero().flatten().tolist()
    assert columns[0] + columns[-1] in (6, 7, 8)


def test_a_drawing_has_the_ground_and_the_size_of_the_examples(classifier):
    bright = torch.full((3, 1, 8, 8), 255, dtype=torch.uint8)
    bright[:, :, 1:7, 3:5] = 0
    on_bright = fit_drawing(stroke((30, 30), (30, 150)), replace(classifier, examples=bright))
    assert on_bright[0, 0, 0] == 255
    assert on_bright.min() < 64
    full = torch.zeros((3, 1, 8, 8), dtype=torch.uint8)
    full[:, :, :, 3:5] = 255
    filled = fit_drawing(stroke((30, 30), (30, 150)), replace(classifier, examples=full))
    assert (filled[0] > 128).any(1).all()


def test_drawings_come_as_data_urls():
    file = io.BytesIO()
    stroke((0, 0), (9, 9)).save(file, "PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    assert decode_drawing(url).size == (360, 360)
    assert decode_drawing(None) is None
    for wrong in ("", "file:///etc/passwd", "data:image/png;base64,@@", "data:image/png;base64,aGVsbG8=", 7):
        with pytest.raises(ValueError, match="a drawing must be a PNG"):
            decode_drawing(wrong)


LIVE = LiveCertificate((900, 100, 0, 0), 1000, 2000, 0, True, 0.56789, False)


def test_the_page_rounds_radii_down_and_says_what_is_proved(classifier):
    image = torch.zeros(1, 8, 8, dtype=torch.uint8)
    shown = answer(classifier, image, LIVE)
    assert "Proved: the same answer for every image within L2 distance" in shown
    assert ">0.567<" in shown
    assert "1,000 of 2,000 noise samples" in shown
    assert "99.9%" in shown
    unproved = answer(classifier, image, replace(LIVE, proved=False, radius=0.0))
    assert "Nothing is proved yet." in unproved
    assert "Proved:" not in unproved
    abstains = answer(classifier, image, replace(LIVE, proved=False, radius=0.0, done=True))
    assert "It abstains" in abstains
    assert "Proved:" not in abstains
    assert "choose the class" in answer(classifier, image, replace(LIVE, selected=None, proved=False, radius=0.0))


def test_names_of_classes_are_text(classifier):
    image = torch.zeros(1, 8, 8, dtype=torch.uint8)
    named = replace(classifier, name="<script>", warnings=("<i>odd",))
    for shown in (answer(classifier, image, replace(LIVE, selected=1)), intro(named)):
        assert "<b>{{" not in shown
        assert "<script>" not in shown
        assert "<i>odd" not in shown
    assert "&lt;b&gt;&#123;&#123;one" in answer(classifier, image, replace(LIVE, selected=1))


def changed(prediction, distance):
    return PredictedImage("fog", torch.ones(1, 8, 8, dtype=torch.uint8), distance, prediction, ((0, 700), (2, 300)))


@pytest.mark.parametrize(
    ("prediction", "radius", "words"),
    [
        (0, 0.5, "no attack can change it here: 0.567 is proved"),
        (0, 0.6, "That proves nothing beyond the certified distance"),
        (2, 0.6, "changed the answer from zero to two"),
        (None, 0.6, "changed the answer from zero to no answer"),
        (2, 0.5, "within the certified distance"),
        (None, 0.5, "proved to be still zero"),
    ],
)
def test_what_an_attack_shows(classifier, prediction, radius, words):
    image = torch.zeros(1, 8, 8, dtype=torch.uint8)
    assert words in attacked(classifier, image, LIVE, changed(prediction, radius), radius)


def test_corruptions_are_called_proved_within_the_radius_only(classifier):
    shown = corrupted(classifier, LIVE, [changed(0, 0.5), changed(0, 0.6), changed(2, 0.6), changed(2, 0.5)])
    assert shown.count("<em>proved</em>") == 1
    assert shown.count("<em>same answer</em>") == 1
    assert shown.count("<em>changed</em>") == 2
    assert "2 of 4 corruptions" in shown


def test_a_missing_gradio_is_one_line(classifier, monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(ValueError, match=r"the demo needs the package gradio: python -m pip install '\.\[demo\]'"):
        build_app(classifier)
