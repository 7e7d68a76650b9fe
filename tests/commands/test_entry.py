"""The entry point: version, silent processes, exceptions as one line, streams that are closed or full, and records."""

import gzip
import json
import os
import shlex
import stat
import subprocess
import sys

import pytest

from rhobust import process as launchers
from rhobust.cli import main, run
from rhobust.cores import watched_cores
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
    launchers._notice.cache_clear()
    assert run(["data", "list"]) == 0
    out, err = capsys.readouterr()
    assert "digits" in out
    name, value = next(iter(stray.items()))
    assert err.startswith(f"rhobust: '{name}={value}' in the environment is ignored: without ")
    assert err.count("\n") == 1


def test_a_single_process_of_a_launcher_is_no_stray_one(monkeypatch, capsys):
    for name, value in launchers.SINGLE.items():
        monkeypatch.setenv(name, value)
    assert not launchers.launched()
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
def test_a_traceback_is_shown_on_request_only(capsys, asked):
    assert run(["dance", *["--debug"] * asked]) == 2
    err = capsys.readouterr().err
    assert ("Traceback" in err) == asked
    assert err.splitlines()[-1].startswith("rhobust: the command must be one of evaluate, quickstart, ")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyError("x"), 70, "internal error, please report it: KeyError: 'x'; --debug shows the traceback"),
        (RecursionError("deep"), 70, "internal error, please report it: RecursionError: deep; --debug shows"),
        (RuntimeError(""), 70, "internal error, please report it: RuntimeError: RuntimeError; --debug shows"),
        (MemoryError(), 2, "there must be enough memory, but there is not enough: "),
        (RuntimeError("can't allocate 5 bytes"), 2, "there must be enough memory, but can't allocate 5 bytes: "),
        (OSError(28, "No space left on device", "a/b"), 2, "a/b: No space left on device"),
        (SystemExit(0), 2, "a network or data set must not end the process, but its code did: SystemExit(0)"),
        (BrokenPipeError(32, "Broken pipe"), 2, "a network or data set must not write to a closed pipe"),
        (ValueError("two\nlines \x1b[31m\u202e"), 2, r"two lines \x1b[31m\u202e"),
        (ValueError("x" * 5000), 2, "x" * 400),
    ],
)
def test_every_exception_is_one_printable_line(monkeypatch, capsys, error, code, line):
    def fail(_):
        raise error

    monkeypatch.setattr("rhobust.commands.data.List.run", fail)
    assert run(["data", "list"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"rhobust: {line}")
    assert err.count("\n") == 1
    assert len(err) < 1100
    assert err[:-1].isprintable()


@pytest.mark.parametrize("place", ["__enter__", "__exit__"])
def test_an_interrupt_as_the_look_at_the_cores_begins_or_ends_is_one_line(monkeypatch, capsys, place):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(type(watched_cores), place, stop)
    monkeypatch.setattr("rhobust.cli.catch_signals", lambda: None)
    monkeypatch.setattr("sys.argv", ["rhobust", "--version"])
    with pytest.raises((SystemExit, KeyboardInterrupt)) as ended:
        main()
    assert ended.value.args == (130,)
    assert capsys.readouterr().err.startswith("rhobust: interrupted; ")
    monkeypatch.undo()
    if place == "__exit__":
        watched_cores.__exit__()  # which the interrupt left open


def test_what_code_prints_is_not_the_result_and_names_are_shown_escaped(monkeypatch, capsys):
    entry = {"name": "a\x1b[2J", "description": "b\nc", "where": None}
    monkeypatch.setattr("rhobust.commands.data.List.run", lambda _: sys.stdout.write("noise\n") and [entry])
    assert run(["data", "list", "--json"]) == 0
    out, err = capsys.readouterr()
    assert (json.loads(out), err) == ([entry], "noise\n")
    assert run(["data", "list"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("a\\x1b[2J  b\\nc")


def process(arguments, **options):
    """A command in a process of its own, with a line for its end."""
    command = [sys.executable, "-m", "rhobust", *arguments]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60, check=False, **options)


def test_a_closed_output_is_one_line(tmp_path):
    shell = ["sh", "-c", f"{shlex.quote(sys.executable)} -m rhobust data list >&-"]
    done = subprocess.run(shell, stderr=subprocess.PIPE, text=True, timeout=60, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "rhobust: standard output must be open, but it is closed\n")


def test_a_full_output_is_one_line(tmp_path):
    try:
        os.mknod(tmp_path / "full", 0o666 | stat.S_IFCHR, os.makedev(1, 7))
        output = (tmp_path / "full").open("wb")
    except OSError:
        pytest.skip("no device may be made here")
    with output:
        done = process(["data", "list"], stdout=output, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        2,
        "rhobust: standard output must take the result, but: No space left on device\n",
    )


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
