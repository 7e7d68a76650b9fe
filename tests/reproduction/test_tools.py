"""python -m reproduction pack | index | figures | audit, as a user calls them."""

from pathlib import Path

import pytest

from reproduction.__main__ import main
from rhobust.archives import ENDING, opened
from rhobust.records import record_paths

RESULTS = Path(__file__).parents[2] / "results"
RECORDS = RESULTS / "records"


def called(capsys, *arguments):
    code = main([*map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def some(tmp_path):
    """A folder with one small archive of published records."""
    archive = tmp_path / "records" / f"mnist-small{ENDING}"
    archive.parent.mkdir()
    archive.symlink_to(RECORDS / archive.name)
    return archive


def test_published_certificates_are_audited(some, capsys):
    code, out, err = called(capsys, "audit", some.parent)
    assert (code, err) == (0, "")
    assert out == "mnist-small.tar.xz: 5 records of certificates recomputed\n"


def test_a_certificate_that_its_counts_do_not_give_is_told(some, tmp_path, capsys):
    out = tmp_path / "out"
    with opened([some]) as found:
        run = next(run for run in found.paths if record_paths(run, "certify"))
        (out / "runs").mkdir(parents=True)
        run.rename(out / "runs" / run.name)
    [record] = record_paths(out / "runs" / run.name, "certify")
    changed = record.read_text().replace('"radius": 0.0', '"radius": 0.01', 1)
    record.write_text(changed)
    assert called(capsys, "pack", out, tmp_path / "changed" / "x.tar.xz") == (0, f"{run.name}\n", "")
    code, shown, _ = called(capsys, "audit", tmp_path / "changed")
    assert code == 1
    assert f"{tmp_path}/changed/x.tar.xz/{run.name}/{record.name}: " in shown


def test_the_figures_of_certified_networks_are_drawn(tmp_path, capsys):
    (tmp_path / "figures").mkdir()
    for name in ("pretrained", "records"):
        (tmp_path / name).symlink_to(RESULTS / name)
    code, out, err = called(capsys, "figures", tmp_path)
    assert (code, err) == (0, "")
    files = {path.name: path for path in map(Path, out.split())}
    assert sorted(files) == sorted(path.name for path in (RESULTS / "figures").glob("fig-certified-*"))
    for name in files:
        if name.endswith(".json"):
            assert files[name].read_bytes() == (RESULTS / "figures" / name).read_bytes()


@pytest.mark.slow
def test_all_published_certificates_are_confirmed(capsys):
    code, out, _ = called(capsys, "audit", RECORDS)
    assert code == 0
    assert sum(int(line.split()[1]) for line in out.splitlines()) >= 160


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["audit", "nowhere"], "nowhere must hold archives *.tar.xz, got none"),
        (["pack", "nowhere", "x.zip"], "an archive's name must end with .tar.xz, got x.zip"),
    ],
)
def test_mistakes_are_one_line(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = called(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
