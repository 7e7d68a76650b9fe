"""A record under any order of appends, kills, sleepers that wake, take-overs and ends: a model says what is on disk."""

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rhobust import lock
from rhobust.lock import BusyError
from rhobust.lock_holder import Holder
from rhobust.records import RecordWriter, read_record

EXAMPLES = int(os.environ.get("RHOBUST_FUZZ_EXAMPLES", "15"))


class Process:
    """A process that owns a record and writes it; several live in this one."""

    def __init__(self, folder):
        self.writer = RecordWriter(folder, "certify", "", {"n": 1})
        self.owning = self.writer.owned()
        self.owning.__enter__()
        self.token = self.writer._owner._holder.token
        self.owner = self.writer._owner

    def leave(self):
        self.owning.__exit__(None, None, None)

    def vanish(self):
        """End without a word, as by a kill."""
        self.owner._stop.set()
        self.owner._thread.join()


WHICH = st.integers(0, 11)
somebody = precondition(lambda machine: machine.living)


class OneRecord(RuleBasedStateMachine):
    """One record, and any number of processes that want to write it."""

    def __init__(self):
        super().__init__()
        self.stack = ExitStack()
        self.folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.living, self.gone, self.owner = [], set(), None
        self.rows, self.summary = [], None
        # Whether a process counts as gone is for the model to say: it was killed, or gave no heartbeat for long.
        self.stack.enter_context(mock.patch.object(Holder, "gone", lambda holder, age: holder.token in self.gone))
        self.stack.enter_context(mock.patch.object(lock, "BEAT", 60.0))
        self.stack.enter_context(mock.patch.object(os, "fsync"))  # nobody pulls the plug here
        self.path = RecordWriter(self.folder, "certify", "", {"n": 1}).path

    def teardown(self):
        for process in self.living:
            process.vanish()
        self.stack.close()

    def pick(self, which):
        return self.living[which % len(self.living)]

    def content(self):
        return self.path.read_bytes() if self.path.exists() else None

    @rule()
    def start(self):
        if self.owner is not None and self.owner.token not in self.gone:
            with pytest.raises(BusyError):
                Process(self.folder)
            return
        self.owner = Process(self.folder)
        self.living.append(self.owner)
        assert (self.owner.writer.rows, self.owner.writer.summary) == (self.rows, self.summary)

    @somebody
    @rule(which=WHICH, count=st.integers(1, 3))
    def append(self, which, count):
        rows = [{"index": len(self.rows) + place} for place in range(count)]
        self._write(self.pick(which), lambda writer: writer.append(rows), rows=self.rows + rows)

    @somebody
    @rule(which=WHICH, keep=st.integers(0, 3))
    def rewrite(self, which, keep):
        rows = self.rows[:keep]
        self._write(self.pick(which), lambda writer: writer.rewrite(rows), rows=rows)

    @somebody
    @rule(which=WHICH)
    def finish(self, which):
        summary = {"total": len(self.rows)}
        self._write(self.pick(which), lambda writer: writer.finish(summary), rows=self.rows, summary=summary)

    def _write(self, process, write, rows, summary=None):
        """The owner writes; whoever was taken over, and wakes up, writes nothing."""
        before = self.content()
        if process is not self.owner or self.summary is not None:
            with pytest.raises(
                ValueError, match=r"was taken over by|was changed by|must be unfinished to take more rows"
            ):
                write(process.writer)
            assert self.content() == before
        else:
            write(process.writer)
            self.rows, self.summary = rows, summary

    @somebody
    @rule(which=WHICH)
    def leave(self, which):
        process = self.pick(which)
        self.living.remove(process)
        process.leave()
        self.owner = None if process is self.owner else self.owner

    @somebody
    @rule(which=WHICH, half=st.sampled_from(["", '{"index', '{"summary": {}']))
    def kill(self, which, half):
        """In the middle of a line, or between two."""
        process = self.pick(which)
        self.living.remove(process)
        process.vanish()
        self.gone.add(process.token)
        if process is self.owner and self.summary is None and self.path.exists():
            with self.path.open("a") as file:
                file.write(half)

    @somebody
    @rule(which=WHICH)
    def sleep(self, which):
        """Give no heartbeat for so long that others may take over; every later rule may be the awakening."""
        self.gone.add(self.pick(which).token)

    @invariant()
    def the_disk_is_as_the_model_says(self):
        if not self.path.exists():
            assert (self.rows, self.summary) == ([], None)
            return
        record = read_record(self.path)
        assert (record.rows, record.summary, record.intact) == (self.rows, self.summary, True)

    @invariant()
    def a_lock_has_one_owner_and_nothing_else_is_left(self):
        assert len([entry for folder in self.folder.glob("*.lock") for entry in folder.iterdir()]) <= 1
        assert not list(self.folder.glob(".*"))


TestOneRecord = OneRecord.TestCase
TestOneRecord.settings = settings(max_examples=EXAMPLES, stateful_step_count=30, deadline=None, database=None)
