"""Freed memory stays with the process inside of the context, goes back afterwards, and the environment is heeded."""

import os
import subprocess
import sys
import threading

import pytest

from rhobust import memory
from rhobust.memory import kept_memory

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
FAULTS = """
import resource
import torch
from rhobust.memory import kept_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(12 << 20)  # 48 MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() >> 20

torch.set_num_threads(1)
outside, before = faults(), resident()
with kept_memory:
    with kept_memory:
        faults()
    inside, kept = faults(), resident()
print(outside, inside, kept - before, resident() - before, faults())
"""


def measured(**variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC"))}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], env=environment | variables, capture_output=True, text=True, check=True
    )
    return [int(word) for word in done.stdout.split()]


@linux
def test_pages_are_cleared_once_and_given_back_at_the_end():
    outside, inside, kept, left, later = measured()
    assert outside > 10 * inside, "every block was fresh, and then none"
    assert kept > 40
    assert left < 8
    assert later > 10 * inside, "blocks of this size are the system's again"


@linux
@pytest.mark.parametrize("variable", ["MALLOC_ARENA_MAX=8", "GLIBC_TUNABLES=glibc.malloc.arena_max=8"])
def test_settings_of_the_environment_are_heeded(variable):
    name, value = variable.split("=", 1)
    outside, inside, *_ = measured(**{name: value})
    assert inside > outside / 2


class Malloc:
    def __init__(self):
        self.calls = []

    def mallopt(self, name, value):
        self.calls.append((name, value))

    def malloc_trim(self, pad):
        self.calls.append("trim")


def test_threads_share_it_and_the_last_one_ends_it(monkeypatch):
    malloc = Malloc()
    monkeypatch.setattr(memory, "_gnu_malloc", lambda: malloc)
    entered, leave = threading.Event(), threading.Event()

    @kept_memory
    def work():
        entered.set()
        leave.wait()

    @kept_memory
    def fail():
        thread.start()
        entered.wait()
        raise KeyError

    thread = threading.Thread(target=work)
    with pytest.raises(KeyError):
        fail()
    assert malloc.calls == list(memory.KEPT.items()), "the other one goes on"
    leave.set()
    thread.join()
    assert malloc.calls[len(memory.KEPT) :] == [*memory.USUAL.items(), "trim"]


def test_without_gnus_malloc_nothing_is_done(monkeypatch):
    monkeypatch.setattr(memory, "_gnu_malloc", lambda: None)
    assert memory._keep()() is None
