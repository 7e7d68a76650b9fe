"""Executors by their names, and what is said where one cannot be had."""

import importlib.util
import signal
import socket
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from types import SimpleNamespace

import pytest

from rhobust.executors import Local, Processes, Ray, choose_executor
from rhobust.process import TerminatedError


def test_an_executor_is_named_with_what_it_takes():
    assert choose_executor(None) is None
    assert choose_executor("local") == Local()
    assert choose_executor("processes", workers=3, gpus=0.5) == Processes(3, 0.5)


@pytest.mark.parametrize(
    ("name", "options", "line"),
    [
        (None, {"workers": 2}, "workers and gpus must be left out unless the executor is processes or ray"),
        ("local", {"gpus": 0.5}, "workers and gpus must be left out unless"),
        ("processes", {"address": "auto"}, "address must be left out unless the executor is ray, got auto"),
        ("processes", {"workers": 0}, "workers must be >= 1, got 0"),
        ("processes", {"gpus": 0.0}, "gpus must be a whole number, or a share"),
    ],
)
def test_options_that_do_not_belong_together_are_one_line(name, options, line):
    with pytest.raises(ValueError, match=line):
        choose_executor(name, **options)


WITHOUT_RAY = """
import importlib, pkgutil, sys
sys.modules["ray"] = None  # as if it were not installed
import rhobust
for module in pkgutil.walk_packages(rhobust.__path__, "rhobust."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
from rhobust.cli import run
sys.exit(run(["certify", "runs/none", "--executor", "ray"]))
"""


def test_without_ray_everything_is_imported_and_its_executor_is_one_line_with_the_command_that_gets_it():
    done = subprocess.run([sys.executable, "-c", WITHOUT_RAY], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "rhobust: the executor ray needs the package ray: python -m pip install 'ray>=2.60'\n"


@pytest.fixture
def unconnected(monkeypatch):
    """A Ray that is connected to nothing."""
    ray = SimpleNamespace(is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: ray)
    return ray


@pytest.mark.usefixtures("unconnected")
def test_an_address_at_which_nobody_listens_is_one_line(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setattr("rhobust.executors.ray.PORT", port)
    line = f"address must be that of a Ray cluster, got .*127.0.0.1:{port}: .*refused"
    for address in ("127.0.0.1", f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
        with pytest.raises(ValueError, match=line):
            Ray(address=address).size("cpu")
    services = SimpleNamespace(canonicalize_bootstrap_address=lambda address: f"127.0.0.1:{port}")
    monkeypatch.setitem(sys.modules, "ray._private.services", services)  # the last cluster of this machine was killed
    with pytest.raises(ValueError, match=line):
        Ray(address="auto").size("cpu")
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    for address in (None, "auto"):
        with pytest.raises(ValueError, match=line):
            Ray(address=address).size("cpu")


@pytest.mark.usefixtures("unconnected")
def test_an_address_at_which_something_else_answers_is_one_line():
    # As Ray's own dashboard does, whose port is next to the address on its pages.
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        Thread(target=server.handle_request, daemon=True).start()
        with pytest.raises(ValueError, match=f"got 127.0.0.1:{server.server_port}: what answers there is not Ray"):
            Ray(address=f"127.0.0.1:{server.server_port}").size("cpu")


def test_a_command_that_is_asked_to_end_while_ray_starts_ends_as_at_any_other_time(unconnected):
    def ended(**_):
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))  # as Ray does
        signal.raise_signal(signal.SIGTERM)

    unconnected.init, before = ended, signal.getsignal(signal.SIGTERM)
    with pytest.raises(TerminatedError):
        Ray(address="local").size("cpu")
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_cluster_that_may_want_a_token_is_one_line_that_says_how_it_gets_one(unconnected, monkeypatch):
    def refused(**_):
        raise ConnectionError("Failed to connect")

    unconnected.init = refused
    monkeypatch.setattr("rhobust.executors.ray._check_reachable", lambda address: None)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with pytest.raises(ValueError, match="got host:1: Failed to connect; if it asks for a token, set RAY_AUTH_MODE=to"):
        Ray(address="host:1").size("cpu")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with pytest.raises(ValueError, match=r"got host:1: Failed to connect$"):
        Ray(address="host:1").size("cpu")
