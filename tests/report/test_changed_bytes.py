"""A finished record with any single byte changed is refused by audit, report and compare."""

import gzip
import json
import random
import tarfile

import numpy as np
import pytest

from rhobust.cli import run
from rhobust.evaluation import audit_file
from rhobust.measurements import measurements, partners
from rhobust.records import compress, read_record
from tests.fuzz.changed_bytes import ALL, KINDS, accepted, files, refusals, write_folder
from tests.report.folders import write_attack, write_certificate

MARGIN = np.array([0.1, 0.3, 0.6, 1.2])
SAMPLE = {".jsonl": 25, ".gz": 12, ".xz": 5}
"""Places of a file that are changed, besides its first and last bytes."""
ENDS = {".jsonl": 6, ".gz": 25, ".xz": 8}
"""How many of these."""


@pytest.fixture
def record(tmp_path, name):
    return KINDS[name](write_folder(tmp_path / "run"))


@pytest.mark.parametrize("name", KINDS)
def test_every_changed_byte_of_a_sample_is_refused(tmp_path, name):
    for path in files(name, tmp_path):
        size, ends = path.stat().st_size, ENDS[path.suffix]
        places = {
            *random.Random(name).sample(range(size), SAMPLE[path.suffix]),
            *range(ends),
            *range(size - ends, size),
        }
        assert path.suffix == ".xz" or "report" not in refusals(path)
        assert [(place, takers) for place, takers in accepted(path, sorted(places)) if takers] == [], path.suffix


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_every_changed_byte_is_refused(tmp_path, name):
    for path in files(name, tmp_path):
        assert [(place, takers) for place, takers in accepted(path) if takers] == [], path.suffix


@pytest.mark.parametrize("name", ["certify fixed", "measure-shift"])
def test_whitespace_in_the_end_line_is_a_change(record):
    record.write_bytes(record.read_bytes().replace(b', "digest"', b',\t"digest"'))
    assert refusals(record) == ALL


@pytest.mark.parametrize("name", ["attack", "curves"])
def test_a_record_that_another_program_compressed_is_read(tmp_path, record):
    path = compress(record, write_folder(tmp_path / "given"))
    path.write_bytes(gzip.compress(record.read_bytes()))
    assert not refusals(path) & {"audit", "report"}
    assert read_record(path).rows == read_record(record).rows


@pytest.fixture
def runs(tmp_path):
    """Two runs with a certificate and an attack each."""
    folders = [write_folder(tmp_path / "runs" / name) for name in ("one", "two")]
    for folder in folders:
        write_attack(folder, "eot", MARGIN, scored="smoothed", sigma=0.25)
        write_certificate(folder, MARGIN, sigma=0.25)
    return folders


@pytest.mark.parametrize("place", [0, 2, 12, 40, -1, -2, -10])
def test_folders_and_archives_with_a_changed_record_are_refused(runs, tmp_path, capsys, place):
    assert len(partners(runs)) == 2
    [path] = runs[1].glob("certify-*")
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    archive = tmp_path / "runs.tar.xz"
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(tmp_path / "runs", "runs")
    for where in (tmp_path / "runs", archive):
        one, two = str(where / "one"), str(where / "two")
        assert run(["compare", one, two, "--quiet"]) == 2
        assert path.name in capsys.readouterr().err
        assert run(["audit", two, "--share", "0", "--quiet", "--json"]) == 1
        audits = json.loads(capsys.readouterr().out)["audits"]
        assert any(audit["problems"] and audit["record"].endswith(path.name) for audit in audits)
        page = tmp_path / "page.html"
        assert run(["report", one, two, "--out", str(page), "--quiet"]) == 1
        lines = capsys.readouterr().err.splitlines()
        assert sum(f"{path.name} is left out" in line for line in lines) == 1
        assert lines[-1].endswith("1 of the records and files could not be shown: see the lines above")
        assert f"{path.name} is left out" in page.read_text()


@pytest.mark.parametrize("name", KINDS)
def test_a_finished_record_without_a_digest_is_refused(record, name):
    *lines, end = record.read_text().splitlines()
    record.write_text("\n".join([*lines, json.dumps({"summary": json.loads(end)["summary"]})]) + "\n")
    if name != "of the reproduction":
        assert measurements(read_record(record)), "its rows prove what its summary says"
    assert refusals(record) == ALL
    assert "it has no digest" in " ".join(audit_file(record, device="cpu", share=0)["problems"])
