"""How the commands are called in tests, and a run to call them on."""

import json

import pytest

from rhobust.cli import run


def train(method="method:erm", **changes):
    options = {"data": "digits", "model": "cnn-small", "epochs": 1, "batch-size": 250} | changes
    return ["train", *method.split(), *(str(part) for name in options for part in (f"--{name}", options[name]))]


SMALL = ["--limit", "20", "--quiet"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return trained(tmp_path_factory, "method:gaussian --method.sigma 0.25")


def trained(tmp_path_factory, method):
    """The folder of a network that was trained for an epoch."""
    out = tmp_path_factory.mktemp("cli") / "run"
    assert run([*train(method, lr=0.002, schedule="constant", out=out), "--quiet"]) == 0
    return out


def document(capsys, arguments):
    capsys.readouterr()
    assert run([*arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.count("\n") == 1
    return json.loads(out)


def refused(capsys, arguments):
    """The one line a mistake is answered with."""
    capsys.readouterr()
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("rhobust: ")
    return err
