"""The walk: what a kill leaves is taken up, and several processes write the record of one."""

import json
import subprocess
import sys

import pytest

from evaluation.killing import ENVIRONMENT, killed
from rhobust.cli import run
from rhobust.evaluation import walk as walks
from rhobust.evaluation.walk import walk
from rhobust.progress import no_progress
from rhobust.records import RecordWriter, read_record


class Doubling:
    """An evaluation of two rows an example that remembers what it was asked."""

    def __init__(self, folder):
        self.folder, self.blocks = folder, []

    @property
    def asked(self):
        return [index for block in self.blocks for index in block]

    def rows(self, block):
        self.blocks.append(block)
        return [{"index": index, "half": half, "value": 2 * index + half} for index in block for half in (0, 1)]

    def __call__(self, block=3):
        writer = RecordWriter(self.folder, "double", "", {"seed": 0})
        summarise = lambda rows: {"total": sum(row["value"] for row in rows)}  # noqa: E731
        return walk(
            writer, range(10), self.rows, summarise, task="double", progress=no_progress, rows_each=2, block=block
        )


@pytest.fixture
def whole(tmp_path):
    (tmp_path / "whole").mkdir()
    return Doubling(tmp_path / "whole")()


def test_an_example_of_which_a_row_is_missing_is_evaluated_again_with_its_block(tmp_path, whole):
    lines = whole.path.read_text().splitlines(keepends=True)
    (tmp_path / whole.path.name).write_text("".join(lines[:12]) + lines[12][:4])
    again = Doubling(tmp_path)
    assert again(block=4).rows == whole.rows
    assert again.blocks == [[4, 5, 6, 7], [8, 9]]
    assert read_record(tmp_path / whole.path.name).summary == {**whole.summary, "seconds": None}


def test_parts_of_killed_processes_are_taken_up_by_any_number(tmp_path, whole, monkeypatch):
    killed = Doubling(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(walks, "_meet", lambda world: None)
        for rank in (2, 1):
            patch.setattr(walks, "_place", lambda rank=rank: (rank, 3))
            assert killed().summary is None
    assert killed.asked == [2, 5, 8, 1, 4, 7]
    assert sorted(path.name[-11:] for path in tmp_path.glob("*part*")) == ["part-1-of-3", "part-2-of-3"]
    again = Doubling(tmp_path)
    record = again()
    assert again.asked == [0, 3, 6, 9]
    assert record.rows == whole.rows
    assert not list(tmp_path.glob("*part*"))
    assert read_record(record.path) == record
    assert again() == record
    assert again.asked == [0, 3, 6, 9]


def test_more_rows_than_promised_are_refused(tmp_path):
    writer = RecordWriter(tmp_path, "double", "", {})
    with pytest.raises(ValueError, match="must hold 1 rows an example, got 2 of 0"):
        walk(writer, range(3), Doubling(tmp_path).rows, lambda rows: {}, task="double", progress=no_progress)


ATTACK = ["attack:eot", "--attack.steps", "3", "--attack.draws", "2", "--votes", "10", "--limit", "150"]
RADII = ["--radii", "0", "0.25", "0.5", "0.75", "1", "1.25", "1.5", "1.75"]


def without_time(path):
    record = read_record(path)
    return record.settings, record.rows, {**record.summary, "seconds": None}


@pytest.fixture(scope="module")
def uninterrupted(folder):
    assert run(["attack", str(folder), *ATTACK, *RADII, "--quiet"]) == 0
    (path,) = folder.glob("attack-eot-*.jsonl")
    yield path.rename(folder / "uninterrupted")
    (folder / "uninterrupted").unlink()


def test_an_attack_that_was_killed_ends_as_the_uninterrupted_one(folder, uninterrupted):
    command = [sys.executable, "-m", "rhobust", "attack", str(folder), *ATTACK, *RADII, "--json", "--quiet"]
    path = killed(command, folder, "attack-eot-*.jsonl")
    assert read_record(path).summary is None
    result = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr[-2000:]
    settings, rows, summary = without_time(uninterrupted)
    assert without_time(path) == (settings, rows, summary)
    assert {**json.loads(result.stdout)["summary"], "seconds": None} == summary
    path.unlink()


def test_two_processes_write_the_record_of_one(folder, uninterrupted):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "rhobust"]
    command += ["attack", str(folder), *ATTACK, *RADII, "--json", "--quiet"]
    result = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.count("\n") == 1
    (path,) = folder.glob("attack-eot-*.jsonl*")
    assert without_time(path) == without_time(uninterrupted)
    assert len({row["index"] for row in read_record(path).rows}) == 150
    path.unlink()
