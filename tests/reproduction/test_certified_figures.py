"""The figures of certified networks are drawn from their records and from other authors' numbers."""

import importlib.metadata
import json
from itertools import pairwise
from pathlib import Path

import pytest

from reproduction.certified_figures import NAL, SIGMA_HALF, certified_curves, vote_shares
from reproduction.other_authors import LOGS, SHOWN, published, write_other_authors
from reproduction.plots import draw, to_bytes
from reproduction.seeds import DISTILLED, decided_record
from rhobust.archives import opened
from rhobust.files import read_json
from rhobust.measurements import CERTIFIED, measurements

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="module", params=[certified_curves, vote_shares], ids=["curves", "votes"])
def document(request):
    return json.loads(json.dumps(request.param(RESULTS)))


def ours(panel):
    (found,) = (curve for curve in panel["curves"] if curve["colour"] == NAL)
    return found


def proved(run):
    """Certified accuracy by radius."""
    found = measurements(decided_record(run))
    return {one.at: one for one in found if one.quantity == CERTIFIED}


def test_a_figure_is_what_the_records_give(document):
    path = RESULTS / "figures" / f"{document['name']}.json"
    assert read_json(path) == document, "stale: run python -m reproduction figures"
    picture = path.with_suffix(".svg").read_bytes()
    if f"Matplotlib v{importlib.metadata.version('matplotlib')}".encode() in picture:  # others draw other bytes
        assert picture == to_bytes(draw(document), "svg")


def test_the_curve_and_its_difference_are_the_certified_shares():
    with opened([RESULTS / "records" / SIGMA_HALF]) as here:
        (run,) = here.paths
        expected = [proved(RESULTS / "pretrained" / DISTILLED), proved(run)]
    panels = certified_curves(RESULTS)["panels"]
    for top, bottom, known in zip(panels[:2], panels[2:], expected, strict=True):
        curve, apart = ours(top), ours(bottom)
        assert curve["y"] == [known[radius].value for radius in curve["x"]]
        assert curve["low"] == [known[radius].low for radius in curve["x"]]
        (theirs,) = (one for one in top["curves"] if one["colour"] == "Sun et al.")
        values = dict(zip(theirs["x"], theirs["y"], strict=True))
        assert [y + values[x] for x, y in zip(apart["x"], apart["y"], strict=True)] == pytest.approx(curve["y"])


def test_shares_of_p_a_add_up_and_agree_with_what_was_decided_of_all_images():
    (panel,) = vote_shares(RESULTS)["panels"]
    for curve in panel["curves"]:
        assert len(curve["y"]) == len(panel["bars"])
        assert sum(curve["y"]) == pytest.approx(1)
        assert all(share >= 0 for share in curve["y"])
    curve = ours(panel)
    for radius, one in proved(RESULTS / "pretrained" / DISTILLED).items():
        above = [share for at, share in zip(curve["x"], curve["y"], strict=True) if at >= radius]
        assert sum(above) == pytest.approx(one.value)
    assert [float(name) for name in panel["bars"][1:5]] == [0.5, 0.69, 0.84, 0.93]


def test_other_authors_curves_fall_and_their_average_radius_is_within_what_they_allow():
    found = published()
    assert {one.log for one in found} == LOGS.keys()
    for one in found:
        values = list(one.curve.values())
        assert all(before >= after for before, after in pairwise(values))
        step = one.sigma / 2
        # An image between two radii counts at least the smaller one, and none reaches four sigma.
        assert step * sum(values[1:]) <= one.values["ACR"] <= step * sum(values) + step / 2 * values[-1]


def test_the_table_of_other_authors_is_what_their_logs_gave(tmp_path):
    (tmp_path / "tables").mkdir()
    for path in write_other_authors(tmp_path):
        assert path.read_text(encoding="utf-8") == (RESULTS / "tables" / path.name).read_text(encoding="utf-8")
    head = (tmp_path / "tables" / "table-other-authors.md").read_text(encoding="utf-8").splitlines()[2]
    assert head == f"| method | sigma | log | {' | '.join(SHOWN)} |"


def test_the_lead_is_in_images_that_are_sure():
    """docs/results/certified.md says so of the two figures."""
    (votes,), top = vote_shares(RESULTS)["panels"], certified_curves(RESULTS)["panels"][0]
    wrong = {curve["colour"]: curve["y"][0] for curve in votes["curves"]}
    assert all(abs(wrong[NAL] - wrong[name]) < 0.01 for name in ("CAT-RS", "Sun et al."))
    assert min(wrong, key=wrong.__getitem__) == "Smoothing"
    at = {
        (curve["colour"], bool(curve.get("reported"))): dict(zip(curve["x"], curve["y"], strict=True))
        for curve in top["curves"]
    }
    sure = {key: curve[0.75] for key, curve in at.items()}  # three sigma: p_A is 0.9987
    assert min(sure, key=sure.__getitem__) == ("Smoothing", True)
    assert (
        min(sure[NAL, False], sure["SmoothAdv", False])
        > max(share for (_, theirs), share in sure.items() if theirs) + 0.03
    )
