"""The entry point: version, processes that keep silent, tracebacks on request, and settings that JSON cannot hold."""

import gzip

import pytest

from rhobust.cli import run
from rhobust.records import RecordWriter, is_finished, read_record
from rhobust.version import VERSION


def test_the_version_is_one_line(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"rhobust {VERSION}\n"


def test_of_several_processes_only_the_first_prints(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    assert run(["data", "list"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("asked", [True, False])
def test_a_traceback_is_shown_on_request_only(monkeypatch, capsys, asked):
    monkeypatch.setenv("RHOBUST_TRACEBACK", "1" if asked else "")
    assert run(["dance"]) == 2
    err = capsys.readouterr().err
    assert ("Traceback" in err) == asked
    assert err.splitlines()[-1].startswith("rhobust: the command must be one of quickstart, ")


def test_settings_that_json_cannot_hold_are_refused(tmp_path):
    with pytest.raises(ValueError, match="settings must hold what JSON can, got"):
        RecordWriter(tmp_path, "attack", "", {"noise": object()})


def test_a_finished_record_takes_no_more_rows(tmp_path):
    writer = RecordWriter(tmp_path, "attack", "", {"seed": 0})
    writer.append([{"index": 0, "radius": 0.5}])
    writer.finish({})
    with pytest.raises(ValueError, match="must be unfinished to take more rows"):
        writer.append([{"index": 1, "radius": 0.5}])
    path = tmp_path / "damaged.jsonl"
    path.write_text(writer.path.read_text() + '{"index": 2}\n')
    with pytest.raises(ValueError, match="must end after its summary line"):
        read_record(path)


def test_a_row_must_be_finite(tmp_path):
    with pytest.raises(ValueError, match="a record's radius must be finite, got nan"):
        RecordWriter(tmp_path, "attack", "", {}).append([{"index": 0, "radius": float("nan")}])


def test_a_compressed_record_is_found_again_and_a_folder_is_none(tmp_path):
    writer = RecordWriter(tmp_path, "attack", "", {"seed": 0})
    writer.append([{"index": 0}])
    writer.finish({"n": 1})
    packed = writer.path.with_name(f"{writer.path.name}.gz")
    packed.write_bytes(gzip.compress(writer.path.read_bytes(), mtime=0))
    writer.path.unlink()
    assert is_finished(packed)
    assert RecordWriter(tmp_path, "attack", "", {"seed": 0}).summary == {"n": 1}
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(ValueError, match="must be a regular file, but it is a folder"):
        read_record(tmp_path / "folder.jsonl")
