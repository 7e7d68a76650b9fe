"""Tables and figures between the marks of a page."""

import json

import pytest

from reproduction.__main__ import main
from reproduction.pages import check, insert, place, places, shown

CURVE = {"colour": "NAL", "kind": "", "x": [0], "y": [1]}
FIGURE = {"name": "fig-front", "title": "A front", "panels": [{"curves": [CURVE]}]}
NUMBER = {
    "source": "EOT",
    "value": 0.5,
    "low": 0.25,
    "high": 0.75,
    "n": 4,
    "way": "nearest",
    "bound": False,
    "warnings": [],
}
TABLE = {
    "name": "table-main",
    "title": "the main table",
    "keys": ["method"],
    "sources": ["EOT"],
    "flat": False,
    "notes": [],
    "lines": [{"keys": ["NAL"], "cells": [{"column": "0", "printed": None, "ours": [NUMBER], "notes": []}]}],
}
PAGE = """# A page

Words before.

<!-- table-main -->
<!-- /table-main -->

Words between: `<!-- table-main -->`.

<!-- fig-front -->

old

<!-- /fig-front -->

<!-- ledger -->
left alone
<!-- /ledger -->
"""


@pytest.fixture
def page(tmp_path):
    (tmp_path / "docs").mkdir()
    for document in (TABLE, FIGURE):
        path = place(document["name"], tmp_path / "out")
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(document))
    (tmp_path / "docs" / "page.md").write_text(PAGE)
    return tmp_path / "docs" / "page.md"


def test_marked_places_are_filled_and_nothing_else_is_touched(page):
    out = page.parent.parent / "out"
    insert(page, ["table-main", "fig-front", "table-story"], out)
    text = page.read_text()
    table = "| method |  | 0 | n |\n| --- | --- | ---: | ---: |\n| NAL | EOT | 0.5000 (0.250 to 0.750) | 4 |"
    assert places(page) == {
        "table-main": f"{table}\n\nBehind a number: its 95% interval.",
        "fig-front": "![A front](../out/figures/fig-front.svg)",
        "ledger": "left alone",
    }
    for line in ("Words before.", "Words between: `<!-- table-main -->`.", "left alone"):
        assert text.count(line) == 1
    assert "old" not in text
    assert "# table-main" not in text, "the page has its own headings"
    insert(page, ["table-main", "fig-front"], out)
    assert page.read_text() == text


def test_a_picture_without_a_curve_is_not_shown(page):
    gone = {**FIGURE, "panels": [{"curves": [{**CURVE, "fault": "gone"}, {**CURVE, "printed": True}]}]}
    assert shown(gone, page.parent, page) == "Not measured yet."
    matrix = {"name": "fig-transfer", "title": "t", "cells": [[{"fault": "gone"}, {"value": 1.0}]]}
    assert shown(matrix, page.parent, page) == "![t](figures/fig-transfer.svg)"


@pytest.mark.parametrize(
    "text",
    [
        "<!-- ledger -->\n",
        "<!-- /ledger -->\n<!-- ledger -->\n",
        "<!-- ledger -->\n<!-- /ledger -->\n" * 2,
    ],
)
def test_marks_that_do_not_fit_are_refused(page, text):
    page.write_text(text)
    with pytest.raises(ValueError, match="must have one <!-- ledger --> and one <!-- /ledger --> after it"):
        places(page)


def test_a_page_without_a_place_is_refused_before_anything_is_made(page):
    with pytest.raises(ValueError, match="must have a place <!-- NAME --> for one of table1, but has none"):
        check([page], ["table1"])
    check([page], ["table1", "ledger"])


def test_the_command_fills_a_page_and_still_tells_what_is_missing(page, tmp_path, capsys):
    page.write_text("<!-- theorem2 -->\n<!-- /theorem2 -->\n")
    arguments = ["theorem2", "--draw-only", "--out", str(tmp_path / "out"), "--into", str(page), "--quiet", "--json"]
    assert main([*arguments, "--device", "cpu"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["files"][-1] == str(page)
    assert told["faults"]
    assert places(page) == {"theorem2": "Not measured yet."}
