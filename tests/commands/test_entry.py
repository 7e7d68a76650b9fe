"""The entry point: version, processes that keep silent, tracebacks on request, and settings that JSON cannot hold."""

import gzip

import pytest

from rhobust import launch
from rhobust.cli import run
from rhobust.records import RecordWriter, is_finished, read_record
from rhobust.version import VERSION


def test_the_version_is_one_line(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"rhobust {VERSION}\n"


@pytest.mark.parametrize(
    "stray", [{"RANK": "1"}, {"WORLD_SIZE": "4", "MASTER_ADDR": "a"}, {"LOCAL_RANK": "x"}, {"SLURM_PROCID": "3"}]
)
def test_a_stray_rank_is_noticed_and_silences_nothing(monkeypatch, capsys, stray):
    for name, value in stray.items():
        monkeypatch.setenv(name, value)
    launch._notice.cache_clear()
    assert run(["data", "list"]) == 0
    out, err = capsys.readouterr()
    assert "digits" in out
    name, value = next(iter(stray.items()))
    assert err.startswith(f"rhobust: '{name}={value}' in the environment is ignored: without ")
    assert err.count("\n") == 1


def test_a_single_process_of_a_launcher_is_no_stray_one(monkeypatch, capsys):
    for name, value in launch.SINGLE.items():
        monkeypatch.setenv(name, value)
    assert not launch.launched()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("rank", "world"), [("2", "2"), ("-1", "2"), ("one", "2"), ("0", "0")])
def test_a_rank_that_is_none_of_the_world_is_refused(monkeypatch, capsys, rank, world):
    for name, value in {"RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert run(["data", "list"]) == 2
    assert f"RANK must be a number from 0 to WORLD_SIZE - 1, got RANK='{rank}'" in capsys.readouterr().err


def test_a_command_that_met_nobody_speaks_whatever_its_rank(monkeypatch, capsys):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert run(["data", "list"]) == 0
    assert "digits" in capsys.readouterr().out


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
