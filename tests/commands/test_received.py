"""A folder is data: nothing that it names runs or is read unless the user names or trusts it."""

import importlib
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import rhobust
from commands.conftest import document, refused, trained
from rhobust.cli import run
from rhobust.data import load

PAYLOAD = """
from pathlib import Path
Path("ran").write_text("code ran")
from rhobust.models import build_model
def make(num_classes=10):
    return build_model('cnn-small', shape=(1, 8, 8), classes=num_classes, mean=[0.0], deviation=[1.0],
                       activation='relu', seed=0)
"""
CODE = "sent.payload:make"
FEW = ["--limit", "2"]
COMMANDS = {
    "attack": ["attack", "sent", "attack:pgd", "--attack.steps", "1", "--radii", "0", "0.1", *FEW],
    "attack --source": ["attack", "own", "--source", "sent", "attack:pgd", "--attack.steps", "1", *FEW],
    "transfer": ["transfer", "other", "sent", "attack:pgd", "--attack.steps", "1", "--radii", "0.1", *FEW],
    "certify": ["certify", "sent", "--n0", "10", "--n", "60", *FEW],
    "certify-shift": ["certify-shift", "sent", "--eps", "0", "--draws", "2", *FEW],
    "conform": ["conform", "sent", "--draws", "2", *FEW],
    "curves": ["curves", "sent", "--eps", "0", *FEW],
    "measure-shift": ["measure-shift", "x.npy", "x.npy", "--run", "sent", "--draws", "2", *FEW],
    "monitor": [
        "monitor",
        "sent",
        "--reference",
        "x.npy",
        "--changed",
        "x.npy",
        "--at-least",
        "0",
        "--draws",
        "2",
        *FEW,
    ],
    "predict": ["predict", "sent", "digit.png", "--n", "20"],
    "audit": ["audit", "sent"],
}
WITHOUT_CODE = {
    "report": ["report", "sent", "--out", "page.html"],
    "publish": ["publish", "sent", "--out", "public"],
    "compare": ["compare", "sent", "own"],
    "audit of the counts": ["audit", "sent", "--share", "0"],
}


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return trained(tmp_path_factory, "method:gaussian --method.sigma 0.25 --seed 1")


@pytest.fixture
def sent(folder, other, tmp_path, monkeypatch):
    """The current folder holds a run of our own and one that was sent, with code inside that marks that it ran."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("sent", "sent.payload"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    if not list(folder.glob("certify-*")):
        assert run(["certify", str(folder), "--n0", "10", "--n", "50", *FEW, "--quiet"]) == 0
    for name, of in (("own", folder), ("sent", folder), ("other", other)):
        shutil.copytree(of, name)
    change(model=CODE)
    Path("sent/payload.py").write_text(PAYLOAD)
    digits = load("digits", "test")
    Image.fromarray(digits.images[0, 0].numpy()).save("digit.png")
    np.save("x.npy", digits.images[:20, 0].numpy())
    importlib.invalidate_caches()
    return Path("sent")


def change(**changes):
    path = Path("sent/config.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_runs_received_code(command, sent, capsys):
    line = refused(capsys, [*COMMANDS[command], "--quiet"])
    assert f"sent would run {CODE}" in line
    assert f"pass --model {CODE}, or --trust" in line
    assert not Path("ran").exists()
    document(capsys, [*COMMANDS[command], "--trust", "--quiet"])
    assert Path("ran").exists()


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "attack --source"])
def test_the_user_may_name_the_code_and_no_other(command, sent, capsys):
    assert f"sent would run {CODE}" in refused(capsys, [*COMMANDS[command], "--model", "os:getcwd", "--quiet"])
    assert not Path("ran").exists()
    document(capsys, [*COMMANDS[command], "--model", CODE, "--quiet"])
    assert Path("ran").exists()


@pytest.mark.parametrize("command", WITHOUT_CODE)
def test_what_needs_no_network_reads_the_folder_without_running_anything(command, sent, capsys):
    document(capsys, [*WITHOUT_CODE[command], "--quiet"])
    assert not Path("ran").exists()


def test_the_demo_runs_no_received_code(sent, capsys):
    words = ["demo", "sent", "--space", "space", "--quiet"]
    assert f"sent would run {CODE}" in refused(capsys, words)
    assert not Path("ran").exists()
    # Trusted code runs here, but the page of a Space would not have it.
    assert "must hold a network of this package to be a Space" in refused(capsys, [*words, "--trust"])
    assert not Path("space").exists()


def test_the_python_functions_refuse_likewise(sent):
    for load_network in (rhobust.open_run(sent).load_model, lambda: rhobust.Target.from_run(sent, device="cpu")):
        with pytest.raises(ValueError, match=r"sent would run sent\.payload:make.*trust=True"):
            load_network()
    assert not Path("ran").exists()
    assert rhobust.open_run(sent).load_model(model=CODE) is not None


def test_code_of_this_package_is_code_too(sent, capsys):
    change(model="rhobust.cli:main")
    assert "would run rhobust.cli:main" in refused(capsys, COMMANDS["certify"])


def test_received_paths_are_not_read(sent, capsys):
    change(model="cnn-small", data="/somewhere/secret.npz")
    line = refused(capsys, COMMANDS["certify"])
    assert "sent would read /somewhere/secret.npz" in line
    assert "--data /somewhere/secret.npz, or --trust" in line
    document(capsys, [*COMMANDS["certify"], "--data", "digits", "--quiet"])
    assert "/somewhere/secret.npz must" in refused(capsys, [*COMMANDS["certify"], "--trust"])


def test_received_weights_are_read_inside_the_folder_only(sent, capsys):
    own = {"rhobust": "0", "model": CODE, "weights": "own/model.safetensors", "data": "digits"}
    path, command = sent / "config.json", [*COMMANDS["certify"], "--sigma", "0.25", "--quiet"]
    path.write_text(json.dumps(own))
    assert f"sent would run {CODE} and read own/model.safetensors" in refused(capsys, command)
    named = [*command, "--model", CODE]
    assert "pass --weights own/model.safetensors, or --trust" in refused(capsys, named)
    assert not Path("ran").exists()
    document(capsys, [*named, "--weights", "own/model.safetensors"])
    path.write_text(json.dumps(own | {"weights": "sent/model.safetensors"}))
    document(capsys, named)
    path.write_text(json.dumps(own | {"weights": ["sent"]}))
    assert "config.json must name weights as a string" in refused(capsys, command)


def test_a_received_name_is_shown_without_control_characters(sent, capsys):
    change(model="a:b\x1b[2J; rm x")
    line = refused(capsys, COMMANDS["certify"])
    assert "\x1b" not in line
    assert r"--model 'a:b\x1b[2J; rm x'" in line
