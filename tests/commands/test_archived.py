"""Commands read packed experiments as they read run folders."""

import json
import tarfile

import pytest

from rhobust.cli import run as command


def called(capsys, *arguments):
    code = command([*map(str, arguments), "--quiet"])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Two runs of the digits with a certificate each, as folders and in an archive."""
    folder = tmp_path_factory.mktemp("packed")
    for seed in ("0", "1"):
        run = folder / "digits" / f"seed{seed}"
        options = ["--data", "digits", "--model", "cnn-small", "--epochs", "1", "--out", str(run), "--quiet"]
        assert command(["train", "method:gaussian", *options, "--seed", seed]) == 0
        assert command(["certify", str(run), "--limit", "4", "--n", "200", "--radii", "0", "0.1", "--quiet"]) == 0
    with tarfile.open(folder / "digits.tar.xz", "w:xz") as tar:
        tar.add(folder / "digits", "digits")
    return folder


def test_an_archive_is_audited(packed, capsys):
    archive = packed / "digits.tar.xz"
    code, out, _ = called(capsys, "audit", archive, "--share", "0", "--json")
    assert code == 0
    audits = json.loads(out)["audits"]
    assert [audit["problems"] for audit in audits] == [[], []]
    records = [audit["record"] for audit in audits]
    assert all(record.startswith(f"{archive}/seed") for record in records)
    code, out, _ = called(capsys, "audit", records[0], "--share", "1")
    assert code == 0
    assert "confirmed" in out
    code, out, _ = called(capsys, "audit", archive, "--share", "0")
    assert "seed0/certify-" in out
    assert "seed1/certify-" in out


def test_runs_of_an_archive_are_compared_as_folders_are(packed, capsys):
    results = []
    for place in (packed / "digits", packed / "digits.tar.xz"):
        code, out, _ = called(capsys, "compare", place / "seed0", place / "seed1", "--json")
        assert code == 0
        results.append(out.replace(str(place), "PLACE"))
    assert results[0] == results[1]


def test_an_archive_has_a_report(packed, capsys, tmp_path):
    code, _, err = called(capsys, "report", packed / "digits.tar.xz", "--out", tmp_path / "page.html")
    assert (code, err) == (0, "")
    assert "seed0" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_what_is_not_in_an_archive_is_one_line(packed, capsys):
    for name in ("audit", "compare", "report"):
        code, _, err = called(capsys, name, packed / "digits.tar.xz" / "seed7")
        assert code == 2
        assert "must name a run in" in err
        assert err.count("\n") == 1
