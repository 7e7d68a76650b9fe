"""Threads that wait for each other sleep while others crowd the cores, and spin before and after."""

import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from rhobust import SmoothedClassifier, cores
from rhobust.cores import Look

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
WAITS = """
import time, torch
from rhobust.cores import Idle, openmp_libraries

def spent():
    start = time.process_time()
    for _ in range(20):
        torch.ones(1 << 20).add_(1)
        time.sleep(0.03)  # the other thread waits for more work
    return time.process_time() - start

torch.set_num_threads(2)
spent()
before, idle = spent(), Idle()
asleep = spent()
idle.release()
print(len(openmp_libraries()), before, asleep, spent())
"""


def look(*, waited=0.0, busy=0.0, own=0.0, seconds=0.0):
    return Look(time=seconds, waited=waited, busy=busy, own=own)


@pytest.mark.parametrize(
    ("waited", "others", "threads", "asleep", "crowded"),
    [
        (0.0, 0.0, 2, False, False),  # alone
        (1.0, 1.0, 2, False, True),  # a competitor of two threads
        (0.1, 1.0, 2, False, False),  # others are polite: nobody waits
        (0.6, 0.1, 2, False, False),  # its own threads wait for each other
        (0.6, 0.9, 1, False, False),  # one thread has a core
        (0.1, 1.0, 2, True, True),  # asleep, it waits less
        (0.6, 0.1, 2, True, False),  # the competitor has left
    ],
)
def test_threads_sleep_where_others_leave_too_few_cores_and_they_wait(waited, others, threads, asleep, crowded):
    now = look(waited=10 + waited / 2, busy=20 + (others + 1) / 2, own=5.5, seconds=100.5)
    before = look(waited=10, busy=20, own=5, seconds=100)
    assert now.crowded(before, threads, cores=2, asleep=asleep) is crowded


@linux
def test_a_look_counts_the_work_of_this_process():
    before, until = Look.now(), time.process_time() + 0.3
    while time.process_time() < until:
        pass
    after = Look.now()
    assert 0.25 <= after.own - before.own <= after.busy - before.busy + 0.1
    assert after.waited >= before.waited
    assert after.time - before.time >= 0.25


@linux
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: nobody waits")
def test_idle_threads_let_the_others_sleep_until_they_are_released():
    environment = {
        name: value for name, value in os.environ.items() if name not in (*cores.POLICIES, "OMP_NUM_THREADS")
    }
    done = subprocess.run([sys.executable, "-c", WAITS], env=environment, capture_output=True, text=True, check=True)
    libraries, before, asleep, after = map(float, done.stdout.split())
    if not libraries:
        pytest.skip("torch has another OpenMP here")
    assert asleep < 0.6 * before
    assert asleep < 0.6 * after


def test_idle_threads_come_with_a_competitor_and_go_with_it(monkeypatch):
    held, waited, others = [], (0, 1, 1, 2, 3), (0, 1, 2, 2, 2)  # who comes in the first second leaves after the second
    looks = [look(seconds=second, waited=waited[second], busy=others[second]) for second in range(5)]

    class Held:
        def __init__(self):
            held.append(f"kept, {len(looks)} looks left")

        def release(self):
            held.append(f"released, {len(looks)} looks left")

    def now():
        if not looks:
            raise OSError
        return looks.pop(0)

    monkeypatch.setattr(cores, "Idle", Held)
    monkeypatch.setattr(cores, "PAUSE", 0)
    monkeypatch.setattr(Look, "now", now)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    cores._watch(threading.Event())
    assert held == ["kept, 3 looks left", "released, 1 looks left"]


@pytest.fixture
def watched(monkeypatch):
    """What each watch was told at its end, in their order."""
    told = []
    monkeypatch.setattr(cores, "_watch", lambda ended: told.append(ended))
    monkeypatch.setattr(cores.sys, "platform", "linux")
    for name in cores.POLICIES:
        monkeypatch.delenv(name, raising=False)
    return told


@pytest.mark.parametrize("policy", cores.POLICIES)
def test_the_environments_own_words_are_heeded(monkeypatch, policy, watched):
    monkeypatch.setenv(policy, "passive")
    cores._begin()
    monkeypatch.delenv(policy)
    cores._begin()
    deadline = time.monotonic() + 10
    while not watched and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(watched) == 1


def test_the_cores_are_watched_while_votes_are_counted_from_python_and_no_longer(monkeypatch, watched):
    class AtOnce:
        """A thread whose function is called as it starts: another one may begin when all votes are counted."""

        def __init__(self, target, args, **_):
            self.start = lambda: target(*args)

    monkeypatch.setattr(cores, "threading", SimpleNamespace(Thread=AtOnce, Event=threading.Event))
    classifier = SmoothedClassifier(torch.nn.Flatten().eval(), 0.5, 16)
    seen = []
    classifier.model.register_forward_hook(lambda *_: seen.extend(not one.is_set() for one in watched))
    classifier.certify(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), n=2000)
    assert seen
    assert all(seen)
    assert all(one.is_set() for one in watched)


def test_a_short_call_does_not_look(monkeypatch):
    looks, ended = [], threading.Event()
    monkeypatch.setattr(Look, "now", lambda: looks.append(1))
    ended.set()
    cores._watch(ended)
    assert not looks


def test_where_no_thread_can_be_started_votes_are_counted_all_the_same(monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    for name in cores.POLICIES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    classifier = SmoothedClassifier(torch.nn.Flatten().eval(), 0.5, 16)
    assert len(classifier.certify(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), n=200)) == 2


def test_a_system_that_does_not_say_what_its_threads_do_is_left_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(cores, "PROC", tmp_path)
    cores._watch(threading.Event())
