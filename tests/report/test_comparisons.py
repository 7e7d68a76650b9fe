"""Names of models, a heading, and tables of other programs on the page."""

import re

import numpy as np
import pytest

from rhobust.cli import run
from rhobust.measurements import partners, write_tsv
from rhobust.records import read_record
from rhobust.report import write_report
from tests.report.folders import write_attack, write_certificate, write_run


@pytest.fixture
def folder(tmp_path):
    folder = write_run(tmp_path / "nal")
    [record] = folder.glob("certify-cohen-*.jsonl")
    write_tsv(read_record(record), tmp_path / "peer.tsv")
    return folder


def section(page):
    return re.search(r'<section class="panel" id="peers">.*?</section>', page, re.DOTALL)[0]


def test_names_heading_and_a_table_of_another_program(folder, tmp_path, capsys):
    named = [f"My <net>={folder}", f"Cohen & co={tmp_path / 'peer.tsv'}"]
    assert run(["report", *named, "--title", "Acme", "--out", str(tmp_path / "r.html")]) == 0
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<h1>Acme</h1>" in page
    assert "My &lt;net&gt;" in page
    found = section(page)
    rows = re.findall(r'<tr><th scope="row">(.*?)</th><td><span class="badge \w+">(\w+)</span>(.*?)</tr>', found)
    assert [row[:2] for row in rows] == [("My &lt;net&gt;", "proved"), ("Cohen &amp; co", "claimed")]
    assert rows[0][2] == rows[1][2], "the table was written from the record"
    # What a table claims is nowhere called proved, and no model of the page.
    assert "Cohen" not in page.replace(found, "").replace("Cohen et al", "")
    assert "1 model on" in page


def test_tables_alone_are_no_report(folder, tmp_path):
    with pytest.raises(ValueError, match="at least one run folder, got tables alone"):
        write_report([tmp_path / "peer.tsv"], tmp_path / "r.html")
    (tmp_path / "bad.tsv").write_text("a\tb\n")
    written = write_report([folder, tmp_path / "bad.tsv"], tmp_path / "r.html")
    assert [line for line in written.left_out if "bad.tsv is left out" in line]
    assert 'id="peers"' not in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_folders_without_a_comparison_say_in_what_their_closest_records_differ(tmp_path):
    ours, theirs, attacked = (tmp_path / name for name in ("ours", "theirs", "attacked"))
    for folder in (ours, theirs, attacked):
        folder.mkdir()
    radii = np.full(20, 0.25)
    one = write_certificate(ours, radii, sigma=0.25, way="grid", n=1000)
    write_certificate(theirs, radii, sigma=0.25, n=2000, split="validation")
    closest = write_certificate(theirs, radii, sigma=0.25, way="grid", n=2000, stopping="pairwise")
    write_attack(attacked, "pgd", radii, scored="base", sigma=None)
    refusal = f"{ours} must hold a certificate or an attack that another folder or file has too, but it does not"
    for other, reason in (
        (theirs, f": {one} and {closest} differ in n, stopping (pairwise or not)"),
        (attacked, ""),
    ):
        with pytest.raises(ValueError, match="must hold a certificate or an attack") as found:
            partners([ours, other])
        assert str(found.value) == refusal + reason
