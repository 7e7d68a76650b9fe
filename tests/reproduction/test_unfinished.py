"""A record that was stopped is packed and counted with the images that it has, and nothing is said of all at once."""

import pytest

from reproduction.__main__ import main
from reproduction.archive import pack
from reproduction.index import row
from reproduction.plan_tables import write_plan
from reproduction.unfinished import read_counted
from rhobust.archives import opened
from rhobust.evaluation import audit_file
from rhobust.measurements import ALL_AT_ONCE, CERTIFIED, ROBUST, measurements, outcomes
from rhobust.progress import no_progress
from rhobust.records import read_record, record_paths
from rhobust.sweeps import read_plan, run_sweep

PLAN = """
title = "Stopped"
[train]
data = "digits"
model = "cnn-small"
epochs = 1
method = { kind = "gaussian", sigma = 0.25 }
[[evaluate]]
kind = "certify"
radii = [0.0, 0.1]
n = 300
limit = 9
stride = 3
[[evaluate]]
kind = "attack"
attack = { kind = "eot", steps = 2, draws = 2 }
radii = [0.0, 0.5]
votes = 10
limit = 6
probe = false
"""


@pytest.fixture
def plan(tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN)
    return read_plan(tmp_path / "plan.toml")


@pytest.fixture
def swept(plan, tmp_path):
    """The folder of a sweep and the whole records of its one run."""
    out = tmp_path / "swept"
    assert not run_sweep(plan, out, device="cpu", progress=no_progress).failures
    (run,) = (out / "runs").iterdir()
    return out, *(read_record(path) for kind in ("certify", "attack") for path in record_paths(run, kind))


def stop(record, rows):
    """Leave of a record what a kill after so many rows leaves."""
    record.path.write_text("".join(record.path.read_text().splitlines(keepends=True)[: 1 + rows]))


def packed(out, archive, *options, capsys):
    assert main(["pack", str(out), str(archive), *options]) == 0
    return capsys.readouterr().err


def test_what_was_stopped_is_packed_only_where_it_is_asked_for(swept, tmp_path, capsys):
    out, certificate, attack = swept
    stop(certificate, 5)
    said = packed(out, tmp_path / "x.tar.xz", capsys=capsys)
    assert said == f"{certificate.path} is unfinished and was left out: see --unfinished\n"
    with opened([tmp_path / "x.tar.xz"]) as found:
        assert [path.name for path in record_paths(found.paths[0])] == [attack.path.name]
    said = packed(out, tmp_path / "x.tar.xz", "--unfinished", capsys=capsys)
    assert said == f"{certificate.path} is unfinished and was packed with the images that it has\n"
    with opened([tmp_path / "x.tar.xz"]) as found:
        kept = read_record(found.paths[0] / certificate.path.name)
        assert (kept.settings, kept.rows, kept.summary) == (certificate.settings, certificate.rows[:5], None)
        assert audit_file(kept.path, device="cpu", share=0, progress=no_progress)["problems"] == []
        found = {one.quantity: one.n for one in measurements(kept)}
    assert found[CERTIFIED] == 5
    assert ALL_AT_ONCE not in found, "when it stopped decided how many images there are"


def test_what_was_packed_can_still_be_finished(swept, plan, tmp_path, capsys):
    out, certificate, _ = swept
    stop(certificate, 5)
    packed(out, tmp_path / "x.tar.xz", "--unfinished", capsys=capsys)
    assert not run_sweep(plan, out, device="cpu", progress=no_progress).failures
    assert read_record(certificate.path).rows == certificate.rows
    assert packed(out, tmp_path / "x.tar.xz", capsys=capsys) == ""
    with opened([tmp_path / "x.tar.xz"]) as found:
        assert read_record(found.paths[0] / certificate.path.name).summary is not None


def test_an_attack_loses_the_image_that_was_cut(swept):
    _, _, attack = swept
    stop(attack, 5)  # two radii per image
    found = read_counted(attack.path)
    assert found.rows == attack.rows[:4]
    assert outcomes(found, ROBUST, 0.5).keys() == {0, 1}


def test_images_after_a_gap_are_left_out(swept, tmp_path):
    """Workers write blocks as they come: which images are there must not depend on how long one took."""
    out, certificate, _ = swept
    lines = certificate.path.read_text().splitlines(keepends=True)
    certificate.path.write_text("".join([lines[0], *lines[5:8], *lines[1:4]]))
    assert read_counted(certificate.path).rows == certificate.rows[:3]
    pack(out, tmp_path / "x.tar.xz", stopped=True)
    with opened([tmp_path / "x.tar.xz"]) as found:
        assert read_record(found.paths[0] / certificate.path.name).rows == certificate.rows[:3]
    certificate.path.write_text("".join([lines[0], *lines[5:8]]))
    pack(out, tmp_path / "y.tar.xz", stopped=True)
    with opened([tmp_path / "y.tar.xz"]) as found:
        assert not record_paths(found.paths[0], "certify")


def test_tables_and_the_index_show_how_many_images_there_are(swept, plan, tmp_path):
    out, certificate, attack = swept
    stop(certificate, 5)
    stop(attack, 8)
    pack(out, tmp_path / "x.tar.xz", stopped=True)
    (tmp_path / "tables").mkdir()
    with opened([tmp_path / "x.tar.xz"]) as found:
        line = row(found.paths[0], "here")
        pages = [
            path.read_text()
            for path in write_plan(plan, found.paths, tmp_path / "tables" / "table-x.csv")
            if path.suffix == ".md"
        ]
    assert (line["certified_images"], line["attacked"]) == ("5", "4")
    for page, count in zip(pages, (5, 4), strict=True):
        (shown,) = (one for one in page.splitlines() if one.startswith("| Smoothing, seed 0"))
        assert shown.endswith(f"| {count} |")
        assert "Evaluations that were stopped before their last image, of: Smoothing, seed 0." in page
