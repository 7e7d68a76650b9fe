"""The walk: what a kill leaves is taken up, and several processes write the record of one."""

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from evaluation.killing import ENVIRONMENT, killed
from rhobust import lock_holder
from rhobust.certificates import batch_size
from rhobust.certificates.passes import asked_batch_size
from rhobust.cli import run as cli
from rhobust.evaluation import Evaluation, Untargeted, engine, run
from rhobust.executors import Executor
from rhobust.lock import BusyError, LostError
from rhobust.lock_holder import Holder
from rhobust.progress import no_progress
from rhobust.records import RecordWriter, read_record
from tests.executors.scripted import Scripted


@dataclass(frozen=True, kw_only=True)
class Double(Evaluation):
    """Two rows per example."""

    kind: ClassVar[str] = "double"
    promised: int = 2
    size: ClassVar[int] = 3
    blocks: ClassVar[list[list[int]]] = []
    meanwhile: ClassVar[dict] = {}
    """What happens before a block is computed, by its first example."""

    def resolve(self, target):
        return self

    def examples(self, target):
        return range(10)

    def rows_per_example(self, target):
        return self.promised

    def block(self, target):
        return self.size

    def rows(self, target, examples, progress):
        self.blocks.append(list(examples))
        self.meanwhile.pop(examples[0], lambda: None)()
        yield from ({"index": index, "half": half, "value": 2 * index + half} for index in examples for half in (0, 1))

    def summarise(self, target, rows):
        return {"total": sum(row["value"] for row in rows)}


class Doubling:
    """Runs the evaluation into a folder and remembers what it was asked for."""

    def __init__(self, folder):
        self.folder, self.blocks = folder, []

    @property
    def asked(self):
        return [index for block in self.blocks for index in block]

    def __call__(self, block=3, progress=no_progress, **options):
        Double.size, Double.blocks = block, self.blocks
        return run(Double(), Untargeted(self.folder), progress=progress, **options)

    def writer(self):
        return RecordWriter(self.folder, "double", "", Double().settings(Untargeted(self.folder)))


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


def test_rows_of_workers_are_written_as_they_come_and_ordered_in_the_end(tmp_path, whole, monkeypatch):
    monkeypatch.setattr(engine, "SOON", 0.0)
    first, unordered = Doubling(tmp_path), False
    for seed in range(3):
        with pytest.raises(KeyboardInterrupt, match=r"^\d+ of 10 examples are in .*double-.*jsonl$"):
            first(block=1, executor=Scripted(4, seed=seed, deaths=1, stop=2))
        rows = read_record(tmp_path / whole.path.name).rows
        assert len(rows) == 4 * (seed + 1)
        unordered |= rows != sorted(rows, key=lambda row: row["value"])
    assert unordered
    record = first(block=1, executor=Scripted(2))
    assert len(first.asked) == 10 + 3  # what was computed when the driver was interrupted is computed again
    assert record.rows == whole.rows
    assert read_record(record.path).rows == whole.rows
    assert first(executor=Scripted(0)).rows == whole.rows


def test_blocks_are_the_same_whoever_computes_them(tmp_path, whole):
    lines = whole.path.read_text().splitlines(keepends=True)
    (tmp_path / whole.path.name).write_text("".join(lines[:12]))
    executor, again = Scripted(2), Doubling(tmp_path)
    assert again(block=4, executor=executor).rows == whole.rows
    assert sorted(executor.blocks) == [[4, 5, 6, 7], [8, 9]]


def test_blocks_that_can_be_cut_anywhere_shrink_towards_the_end():
    blocks = engine.small_blocks(range(10_000), 8)
    assert [index for block in blocks for index in block] == list(range(10_000))
    sizes = [len(block) for block in blocks]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == engine.SMALL
    assert sizes[-32:] == [1] * 32
    assert [len(block) for block in engine.small_blocks(range(3), 512)] == [1, 1, 1]


def test_a_second_process_leaves_or_waits_and_continues_what_the_first_one_left(tmp_path, whole):
    second, first, lines = Doubling(tmp_path), Doubling(tmp_path).writer(), []
    with first.owned():
        first.append(whole.rows[:8])
        before = first.path.read_bytes()
        with pytest.raises(BusyError, match="is writing it; wait for it"):
            second()
        assert first.path.read_bytes() == before
        asked = threading.Event()
        waiting = ThreadPoolExecutor(1).submit(
            second, progress=lambda event: (lines.append(event), asked.set()), wait=True
        )
        assert asked.wait(60)
        first.append(whole.rows[8:12])
    assert waiting.result(60).rows == whole.rows
    assert second.asked == [6, 7, 8, 9]
    assert lines[0].startswith("waiting for ")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [whole.path.name]


def test_who_waits_for_a_record_that_gets_finished_returns_it_unchanged(tmp_path, whole):
    second, first = Doubling(tmp_path), Doubling(tmp_path).writer()
    asked = threading.Event()
    with first.owned():
        waiting = ThreadPoolExecutor(1).submit(second, progress=lambda event: asked.set(), wait=True)
        assert asked.wait(60)
        first.append(whole.rows)
        first.finish({"total": 190, "seconds": 1.0})
        content = first.path.read_bytes()
    assert waiting.result(60).summary == {"total": 190, "seconds": 1.0}
    assert first.path.read_bytes() == content
    assert second.asked == []


def test_a_sleeper_that_wakes_after_another_machine_finished_stops_without_a_trace(tmp_path, whole, monkeypatch):
    first, second = Doubling(tmp_path), Doubling(tmp_path)

    def sleep():
        (entry,) = first.writer().lock.iterdir()
        elsewhere = replace(Holder.parse(entry.name), machine="0" * 8)
        entry.rename(entry.with_name(elsewhere.name))
        with monkeypatch.context() as patch:
            patch.setattr(lock_holder, "LIMIT", -1.0)
            second()
        kept.append((tmp_path / whole.path.name).read_bytes())

    kept = []
    monkeypatch.setitem(Double.meanwhile, 6, sleep)
    with pytest.raises(LostError, match="by another process while this one"):
        first()
    assert second.asked == [6, 7, 8, 9]
    assert (tmp_path / whole.path.name).read_bytes() == kept[0]
    assert read_record(tmp_path / whole.path.name).rows == whole.rows
    assert len(list(tmp_path.iterdir())) == 2  # the record, and that of `whole`


@pytest.mark.parametrize(("block", "kept"), [(None, 4), (3, 4)])
def test_an_interruption_writes_whole_examples_and_says_how_many(tmp_path, whole, monkeypatch, block, kept):
    doubling, rows = Doubling(tmp_path / "interrupted"), Double.rows

    def interrupted(self, target, examples, progress):
        for row in rows(self, target, examples, progress):
            if row["value"] == 9:
                raise KeyboardInterrupt
            yield row

    with monkeypatch.context() as patch:
        patch.setattr(Double, "rows", interrupted)
        with pytest.raises(KeyboardInterrupt, match=f"^{kept} of 10 examples are in .*double-.*jsonl$"):
            doubling(block)
    (path,) = doubling.folder.glob("double-*.jsonl")
    assert [row["index"] for row in read_record(path).rows] == [index for index in range(kept) for _ in (0, 1)]
    assert doubling(block).rows == whole.rows


def test_an_interruption_before_the_first_row_names_no_record(tmp_path, monkeypatch):
    def interrupted(self, target, examples, progress):
        raise KeyboardInterrupt

    monkeypatch.setattr(Double, "rows", interrupted)
    with pytest.raises(KeyboardInterrupt, match=r"^none of 10 examples is finished yet$"):
        Doubling(tmp_path)()
    assert not list(tmp_path.glob("*.jsonl"))


def test_more_rows_than_promised_are_refused(tmp_path):
    with pytest.raises(ValueError, match="must hold 1 rows per example, got 2 of 0"):
        run(Double(promised=1), Untargeted(tmp_path), progress=no_progress)


ATTACK = ["attack:eot", "--attack.steps", "3", "--attack.draws", "2", "--votes", "10", "--limit", "150"]
RADII = ["--radii", "0", "0.25", "0.5", "0.75", "1", "1.25", "1.5", "1.75"]


def without_time(path):
    record = read_record(path)
    return record.settings, record.rows, {**record.summary, "seconds": None}


@pytest.fixture(scope="module")
def uninterrupted(folder):
    assert cli(["attack", str(folder), *ATTACK, *RADII, "--quiet"]) == 0
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


@pytest.mark.slow
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


@dataclass(frozen=True, kw_only=True)
class Asked(Double):
    """The batch size that is asked for where the rows are computed."""

    kind: ClassVar[str] = "asked"

    def rows(self, target, examples, progress):
        yield from (
            {"index": index, "half": half, "value": asked_batch_size()} for index in examples for half in (0, 1)
        )


class Elsewhere(Executor):
    """Computes in threads, which like other processes know nothing of what was asked for here."""

    def size(self, device):
        return 1

    def map(self, task, blocks, notify=no_progress):
        with ThreadPoolExecutor(1) as threads:
            for block in blocks:
                yield block, threads.submit(lambda block=block: list(task(block))).result()


def test_workers_take_the_batch_size_that_the_driver_was_asked_for(tmp_path):
    with batch_size(48):
        found = run(Asked(), Untargeted(tmp_path), executor=Elsewhere(), progress=no_progress)
    assert {row["value"] for row in found.rows} == {48}


def test_what_is_neither_evaluation_nor_target_is_refused(target, tmp_path):
    for wrong, message in (
        ((target, Double()), "evaluation must be an evaluation such as Certify.*, got a Target"),
        ((Double, target), "evaluation must be .*, got the class Double"),
        ((Double(), tmp_path), "target must be a Target, .*, got a PosixPath"),
    ):
        with pytest.raises(ValueError, match=message):
            run(*wrong)
