"""Executors by their names, and what is said where one cannot be had."""

import importlib.util

import pytest

from rhobust.cli import run
from rhobust.executors import Local, Processes, choose_executor


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


def test_without_ray_its_executor_is_one_line_with_the_command_that_gets_it(monkeypatch, capsys):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "ray" else found(name, *rest))
    assert run(["certify", "runs/none", "--executor", "ray"]) == 2
    line = "rhobust: the executor ray needs the package ray: python -m pip install 'ray>=2.60'\n"
    assert capsys.readouterr().err == line
