"""Charts on their own: ticks, lines, bands, text."""

import math
from itertools import pairwise
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from rhobust.report.chart import Axis, Chart, DrawingSize, Point, Series, draw, escape, read_out, round_above, ticks


@given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e3), st.integers(2, 12))
def test_ticks_are_few_even_and_inside(low, width, count):
    found = ticks(low, low + width, count)
    assert 1 <= len(found) <= count + 1
    steps = {round(b - a, 6) for a, b in pairwise(found)}
    assert len(steps) <= 1 or math.isclose(min(steps), max(steps), rel_tol=1e-3)
    assert low - 1e-6 * width <= found[0] <= found[-1] <= low + width + 1e-6 * width


@given(st.floats(1e-6, 1e6))
def test_an_axis_ends_above_its_values(value):
    assert value * (1 - 1e-6) <= round_above(value) <= 1.5 * value


def chart(points, **options) -> ElementTree.Element:
    line = Series("a <line>", 0, "certified", "Certified", points, **options)
    return ElementTree.fromstring(
        draw(Chart("c", "t", "d", Axis("x", 0, 1), Axis("y", 0, 1, percent=True), [line]), DrawingSize(200, 200))
    )


def line_of(svg: ElementTree.Element) -> str:
    (path,) = svg.findall(".//path[@class='line']")
    return path.get("d", "")


def test_a_held_line_drops_before_it_runs():
    svg = chart([Point(0, 1), Point(0.5, 0.5), Point(1, 0)], held=True)
    assert line_of(svg) == "M58 14V82H122V150H186"


def test_a_plain_line_joins_its_points():
    svg = chart([Point(0, 1), Point(1, 0)])
    assert line_of(svg) == "M58 14L186 150"


def test_equal_steps_become_one():
    svg = chart([Point(x / 10, 0.5) for x in range(11)], held=True)
    assert line_of(svg) == "M58 82H186"


def test_a_band_needs_both_edges():
    assert chart([Point(0, 0.5), Point(1, 0.5)]).find(".//path[@class='band']") is None
    banded = chart([Point(0, 0.5, 0.4, 0.6), Point(1, 0.5, 0.3, 0.7)])
    assert banded.find(".//path[@class='band']") is not None
    proved = chart([Point(0, 0.5, 0.4, 0.6), Point(1, 0.5, 0.3, 0.7)], held=True)
    assert proved.find(".//path[@class='band']") is None


def test_values_outside_the_frame_stop_at_its_edge():
    assert line_of(chart([Point(0, 5.0), Point(1, -5.0)])) == "M58 14L186 150"


def test_text_is_fit_for_xml():
    assert escape("a<b>\"'&\x00\n") == "a&lt;b&gt;&quot;&#x27;&amp;��"


def test_staircases_of_several_noise_levels_of_a_network_are_told_apart():
    points = [Point(0.0, 0.9), Point(0.5, 0.4)]
    lines = [
        Series("a", 0, "certified", "Certified", points, "≥", held=True, part=part) for part in ("σ 0.1", "σ 0.25", "")
    ]
    drawn = draw(
        Chart("radius", "t", "d", Axis("r", 0.0, 1.0), Axis("a", 0.0, 1.0, percent=True), lines), DrawingSize(360, 230)
    )
    assert drawn.count(">σ 0.1</text>") == drawn.count(">σ 0.25</text>") == 1
    assert [read_out(line, in_percent=True)["label"] for line in lines] == ["a, σ 0.1", "a, σ 0.25", "a"]
