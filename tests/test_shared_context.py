"""A context of the whole process ends with its last exit, however that comes about."""

import gc
import os
import subprocess
import sys
import threading

import pytest

from rhobust.shared_context import SharedContext


@pytest.fixture
def told():
    return []


@pytest.fixture
def context(told):
    def begin():
        told.append("begun")
        return lambda: told.append("ended")

    return SharedContext(begin)


def steps(context):
    with context:
        while True:
            yield


def begun(context):
    one = steps(context)
    next(one)
    return one


def fail(one):
    with pytest.raises(KeyError):
        one.throw(KeyError)


def close_elsewhere(one):
    thread = threading.Thread(target=one.close)
    thread.start()
    thread.join()


@pytest.mark.parametrize("leave", [lambda one: one.close(), lambda one: None, fail, close_elsewhere])
def test_a_generator_that_is_not_finished_leaves_it(context, told, leave):
    one, other = begun(context), begun(context)
    leave(one)
    del one
    assert told == ["begun"]
    del other
    assert told == ["begun", "ended"]


def test_a_generator_that_the_collector_closes_while_the_context_is_entered_leaves_it(context, told):
    class CollectingLock:
        def __init__(self, lock):
            self.lock = lock

        def __enter__(self):
            self.lock.__enter__()
            gc.collect()

        def __exit__(self, *error):
            self.lock.__exit__(*error)

    circle = [begun(context)]
    circle.append(circle)
    del circle
    context._lock = CollectingLock(context._lock)

    def enter():
        with context:
            told.append("inside")

    thread = threading.Thread(target=enter, daemon=True)
    thread.start()
    thread.join(10)
    assert told == ["begun", "ended", "begun", "inside", "ended"]


def test_what_fails_to_begin_was_not_entered():
    calls = []

    def begin():
        calls.append("begun")
        if len(calls) == 1:
            raise KeyError
        return lambda: calls.append("ended")

    context = SharedContext(begin)
    with pytest.raises(KeyError), context:
        pass
    with context:
        pass
    assert calls == ["begun", "begun", "ended"]


FORKS = """
import os, signal, threading
from rhobust.shared_context import SharedContext

context, ended = SharedContext(lambda: lambda: None), threading.Event()

def work():
    while not ended.is_set():
        with context:
            pass

threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
codes = []
for _ in range(20):
    child = os.fork()
    if not child:
        signal.alarm(10)
        with context:
            os._exit(0)
    codes.append(os.waitpid(child, 0)[1])
ended.set()
print(codes)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_child_that_is_forked_while_another_thread_enters_it_enters_it_too():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKS], capture_output=True, text=True, check=True)
    assert done.stdout == f"{[0] * 20}\n"
