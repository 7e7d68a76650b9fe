"""A finished record with any single byte changed is refused by audit, report and compare."""

import json
import random
import tarfile

import numpy as np
import pytest

from rhobust.cli import run
from rhobust.evaluation import audit_file
from rhobust.measurements import measurements, partners, read_compared
from rhobust.records import compress, read_record
from rhobust.report.gather import gather
from tests.report.folders import (
    write_attack,
    write_certificate,
    write_losses,
    write_measured,
    write_shift,
    write_transfer,
)

MARGIN = np.array([0.1, 0.3, 0.6, 1.2])
KINDS = {
    "attack": lambda folder: write_attack(folder, "eot", MARGIN, scored="smoothed", sigma=0.25),
    "certify": lambda folder: write_certificate(folder, MARGIN, sigma=0.25),
    "certify-shift": lambda folder: write_shift(folder, np.array([0, 1, 2, 9]), sigma=0.25),
    "losses": lambda folder: write_losses(folder, attacked=False),
    "curves": write_losses,
    "measure-shift": write_measured,
    "transfer": lambda folder: write_transfer(folder, "beef", {"beef": MARGIN, "f00d": MARGIN}),
}
SAMPLE = 200
"""Places that are changed, besides the whole end of the file."""


@pytest.fixture(params=KINDS)
def record(request, tmp_path):
    """A record of each kind, alone in a run folder."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "environment.json").write_text("{}")
    (folder / "metrics.jsonl").write_text("")
    return KINDS[request.param](folder)


def refusals(path):
    """Which of audit, report and compare refuse a record."""
    found = set()
    if audit_file(path, device="cpu", share=0)["problems"]:
        found.add("audit")
    [page] = gather([path.parent]).runs
    if any(note.startswith(f"{path.name} is left out") for note in page.notes) and not page.records:
        found.add("report")
    try:
        read_compared(path)
    except ValueError:
        found.add("compare")
    return found


def changed(content, seed=0):
    """The content with one byte changed, at a sample of places, at all of the last hundred, and to telling bytes."""
    rng = random.Random(seed)
    places = {*rng.sample(range(len(content)), min(SAMPLE, len(content))), *range(len(content) - 100, len(content))}
    for place in sorted(places):
        for byte in {rng.randrange(256), ord("\n"), ord(" ")} - {content[place]}:
            yield place, content[:place] + bytes([byte]) + content[place + 1 :]


def test_every_changed_byte_is_refused(record):
    original = record.read_bytes()
    assert "report" not in refusals(record)
    for place, content in changed(original):
        record.write_bytes(content)
        assert refusals(record) == {"audit", "report", "compare"}, (place, original[max(0, place - 20) : place + 20])


def test_a_changed_byte_of_a_compressed_record_is_refused_or_changes_nothing(record):
    # Of gzip's header some bytes are the time and the operating system, which say nothing of the record.
    path = compress(record, record.parent)
    original, rows = path.read_bytes(), read_record(record)
    record.unlink()
    same = 0
    for place, content in changed(original):
        path.write_bytes(content)
        if refusals(path) != {"audit", "report", "compare"}:
            found = read_record(path)
            assert (found.settings, found.rows, found.summary, found.digest) == (
                rows.settings,
                rows.rows,
                rows.summary,
                rows.digest,
            ), place
            same += 1
    assert same < 30


def test_whitespace_in_the_end_line_is_a_change(record):
    record.write_bytes(record.read_bytes().replace(b', "digest"', b',\t"digest"'))
    assert refusals(record) == {"audit", "report", "compare"}


@pytest.fixture
def runs(tmp_path):
    """Two runs with a certificate and an attack each."""
    folders = [tmp_path / "runs" / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        KINDS["attack"](folder), KINDS["certify"](folder)
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
        run(["report", one, two, "--out", str(tmp_path / "page.html"), "--quiet"])
        assert f"{path.name} is left out" in capsys.readouterr().err


def test_a_finished_record_without_a_digest_is_refused(record):
    *lines, end = record.read_text().splitlines()
    record.write_text("\n".join([*lines, json.dumps({"summary": json.loads(end)["summary"]})]) + "\n")
    assert measurements(read_record(record)), "its rows prove what its summary says"
    assert refusals(record) == {"audit", "report", "compare"}
    assert "it has no digest" in " ".join(audit_file(record, device="cpu", share=0)["problems"])
