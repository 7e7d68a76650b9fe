"""The page says what the records say, escapes what users wrote, and asks nothing of the network."""

import html
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from scipy.stats import binomtest

from report.folders import RADII, write_attack, write_certificate, write_run, write_shift, write_transfer
from rhobust.formatting import format_percent
from rhobust.records import read_record
from rhobust.report import write_report

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\x1b"


def data_of(page: str) -> dict:
    block = re.search(r'<script type="application/json" id="rhobust-data">(.*?)</script>', page, re.S)
    assert block
    return json.loads(block.group(1))


def numbers_of(page: str) -> list[dict]:
    """The rows of the page's table of numbers, with the values behind what is shown."""
    found = []
    for row in re.findall(r"<tr data-run=.*?</tr>", page, re.S):
        cells = re.findall(r"<td(.*?)>(.*?)(?=<td|</tr>)", row, re.S)
        data = [dict(re.findall(r'data-(\w+)="(.*?)"', attributes)) for attributes, _ in cells]
        texts = [html.unescape(re.sub(r"<a .*?</a> |<.*?>", "", content)) for _, content in cells]
        found.append(
            {
                "model": texts[0],
                "quantity": texts[1],
                "status": texts[2],
                "at": texts[3].rpartition(" ")[0],
                "where": float(data[3]["v"]) if data[3]["v"] else None,
                "value": float(data[4]["v"]),
                "shown": texts[4],
                "low": float(data[5]["v"]) if data[5]["v"] else None,
                "high": float(data[5]["high"]) if "high" in data[5] else None,
                "interval": texts[5],
                "n": int(texts[6]),
                "record": texts[7],
            }
        )
    return found


def text_of(page: str) -> str:
    """What a reader sees: no tags, no style, no script, blanks folded."""

    class Reader(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.parts: list[str] = []
            self.silent = False

        def handle_starttag(self, tag, attrs) -> None:
            self.silent = tag in ("script", "style")

        def handle_endtag(self, tag) -> None:
            self.silent = False

        def handle_data(self, data) -> None:
            if not self.silent:
                self.parts.append(data)

    reader = Reader()
    reader.feed(page)
    return " ".join(" ".join(reader.parts).split())


def page_of(tmp_path: Path, *runs: Path) -> str:
    return write_report(runs, tmp_path / "out" / "report.html").path.read_text(encoding="utf-8")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "nal")


def only(run: Path, pattern: str) -> Path:
    (path,) = run.glob(pattern)
    return path


def test_attack_numbers_are_the_share_of_rows_not_broken(tmp_path, run):
    page = page_of(tmp_path, run)
    path = only(run, "attack-eot-*.jsonl")
    shown = {row["where"]: row for row in numbers_of(page) if row["record"] == path.name}
    rows = read_record(path).rows
    assert sorted(shown) == RADII
    for radius in RADII:
        broken = [row["broken"] for row in rows if row["radius"] == radius]
        k, n = broken.count(False), len(broken)
        interval = binomtest(k, n).proportion_ci(0.95, "exact")
        assert shown[radius]["value"] == k / n
        assert shown[radius]["n"] == n
        assert shown[radius]["low"] == pytest.approx(interval.low, abs=1e-6)
        assert shown[radius]["low"] <= interval.low
        assert interval.high <= shown[radius]["high"] == pytest.approx(interval.high, abs=1e-6)
        assert shown[radius]["status"] == ("upper bound" if radius else "estimate")
        assert f"radius {radius:g} {shown[radius]['shown']} {shown[radius]['interval']} {n}" in text_of(page)


def test_certified_numbers_are_counted_from_the_rows(tmp_path, run):
    page = page_of(tmp_path, run)
    path = only(run, "certify-cohen-*.jsonl")
    rows = read_record(path).rows
    for number in [row for row in numbers_of(page) if row["record"] == path.name]:
        right = [row["radius"] for row in rows if row["prediction"] == row["label"]]
        if number["where"] is None:
            assert number["value"] == pytest.approx(sum(right) / len(rows))
            continue
        certified = sum(r >= number["where"] for r in right)
        if "at once" in number["quantity"]:
            # Of 200 certificates at 0.001 each, more than three are false with probability 0.00006.
            certified = max(0, certified - 3)
        assert number["value"] == certified / len(rows)
        assert number["status"] == "proved"
        assert float(number["shown"].rstrip("%")) / 100 <= certified / len(rows) + 1e-12


def test_shift_numbers_are_the_summary_curve(tmp_path, run):
    page = page_of(tmp_path, run)
    path = only(run, "certify-shift-*.jsonl")
    record = read_record(path)
    shown = [row for row in numbers_of(page) if row["record"] == path.name]
    curve = [(row["where"], row["value"]) for row in shown if row["status"] == "proved"]
    assert curve == [(point["eps"], point["certified_accuracy"]) for point in record.summary["curve"]]
    errors, draws = (sum(row[key] for row in record.rows) for key in ("errors", "draws"))
    assert [row["value"] for row in shown if row["status"] == "estimate"] == [pytest.approx(1 - errors / draws)]
    assert record.summary["statement"] in text_of(page)


def test_certified_accuracy_is_never_rounded_up(tmp_path):
    run = write_run(tmp_path / "run", examples=20)
    for path in (only(run, "certify-cohen-*"), *run.glob("attack-*")):
        path.unlink()
    write_certificate(run, np.where(np.arange(999) < 899, 0.3, 0.0), sigma=0.25)
    write_attack(run, "eot", np.where(np.arange(999) < 899, 0.3, 0.0), scored="smoothed", sigma=0.25)
    page = page_of(tmp_path, run)
    at = [row for row in numbers_of(page) if row["where"] == 0.25 and row["at"] == "radius"]
    assert {row["quantity"]: row["shown"] for row in at} == {
        "Certified accuracy": "89.9%",
        "Certified accuracy, all examples at once": "89.4%",
        "Robust accuracy, EOT-PGD, 20 steps, smoothed classifier": "90.0%",
    }
    assert "Certified radius 0.25 89.9% proved" in text_of(page)
    (shift,) = run.glob("certify-shift-*")
    shift.unlink()
    text = text_of(page_of(tmp_path, run))
    assert "At least this share of these 999 test inputs are classified right by the smoothed classifier" in text
    assert "smoothed, σ 0.25 ≥ 89.4%" in text


def test_every_curve_read_out_stays_on_its_side(tmp_path, run):
    page = page_of(tmp_path, run)
    rows = read_record(only(run, "certify-cohen-*")).rows
    (series,) = [s for s in data_of(page)["charts"]["radius"]["series"] if s["kind"] == "certified"]
    assert series["sign"] == "≥"
    for radius, shown, _ in series["points"]:
        certified = sum(r["prediction"] == r["label"] and r["radius"] >= radius for r in rows) / len(rows)
        assert certified - 0.001 < float(shown.rstrip("%")) / 100 <= certified + 1e-12
    for radius in np.linspace(0, 1, 77):
        # What the page's script reads off: the next point there is.
        shown = next((shown for at, shown, _ in series["points"] if at >= radius), "0%")
        assert float(shown.rstrip("%")) / 100 <= sum(r["radius"] >= radius for r in rows) / len(rows) + 1e-12


def test_hostile_names_stay_text(tmp_path):
    run = write_run(tmp_path / "run", name=HOSTILE, warnings=(HOSTILE,))
    page = write_report([run], tmp_path / "r.html", title=HOSTILE).path.read_text(encoding="utf-8")
    assert "<img src=x" not in page
    assert page.count("<script") == 2
    assert "onerror=alert" not in re.sub(r"&lt;.*?&gt;", "", data_free(page))
    assert data_of(page)["models"][0]["label"] == HOSTILE


def data_free(page: str) -> str:
    return re.sub(r'<script type="application/json".*?</script>', "", page, flags=re.S)


def test_a_name_utf8_cannot_hold_does_not_break_the_page(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "config.json").write_text('{"name": "half \\ud800 pair", "method": {"kind": "nal", "sigma": 0.25}}')
    assert "half" in page_of(tmp_path, run)


def test_the_page_asks_nothing_of_the_network(tmp_path, run):
    page = page_of(tmp_path, run)
    assert not re.search(r"https?://|//cdn|@import|\burl\(|\bimport\(|<link|<iframe|\bfetch\(", page)
    assert {source.partition(",")[0] for source in re.findall(r'\ssrc\s*=\s*"([^"]*)', page)} == {
        "data:image/png;base64"
    }
    assert all(target.startswith("#") for target in re.findall(r'\shref="([^"]*)"', page))
    assert "default-src 'none'" in page


def test_every_figure_is_valid_xml(tmp_path, run):
    other = write_run(tmp_path / "erm", name="a & <b>", kind="erm", sigma=None)
    page = page_of(tmp_path, run, other)
    drawings = re.findall(r"<svg.*?</svg>", page, re.S)
    charts = [ElementTree.fromstring(drawing) for drawing in drawings if 'class="chart"' in drawing]
    assert {chart.get("data-chart") for chart in charts} >= {"radius", "shift", "training-loss", "training-accuracy"}
    for chart in charts:
        assert chart.find("title") is not None
        assert "nan" not in ElementTree.tostring(chart, encoding="unicode").lower().replace("dominant", "")


def test_the_same_records_give_the_same_bytes(tmp_path, run):
    first = write_report([run], tmp_path / "a.html").path.read_bytes()
    assert write_report([run], tmp_path / "b.html").path.read_bytes() == first


def test_warnings_stand_beside_the_number(tmp_path):
    run = write_run(tmp_path / "run", warnings=("zero gradients on 3 examples",))
    page = page_of(tmp_path, run)
    row = re.search(r"<tr data-run(?:(?!</tr>).)*EOT(?:(?!</tr>).)*</tr>", page, re.S)
    assert row
    [place] = re.findall(r'href="#(warning-\d+)"', row.group())
    assert f'id="{place}">zero gradients on 3 examples</li>' in page
    assert "upper bound" in text_of(page)
    assert text_of(page).count("zero gradients on 3 examples") >= 2


def test_equal_names_are_told_apart(tmp_path, run):
    twin = write_run(tmp_path / "twin")
    labels = [model["label"] for model in data_of(page_of(tmp_path, run, twin))["models"]]
    assert labels == ["nal-digits", "nal-digits (2)"]


def test_an_unsmoothed_model_is_guaranteed_nothing(tmp_path):
    page = page_of(tmp_path, write_run(tmp_path / "erm", kind="erm", sigma=None))
    assert "Nothing is guaranteed for a network without smoothing" in text_of(page)
    assert "Right at least" not in text_of(page)


def test_the_sentence_quotes_the_shift_certificate_rounded_down(tmp_path, run):
    record = read_record(only(run, "certify-shift-*"))
    quoted = next(point for point in record.summary["curve"] if point["eps"] == 0.1)
    down = np.floor(quoted["certified_accuracy"] * 1000) / 10
    text = text_of(page_of(tmp_path, run))
    assert "Right at least this often under every distribution of 8-bit images" in text
    assert f"smoothed, σ 0.25 ≥ {down:.1f}%" in text
    drawn = f"the one that the {len(record.rows)} test images were drawn from independently"
    assert f"within W2 distance 0.1 of {drawn}, with one noisy prediction (confidence 99.9%)." in text


def test_an_attack_in_another_norm_has_its_own_figure(tmp_path, run):
    write_attack(run, "pgd", np.full(50, 0.6), scored="smoothed", sigma=0.25, norm="linf")
    charts = data_of(page_of(tmp_path, run))["charts"]
    assert [series["kind"] for series in charts["radius-linf"]["series"]] == ["blind"]
    assert {series["kind"] for series in charts["radius"]["series"]} == {"certified", "eot", "base"}


def test_attacks_are_told_apart(tmp_path, run):
    margin = np.full(50, 0.6)
    write_attack(run, "pgd", margin, scored="smoothed", sigma=0.25, source={"name": "the other", "model_hash": "1"})
    write_attack(run, "paper", margin, scored="smoothed", sigma=0.25, votes=1)
    write_attack(run, "autoattack", margin, scored="smoothed", sigma=0.25)
    page = page_of(tmp_path, run)
    kinds = {series["kind"] for series in data_of(page)["charts"]["radius"]["series"]}
    assert kinds == {"certified", "eot", "autoattack", "transfer", "paper", "base"}
    quantities = {row["quantity"] for row in numbers_of(page)}
    assert "Robust accuracy, PGD, 20 steps, crafted on the other, smoothed classifier" in quantities
    assert "Robust accuracy, Paper’s attack, 20 steps, one noisy prediction" in quantities
    # Lines beside the point start switched off.
    assert re.search(r'class="chip" aria-pressed="false" data-kind="paper"', page)
    assert re.search(r'class="chip" aria-pressed="true" data-kind="eot"', page)


def test_a_grid_does_not_hide_a_certificate_that_knows_every_radius(tmp_path, run):
    write_certificate(run, np.full(50, 0.25), sigma=0.25, way="grid")
    write_certificate(run, np.full(50, 0.5), sigma=0.5, way="grid")
    page = page_of(tmp_path, run)
    kinds = [series["kind"] for series in data_of(page)["charts"]["radius"]["series"] if "certified" in series["kind"]]
    # The one at sigma 0.5 stands alone, so it is drawn like any other.
    assert sorted(kinds) == ["certified", "certified", "certified-grid"]
    assert re.search(r'class="chip" aria-pressed="false" data-kind="certified-grid"', page)
    assert re.search(r'class="chip" aria-pressed="true" data-kind="certified"', page)
    # Over more images it is the one that the page quotes.
    write_certificate(run, np.full(500, 0.25), sigma=0.25, way="grid", n=20_000)
    page = page_of(tmp_path, run)
    assert re.search(r'class="chip" aria-pressed="true" data-kind="certified-grid"', page)


def test_what_every_folder_lacks_is_said_once_and_no_attack_is_spoken_of(tmp_path):
    runs = [write_run(tmp_path / name, name=name) for name in "ab"]
    for run in runs:
        for path in run.glob("attack-*"):
            path.unlink()
    page = text_of(page_of(tmp_path, *runs))
    assert page.count("In none of these folders: attack.") == 1
    assert "Not in this folder" not in page
    assert "the line of an attack" not in page
    assert "Not in this folder: attack." in text_of(page_of(tmp_path, runs[0]))


def test_a_training_of_one_epoch_has_no_curves(tmp_path):
    assert "Training loss" not in text_of(page_of(tmp_path, write_run(tmp_path / "one", epochs=1)))
    assert "Training loss" in text_of(page_of(tmp_path, write_run(tmp_path / "two", epochs=2)))


def test_votes_that_are_not_significant_are_shown_with_what_they_leave_open(tmp_path, run):
    [path] = run.glob("attack-eot-*.jsonl")
    point = read_record(path).summary["robust_accuracy"][1]
    assert point["undecided"] == 2
    shown = f"{format_percent(point['least'], 'down')}–{format_percent(point['most'], 'up')}%"
    assert f"2 votes not significant at 5%: {shown}" in text_of(page_of(tmp_path, run))


def test_transfers_make_a_matrix(tmp_path):
    margins = {"aaaa": np.full(20, 0.3), "bbbb": np.full(20, 0.9), "cccc": np.full(20, 2.0)}
    for name in ("aaaa", "bbbb"):
        write_transfer(write_run(tmp_path / name, name=f"model {name}", examples=20), name, margins)
    page = page_of(tmp_path, tmp_path / "aaaa", tmp_path / "bbbb")
    assert "crafted on model aaaa model bbbb run of cccc" in text_of(page)
    assert "model aaaa 0.0% 100.0% 100.0%" in text_of(page)
    assert page.count('<td class="own"') == 2
    assert "the network is odd" in text_of(page)
    moved = [
        row for row in numbers_of(page) if row["quantity"] == "Attack crafted on model aaaa, prediction of model bbbb"
    ]
    assert [(row["where"], row["value"]) for row in moved] == [(r, float(r < 0.9)) for r in RADII]


def test_attacks_that_were_carried_over_one_by_one_make_a_matrix_too(tmp_path):
    names = ("aaaa", "bbbb")
    for name, sigma in zip(names, (0.25, None), strict=True):
        folder = tmp_path / name
        write_run(folder, name=f"model {name}", examples=20, sigma=sigma, kind="nal" if sigma else "pgd")
        for path in folder.glob("attack-*"):
            path.unlink()
        judge = {"scored": "smoothed" if sigma else "base", "sigma": sigma, "model_hash": name}
        (other,) = set(names) - {name}
        source = {"name": f"run of {other}", "model_hash": other}
        write_attack(folder, "paper", np.full(20, 0.3), **judge)
        write_attack(folder, "paper", np.full(20, 0.9), **judge, source=source)
        write_attack(folder, "paper", np.full(20, 0.6), **judge, source={"name": "a third", "model_hash": "cccc"})
        # Neither on other images, nor of the bare network where the noisy one is the classifier.
        write_attack(folder, "paper", np.full(10, 0.9), **judge, seed=1)
        if sigma:
            write_attack(folder, "paper", np.full(20, 2.0), scored="base", sigma=None, model_hash=name, source=source)
    page = page_of(tmp_path, *(tmp_path / name for name in names))
    assert "Paper’s attack, radius 0.5 crafted on model aaaa model bbbb" in text_of(page)
    assert "model aaaa 0.0% 100.0% model bbbb 100.0% 0.0% a third 100.0% 100.0%" in text_of(page)
    assert page.count('<td class="own"') == 2


def test_a_run_shows_a_line_of_an_attack_whatever_kind_it_has(tmp_path, run):
    bare = write_run(tmp_path / "bare", name="bare", kind="pgd", sigma=None, examples=20)
    for path in bare.glob("attack-*"):
        path.unlink()
    source = {"name": "the other", "model_hash": "1"}
    write_attack(bare, "paper", np.full(20, 0.6), scored="base", sigma=None)
    write_attack(bare, "paper", np.full(20, 0.9), scored="base", sigma=None, source=source)
    page = page_of(tmp_path, run, bare)
    assert re.search(r'class="chip" aria-pressed="true" data-kind="paper"', page)
    assert re.search(r'class="chip" aria-pressed="false" data-kind="transfer"', page)


def test_shift_alone_makes_a_page(tmp_path, run):
    for path in (*run.glob("attack-*"), *run.glob("certify-cohen-*"), *run.glob("certify-shift-*")):
        path.unlink()
    write_shift(run, np.ones(50, dtype=int), sigma=0.25)
    page = page_of(tmp_path, run)
    assert next(iter(data_of(page)["charts"])) == "shift"
    assert "Not in this folder: attack, certificate for inputs." in text_of(page)


def test_a_report_needs_no_torch():
    program = "import sys, rhobust.commands.report; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
