"""Model against model: the difference that the rows give, and what is not compared."""

from itertools import product

import pytest

from report.folders import rewrite, write_run
from rhobust.records import read_record
from rhobust.report import write_report
from rhobust.report.gather import gather
from rhobust.report.overview import Headline
from rhobust.report.page import model_differences
from rhobust.report.runs import PageRun
from rhobust.stats import share_difference


@pytest.fixture
def folders(tmp_path):
    """Two models that differ much, and one that is as good as the first."""
    return [write_run(tmp_path / name, name=name, strength=s) for name, s in (("a", 0.9), ("b", 0.3), ("c", 0.9))]


def right(folder, radius):
    """Whether each example is right and certified, and stands under EOT, counted here."""
    (certificate,), (attack,) = folder.glob("certify-[!s]*.jsonl"), folder.glob("attack-eot*.jsonl")
    certified = {
        row["index"]: row["prediction"] == row["label"] and row["radius"] >= radius
        for row in read_record(certificate).rows
    }
    standing = {row["index"]: not row["broken"] for row in read_record(attack).rows if row["radius"] == radius}
    return [[found[index] for index in sorted(found)] for found in (certified, standing)]


def test_cells_are_the_differences_of_the_rows(folders):
    tables = model_differences(gather(folders).runs, Headline(0.25, None))
    assert [table.title for table in tables] == ["Certified, radius 0.25", "EOT-PGD, 20 steps, radius 0.25"]
    told = [right(folder, 0.25) for folder in folders]
    for kind, table in enumerate(tables):
        assert (table.runs, table.n) == ((0, 1, 2), 200)
        for one, other in product(range(3), repeat=2):
            cell = table.cells[one][other]
            if one == other:
                assert cell is None
                continue
            apart = share_difference(told[one][kind], told[other][kind])
            low, high = (float(end.replace("−", "-")) for end in cell.interval.split(" to "))
            assert float(cell.shown.replace("−", "-")) == pytest.approx(100 * apart.value, abs=0.05)
            assert low <= 100 * apart.low < low + 0.1
            assert high >= 100 * apart.high > high - 0.1
            assert cell.side == ("above" if low > 0 else "below" if high < 0 else "level")
        assert (table.cells[0][1].side, table.cells[1][0].side, table.cells[0][2].side) == ("above", "below", "level")
        assert table.cells[0][1].shown.startswith("+")
        assert table.cells[1][0].shown.startswith("−")


def test_other_images_and_other_attacks_are_not_compared(folders, tmp_path):
    fewer = write_run(tmp_path / "d", name="d", examples=100)
    bare = write_run(tmp_path / "e", name="e", sigma=None)
    tables = model_differences(gather([*folders, fewer, bare]).runs, Headline(0.25, None))
    assert [table.runs for table in tables] == [(0, 1, 2), (0, 1, 2)]
    assert model_differences(gather([folders[0], fewer, bare]).runs, Headline(0.25, None)) == []
    (certificate,) = folders[1].glob("certify-[!s]*.jsonl")
    rewrite(certificate, lambda lines: [lines[0].replace('"split": "test"', '"split": "val"'), *lines[1:]])
    assert model_differences(gather(folders).runs, Headline(0.25, None))[0].runs == (0, 2)
    assert model_differences(gather(folders).runs, Headline(None, 0.1)) == []


def test_the_page_has_the_section_where_there_are_two(folders, tmp_path):
    page = write_report(folders, tmp_path / "three.html").path.read_text()
    assert '<section class="panel" id="versus">' in page
    assert page.count('<table class="matrix versus">') == 2
    assert 'href="#versus"' in page
    alone = write_report(folders[:1], tmp_path / "one.html").path.read_text()
    assert "versus" not in alone.partition("<body")[2]


def test_a_model_whose_numbers_contradict_each_other_is_left_out(folders, monkeypatch):
    runs = gather(folders).runs
    monkeypatch.setattr(PageRun, "contradictions", property(lambda run: ["wrong"] * (run is runs[1])))
    assert [table.runs for table in model_differences(runs, Headline(0.25, None))] == [(0, 2), (0, 2)]


def test_too_many_models_are_counted_and_not_set_side_by_side(folders, tmp_path, monkeypatch):
    monkeypatch.setattr("rhobust.report.tables.MOST", 2)
    assert [(table.runs, table.cells) for table in model_differences(gather(folders).runs, Headline(0.25, None))] == [
        ((0, 1, 2), ()),
        ((0, 1, 2), ()),
    ]
    page = write_report(folders, tmp_path / "many.html").path.read_text()
    assert page.count("3 models are too many to set side by side") == 2
    assert '<table class="matrix versus">' not in page
