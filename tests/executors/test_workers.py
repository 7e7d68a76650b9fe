"""Blocks to workers: each block comes once, whoever dies, and nobody waits for the next one."""

import os
import time
from pathlib import Path

import pytest

from rhobust.evaluation import Certify
from rhobust.evaluation.engine import Pace
from rhobust.executors import Local, Task, WorkerError
from rhobust.executors.payload import Payload
from rhobust.executors.workers import ATTEMPTS, Event, Worker
from tests.executors.scripted import Scripted


def rows(shared, settings, block, progress):
    if settings in block:
        raise KeyError(settings)
    return [{"index": index, "value": shared * index} for index in block]


BLOCKS = [[first, first + 1] for first in range(0, 40, 2)]
TASK = Task(rows, 3)


@pytest.mark.parametrize("deaths", [0, 3, 8])
@pytest.mark.parametrize("workers", [1, 3, 50])
def test_each_block_comes_once_in_whatever_order_and_whoever_dies(workers, deaths):
    executor = Scripted(workers, seed=deaths, deaths=deaths)
    found = list(executor.map(TASK, BLOCKS))
    assert sorted(block for block, _ in found) == BLOCKS
    assert all([row["index"] for row in of] == block for block, of in found)
    assert sorted(executor.blocks) == BLOCKS  # nothing is computed twice
    assert workers == 1 or [block for block, _ in found] != BLOCKS


def test_a_block_that_is_interrupted_before_its_first_row_is_not_handed_back():
    def stopped(shared, settings, block, progress):
        yield from rows(shared, settings, block[:1], progress) if block[0] else ()
        raise KeyboardInterrupt

    for block in ([0, 1], [2, 3]):
        found = []
        with pytest.raises(KeyboardInterrupt):
            found.extend(Local().map(Task(stopped, 3), [block]))
        assert found == []


class Deadly(Scripted):
    """Every worker dies of its first block."""

    def events(self):
        if self.new:
            return [Event("ready", self.new.pop())]
        (worker, _), *_ = self.given
        self.given = {key: block for key, block in self.given.items() if key[0] != worker}
        self.new.append(worker + 1000)
        return [Event("lost", worker)]


class Repeating(Scripted):
    """Every worker says twice that it is ready: for the task before, and, with a block in its hands, for this one."""

    def events(self):
        found = super().events()
        if not hasattr(self, "said"):
            self.said = found
            return found
        repeated, self.said = self.said, []
        return [*repeated, *found]


def test_a_worker_that_is_ready_twice_loses_no_block():
    found = list(Repeating(3).map(TASK, BLOCKS))
    assert sorted(block for block, _ in found) == BLOCKS


def test_a_block_that_ends_every_worker_is_given_up():
    with pytest.raises(WorkerError, match=f"examples 0 to 1 must not end their worker, but {ATTEMPTS} workers died"):
        list(Deadly(1).map(TASK, BLOCKS))


def test_a_worker_has_the_next_block_before_it_is_done_but_not_towards_the_end():
    executor = Scripted(2)
    list(executor.map(TASK, BLOCKS))
    assert executor.largest == {0: 2, 1: 2}
    few = Scripted(20)
    list(few.map(TASK, BLOCKS))
    assert set(few.largest.values()) == {1}


def test_what_a_worker_raises_is_raised_here():
    with pytest.raises(KeyError, match="7"):
        list(Scripted().map(Task(rows, 3, 7), BLOCKS))


def test_no_blocks_need_no_worker():
    assert list(Scripted(0).map(TASK, [])) == []


def test_local_hands_back_whole_examples():
    found = list(Local().map(TASK, [list(range(250))]))
    assert [len(block) for block, _ in found] == [100, 100, 50]
    assert [row["index"] for _, of in found for row in of] == list(range(250))


def test_the_speed_that_is_shown_leaves_out_the_start_up(monkeypatch):
    clock = iter([0.0, 60.0, 70.0, 80.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    pace = Pace(Certify(n=900, n0=100), total=100, done=0)
    notes = []
    for _ in range(3):
        pace.add([{"index": index, "n": 900} for index in range(10)], 10, 2)
        notes.append(pace.note)
    assert notes[1:] == ["2 workers, 1,000 samples/s, 80 s left", "2 workers, 1,000 samples/s, 70 s left"]


def test_relative_paths_lead_from_the_drivers_folder_in_a_worker_too(tmp_path, monkeypatch):
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(here)
    rest = Payload.pack(Task(os.path.join, None))
    monkeypatch.chdir(elsewhere)  # where a cluster was started
    assert Worker().prepare(1, lambda: None, rest) is None
    assert Path.cwd() == here
    monkeypatch.chdir(elsewhere)
    here.rmdir()
    assert Worker().prepare(1, lambda: None, rest) is None
    assert Path.cwd() == elsewhere
