"""Figures: the same bytes for the same numbers, colours that stay apart, and what is missing left out."""

import itertools
import json
import re
import subprocess
import sys
from itertools import pairwise

import pytest

from reproduction.experiments import both_solvers
from reproduction.paper_figures import ACTIVATIONS
from reproduction.plots import METHODS, SEQUENCE, draw, to_bytes
from reproduction.runner import PAPER
from reproduction.scales import SCALES
from reproduction.settings import METHODS as PAPERS
from reproduction.specs import Figure


def curve(colour="NAL", y=(0.9, 0.5), **more):
    low, high = [value - 0.1 for value in y], [min(1.0, value + 0.05) for value in y]
    x = list(range(len(y)))
    return {
        "colour": colour,
        "kind": "",
        "dash": "solid",
        "label": "",
        "falling": False,
        "x": x,
        "y": list(y),
        "low": low,
        "high": high,
        "n": 40,
        **more,
    }


GONE = {"colour": "STN", "kind": "", "dash": "solid", "fault": "gone"}


def legend(figure):
    [found] = figure.legends
    return [text.get_text() for text in found.get_texts()]


def document(*curves, **more):
    return {
        "name": "fig",
        "title": "A figure",
        "notes": ["Surrogate: digits."],
        "columns": 1,
        "panels": [{"title": "a panel", "x": "radius", "y": "accuracy", "curves": list(curves)}],
        **more,
    }


def test_equal_numbers_give_equal_bytes():
    for kind in ("svg", "pdf"):
        first, second = (to_bytes(draw(document(curve(), curve("STN"))), kind) for _ in range(2))
        assert first == second
        assert not re.search(rb"20[2-9]\d-\d\d-\d\d|D:20\d\d", first), "no date"
        assert first != to_bytes(draw(document(curve(y=(0.9, 0.51)), curve("STN"))), kind)


def test_another_process_draws_the_same_bytes(tmp_path):
    drawn = document(curve(), curve("gamma 1"))
    code = (
        "import json, sys; from reproduction.plots import draw, to_bytes;"
        "sys.stdout.buffer.write(to_bytes(draw(json.loads(sys.argv[1])), 'svg'))"
    )
    done = subprocess.run([sys.executable, "-c", code, json.dumps(drawn)], check=True, capture_output=True)
    assert done.stdout == to_bytes(draw(drawn), "svg")


def test_a_curve_that_is_missing_is_left_out():
    [ax] = draw(document(curve(), GONE)).axes
    assert len(ax.lines) == 1
    assert len(ax.collections) == 1, "the band"
    assert head(curve(), GONE)[1].endswith("Missing: 1 of 2 curves; fig.json says why.")


def head(*curves, **more):
    """The title, and the notes as one line."""
    return [" ".join(text.get_text().split()) for text in draw(document(*curves, **more)).texts]


def test_a_figure_says_what_stands_for_what_and_what_its_bands_are():
    bands = "Bands: 95% intervals over 40 test images; one training."
    assert head(curve()) == ["A figure", f"Surrogate: digits. {bands}"]
    assert head(curve(), curve("STN", n=90), notes=[]) == ["A figure", bands.replace("40", "40 to 90")]
    assert head(curve("eps 1", y=(0.5,), kind="NAL"), notes=[]) == ["A figure", bands.replace("Bands", "Bars")]
    sure = {"low": [0.9, 0.5], "high": [0.9, 0.5]}
    assert head(curve(**sure), notes=[]) == ["A figure", ""]


def test_nothing_of_the_head_lies_on_a_panel_or_on_the_legend():
    curves = [curve(name) for name in METHODS]
    for columns, notes in ((1, ["A long note. " * 20]), (3, [])):
        panel = {"title": "a panel", "x": "radius", "y": "accuracy", "curves": curves}
        figure = draw(document(notes=notes, columns=columns, panels=[panel] * 4))
        figure.draw_without_rendering()
        title, lines = (text.get_window_extent() for text in figure.texts)
        top = max(ax.get_tightbbox().y1 for ax in figure.axes)
        [keys] = figure.legends
        assert title.y0 >= lines.y1 > lines.y0 >= top or not notes
        assert min(ax.get_tightbbox().y0 for ax in figure.axes) >= keys.get_window_extent().y1
        assert figure.bbox.contains(keys.get_window_extent().x0, keys.get_window_extent().y0)
        assert figure.bbox.contains(keys.get_window_extent().x1, keys.get_window_extent().y1)
        assert lines.x1 <= figure.bbox.x1


def test_what_is_proved_is_not_interpolated():
    drawn = document(curve(y=(0.9, 0.5, 0.1), falling=True))
    [ax] = draw(drawn).axes
    assert ax.lines[0].get_drawstyle() == "steps-pre", "up to a point the value of that point holds"


def test_nothing_to_draw_says_so():
    figure = draw(document(GONE))
    assert [text.get_text() for text in figure.axes[0].texts] == ["missing"]


def test_the_legend_tells_colours_and_dashes_apart():
    curves = [
        curve(f"gamma {gamma}", kind=kind, dash=dash)
        for gamma in (1, 5)
        for kind, dash in (("NAL", "solid"), ("WRM", "dotted"))
    ]
    assert legend(draw(document(*curves))) == ["gamma 1", "gamma 5", "NAL", "WRM"]
    assert legend(draw(document(curve(), curve("STN")))) == ["NAL", "STN"]


def test_a_single_point_gets_its_methods_marker_and_its_interval():
    figure = draw(document(curve("eps 0.4", y=(0.7,), kind="TRADES")))
    [ax] = figure.axes
    assert ax.lines[0].get_marker() == METHODS["TRADES"][1]
    assert len(ax.collections) == 1, "the error bar"
    assert legend(figure) == ["eps 0.4", "TRADES"]


def test_the_axes_of_points_end_at_the_bars():
    low, high = curve(y=(0.2,)), curve("STN", y=(0.6,))
    drawn = document(low, columns=2)
    drawn["panels"] = [{**drawn["panels"][0], "curves": [one]} for one in (low, high)]
    for ax in draw(drawn).axes:
        assert ax.get_ylim() == pytest.approx((0.07, 0.68)), "panels with one height are alike"
    drawn["panels"][1]["y"] = "something else"
    assert [ax.get_ylim() for ax in draw(drawn).axes] == [pytest.approx((0.07, 0.28)), pytest.approx((0.47, 0.68))]


def test_points_of_one_colour_with_labels_are_joined_and_their_legend_has_a_line():
    points = [curve("NAL, damped", y=(y,), x=[y], label=f"{y:g}") for y in (0.2, 0.5)]
    figure = draw(document(*points, curve("PGD", y=(0.4,), left=[-0.1], right=[0.2])))
    [ax] = figure.axes
    joined = [line for line in ax.lines if len(line.get_xdata()) == 2]
    assert [list(line.get_xdata()) for line in joined] == [[0.2, 0.5]]
    assert [text.get_text() for text in ax.texts] == ["0.2", "0.5"]
    [keys] = figure.legends
    assert [handle.get_linestyle() for handle in keys.legend_handles] == ["-", "None"]


def test_what_is_proved_goes_without_markers_beside_what_is_measured():
    [ax] = draw(document(curve(), curve("STN", falling=True, kind="certified", dash="dashdot"))).axes
    assert [line.get_marker() for line in ax.lines] == ["o", ""]
    assert legend(draw(document(curve(), {**GONE, "colour": "WRM"}))) == ["NAL"]


def test_losses_are_not_squeezed_into_the_unit_interval():
    [ax] = draw(document(curve(y=(2.5, 0.2)))).axes
    assert ax.get_ylim()[1] > 2.5
    [ax] = draw(document(curve())).axes
    assert ax.get_ylim() == pytest.approx((-0.02, 1.02))


def test_an_axis_fits_the_curves_where_the_panel_asks_for_it():
    drawn = document(curve(y=(0.6, 0.5)))
    drawn["panels"][0]["zoom"] = True
    [ax] = draw(drawn).axes
    low, high = ax.get_ylim()
    assert 0.3 < low < 0.5
    assert 0.6 < high < 0.8


def test_bars_of_several_curves_stand_side_by_side():
    drawn = document(curve(y=(0.2, 0.8)), curve("STN", y=(0.3, 0.7), reported=True), notes=[])
    drawn["panels"][0]["bars"] = ["wrong", "right"]
    figure = draw(drawn)
    [ax] = figure.axes
    assert [patch.get_height() for patch in ax.patches] == [0.2, 0.8, 0.3, 0.7]
    lefts = [patch.get_x() for patch in ax.patches]
    assert lefts[0] + ax.patches[0].get_width() == pytest.approx(lefts[2])
    assert [label.get_text() for label in ax.get_xticklabels()] == ["wrong", "right"]
    assert len(ax.lines) == 0
    assert len(ax.collections) == 1, "error bars of the one that is ours"
    assert legend(figure) == ["NAL", "STN"]
    assert figure.texts[1].get_text().startswith("Error bars: 95% intervals over 40 test images")


def test_the_heat_map_shows_every_number():
    low, high = {"value": 0.25, "low": 0.119, "high": 0.381}, {"value": 0.75, "low": 0.5, "high": 0.9}
    cells = [[low, high], [{"fault": "gone"}, low]]
    drawn = {"title": "t", "notes": [], "x": "target", "y": "source", "names": ["NAL", "STN"], "cells": cells}
    figure = draw(drawn)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts[::2] == ["0.250", "0.750", "missing", "0.250"]
    assert texts[1::2] == ["(0.11 to 0.39)", "(0.50 to 0.90)", "", "(0.11 to 0.39)"]
    assert to_bytes(figure, "pdf") == to_bytes(draw(drawn), "pdf")


def test_the_names_below_a_heat_map_do_not_meet():
    names = ["PGD", "TRADES", "SmoothAdv", "NAL", "NAL, damped, gamma 0.36"]
    cells = [[{"value": 0.5, "low": 0.45, "high": 0.55}] * 5] * 5
    figure = draw({"title": "t", "notes": [], "x": "target", "y": "source", "names": names, "cells": cells})
    figure.canvas.draw()
    boxes = [label.get_window_extent() for label in figure.axes[0].get_xticklabels()]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def luminance(colour):
    """Relative luminance, as WCAG defines it."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def seen(colour):
    """A colour as people without red-sensitive cones see it: the projection of Vienot et al. in linear light."""
    r, g, b = ((int(colour[place : place + 2], 16) / 255) ** 2.2 for place in (1, 3, 5))
    return (0.11238 * r + 0.88762 * g, 0.11238 * r + 0.88762 * g, 0.00401 * r - 0.00401 * g + b)


def test_curves_that_stand_together_are_told_apart_without_red():
    together = [
        ("NAL", "NAL, damped", "SmoothAdv", "Smoothing", "STN"),
        ("Undefended", "STN", "Smoothing"),
        ("NAL, damped", "SmoothAdv", "Smoothing", "CAT-RS", "Sun et al."),
    ]
    groups = [[METHODS[name][0] for name in names] for names in together] + [list(SEQUENCE[:3])]
    for group in groups:
        for one, two in itertools.combinations(group, 2):
            apart = sum((a - b) ** 2 for a, b in zip(seen(one), seen(two), strict=True)) ** 0.5
            assert apart > 0.1, (one, two)
            assert luminance(one) < 0.5, "readable on white"


def test_every_curve_of_every_figure_has_a_style():
    for build in PAPER.values():
        spec = build(SCALES["full"])
        if isinstance(spec, Figure):
            others = {curve.colour for panel in spec.panels for curve in panel.curves} - METHODS.keys()
            assert len(others) <= len(SEQUENCE)
            for panel in spec.panels:
                styles = [(curve.colour, curve.dash, curve.kind) for curve in panel.curves]
                assert len(styles) == len(set(styles))
    assert set(both_solvers(PAPERS)) <= METHODS.keys()
    assert set(ACTIVATIONS) == {"relu", "elu"}
