"""One writer: who owns a lock, when it is taken over, and that a writer who lost it writes nothing."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import replace

import pytest

from rhobust import lock, lock_holder
from rhobust.lock import BusyError, LostError, identity, owned
from rhobust.lock_holder import Holder
from rhobust.records import RecordWriter, read_record

ELSEWHERE = {"machine": "0" * 8, "host": "b"}


@pytest.fixture
def target(tmp_path):
    return tmp_path / "x.lock"


def leave(target, **changes):
    """Leave the lock of a process that was killed."""
    holder = replace(Holder.of_this_process(), **changes)
    (target / holder.name).mkdir(parents=True)
    return target / holder.name


def take(target, **options):
    return owned(target, target.with_name("x.jsonl"), **options)


def test_a_second_owner_is_refused_and_a_lock_leaves_nothing(target):
    with take(target) as first:
        first.check()
        with pytest.raises(BusyError, match=rf"x\.jsonl must have one writer, but process {os.getpid()} on this mach"):
            take(target).__enter__()
        assert [path.name for path in target.parent.iterdir()] == ["x.lock"]
    assert not list(target.parent.iterdir())


def test_a_folder_that_gets_no_file_is_removed(tmp_path):
    with take(tmp_path / "new" / "x.lock"):
        assert (tmp_path / "new").is_dir()
    assert not (tmp_path / "new").exists()


def test_where_no_lock_can_be_made_the_line_names_the_file_that_was_to_be_written(tmp_path):
    # Nobody can be kept from writing into a folder by whoever may do anything: the name is too long instead.
    with pytest.raises(OSError, match=r"too long: '.*record'$"), owned(tmp_path / ("l" * 250), tmp_path / "record"):
        pass


def test_the_lock_of_a_process_that_is_gone_is_taken_over(target):
    done = subprocess.run([sys.executable, "-S", "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    number_used_again = {"process": 1, "started": 10**9}
    for changes in ({"process": int(done.stdout)}, {"started": 1}, {}, number_used_again):
        entry = leave(target, **changes)
        (entry / "half-written").write_text("x")
        with take(target) as ours:
            assert [path.name for path in target.iterdir()] == [ours._entry.name]
            assert not list(ours._entry.iterdir())
        assert not target.exists()


def test_a_zombie_is_gone(target):
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    while lock_holder._status(process.pid)[0] != "Z":
        time.sleep(0.01)
    leave(target, process=process.pid, started=lock_holder._status(process.pid)[1])
    with take(target):
        pass
    process.wait()


def test_a_suspended_process_of_this_machine_keeps_its_lock(target):
    process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    process.send_signal(signal.SIGSTOP)
    while lock_holder._status(process.pid)[0] != "T":
        time.sleep(0.01)
    leave(target, process=process.pid, started=lock_holder._status(process.pid)[1])
    with pytest.raises(BusyError, match=f"process {process.pid} on this machine is writing it, but is suspended"):
        take(target).__enter__()
    process.kill()
    process.wait()


def test_of_another_machine_the_heartbeat_by_the_file_servers_clock_decides(target, monkeypatch):
    entry = leave(target, process=12, **ELSEWHERE)
    os.utime(entry, (0, 0))  # a date that anybody can set says nothing
    with pytest.raises(BusyError, match=r"process 12 on b may still be writing it: its last heartbeat was 0 s ago"):
        take(target).__enter__()
    monkeypatch.setattr(lock_holder, "LIMIT", 0.05)
    time.sleep(0.1)
    with take(target):
        pass


def test_heartbeats_keep_a_lock(target, monkeypatch):
    monkeypatch.setattr(lock, "BEAT", 0.02)
    with take(target) as first:
        before = first._holder.beat
        while first._holder.beat < before + 3:
            time.sleep(0.01)


def test_an_owner_that_gave_a_heartbeat_since_it_was_judged_is_not_taken_over(target):
    with take(target) as first:
        judged = first._entry
        first.check()
        assert not lock._rename(judged, target / "theirs", target / "theirs")
        first.check()


def test_of_many_that_find_a_stale_lock_one_gets_it(target, monkeypatch):
    monkeypatch.setattr(lock, "POLL", 0.01)
    everybody, inside, most = threading.Barrier(8), [], []

    def compete():
        everybody.wait()
        with take(target, wait=60) as ours:
            inside.append(ours)
            most.append(len(inside))
            ours.check()
            inside.remove(ours)

    for _ in range(5):
        leave(target, started=1)
        threads = [threading.Thread(target=compete) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert most == [1] * 40
    assert not list(target.parent.iterdir())


def test_who_waits_is_told_so_once_and_gets_the_lock(target):
    first, lines = take(target), []
    first.__enter__()
    timer = threading.Timer(0.5, first.__exit__, (None, None, None))
    timer.start()
    with take(target, wait=60, notify=lines.append):
        assert len(lines) == 1
        assert lines[0].startswith(f"waiting for {target.with_name('x.jsonl')}: process {os.getpid()} on this machine")
    timer.join()


@pytest.mark.parametrize("make", ["file", "link", "fifo", "rubbish"])
def test_what_is_no_lock_is_one_line(target, make, monkeypatch):
    monkeypatch.setattr(lock, "LOOKS", 3)
    {
        "file": lambda: target.write_text("{}"),
        "link": lambda: target.symlink_to(target.parent),
        "fifo": lambda: (target.mkdir(), os.mkfifo(target / Holder.of_this_process().name)),
        "rubbish": lambda: (target / "notes").mkdir(parents=True),
    }[make]()
    with pytest.raises(BusyError, match=r"x\.lock is no lock: delete it"):
        take(target).__enter__()


def test_what_a_killed_process_prepared_is_swept(target):
    gone = replace(Holder.of_this_process(), started=1)
    waiting = replace(gone, **ELSEWHERE)
    for holder in (gone, waiting):
        (target.with_name(f".x.lock-{holder.name}") / holder.name).mkdir(parents=True)
    with take(target):
        pass
    assert [path.name for path in target.parent.iterdir()] == [f".x.lock-{waiting.name}"]


@pytest.fixture
def sleep(monkeypatch):
    """Lets another machine take over from an owner that sleeps."""
    with ExitStack() as others:

        def fall_asleep(ours):
            name = replace(ours._holder, **ELSEWHERE)
            ours._entry.rename(ours._lock / name.name)
            ours._holder = name
            with monkeypatch.context() as patch:
                patch.setattr(lock_holder, "LIMIT", -1.0)
                return others.enter_context(take(ours._lock))

        yield fall_asleep


def test_an_owner_that_was_taken_over_writes_nothing(target, sleep):
    path = target.with_name("x.jsonl")
    path.write_bytes(b"theirs\n")
    ownership = take(target)
    ours = ownership.__enter__()
    sleep(ours)
    before = sorted(target.iterdir())
    for act in (
        ours.check,
        lambda: ours.replace(path, b"ours"),
        lambda: ours.append(path, identity(path), b"ours"),
    ):
        with pytest.raises(LostError, match=r"x\.jsonl was taken over by another process"):
            act()
    ownership.__exit__(None, None, None)
    assert path.read_bytes() == b"theirs\n"
    assert sorted(target.iterdir()) == before


def test_an_owner_that_sleeps_between_its_check_and_its_write_does_no_harm(tmp_path, sleep):
    ours, theirs = (RecordWriter(tmp_path, "certify", "", {"n": 1}) for _ in range(2))

    def wake_later(own):
        """The other machine takes over and finishes at the moment when this process is about to write."""
        check = own.check

        def once():
            check()
            own.check = check
            theirs._owner = sleep(own)
            theirs.read()
            theirs.append([{"index": 1}])
            theirs.finish({"total": 1})

        own.check = once

    with ours.owned():
        ours.append([{"index": 0}])
        wake_later(ours._owner)
        with pytest.raises(LostError):
            ours.append([{"index": 9}])
        with pytest.raises(LostError):
            ours.rewrite([{"index": 9}])
        with pytest.raises(LostError):
            ours.finish({})
    record = read_record(ours.path)
    assert (record.rows, record.summary, record.intact) == ([{"index": 0}, {"index": 1}], {"total": 1}, True)


def test_a_whole_file_is_not_put_in_place_after_the_owner_was_taken_over(target, monkeypatch, sleep):
    path = target.with_name("weights")
    path.write_bytes(b"theirs")
    ownership = take(target)
    ours = ownership.__enter__()
    fsync = os.fsync

    def wake_later(descriptor):
        fsync(descriptor)
        sleep(ours)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", wake_later)
        with pytest.raises(LostError):
            ours.replace(path, b"ours")
    assert path.read_bytes() == b"theirs"
    ownership.__exit__(None, None, None)


def test_a_file_that_another_program_changed_is_left_alone(tmp_path):
    writer = RecordWriter(tmp_path, "certify", "", {"n": 1})
    writer.append([{"index": 0}])
    for change in (
        lambda: writer.path.write_bytes(writer.path.read_bytes() + b'{"index": 1}\n'),
        lambda: shutil.copy(writer.path, tmp_path / "copy").replace(writer.path),
        writer.path.unlink,
    ):
        change()
        content = writer.path.read_bytes() if writer.path.exists() else None
        for act in (lambda: writer.append([{"index": 2}]), lambda: writer.rewrite([]), lambda: writer.finish({})):
            with pytest.raises((LostError, FileNotFoundError)):
                act()
        assert (writer.path.read_bytes() if writer.path.exists() else None) == content
        writer.read()


def test_a_full_disk_leaves_no_part_of_a_line(tmp_path, monkeypatch):
    writer = RecordWriter(tmp_path, "certify", "", {"n": 1})
    writer.append([{"index": 0}])
    before = writer.path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            writer.append([{"index": 1}])
    assert writer.path.read_bytes() == before
    writer.append([{"index": 1}])
    assert [row["index"] for row in read_record(writer.path).rows] == [0, 1]


def test_the_lock_of_a_process_that_finished_and_was_killed_is_removed(target):
    leave(target, started=1)
    lock.tidy(target)
    assert not target.exists()
    leave(target.with_name(f".x.lock-{replace(Holder.of_this_process(), started=1).name}"), started=1)
    lock.tidy(target)
    assert not list(target.parent.iterdir())
    leave(target, **ELSEWHERE)
    lock.tidy(target)
    assert target.exists()
