"""Targets with known answers, and a small run on disk."""

import shutil
from dataclasses import replace

import pytest

from rhobust.cli import run
from rhobust.evaluation import Target


@pytest.fixture
def target(half_space, grey_images, tmp_path):
    return Target(half_space, grey_images, sigma=0.25, name="half-space", folder=tmp_path, model_hash="0" * 16)


@pytest.fixture
def wrapped(target):
    """A target with another network, which has another name."""

    def wrap(model, name="1"):
        return replace(target, name=name, model=model, model_hash=name * 16)

    return wrap


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A network trained with noise on digits for a few epochs."""
    out = tmp_path_factory.mktemp("runs") / "gaussian"
    options = ["--data", "digits", "--model", "cnn-small", "--epochs", "4", "--batch-size", "100", "--lr", "0.003"]
    assert run(["train", "method:gaussian", "--method.sigma", "0.25", *options, "--out", str(out), "--quiet"]) == 0
    return out


@pytest.fixture(scope="module")
def folder(trained, tmp_path_factory):
    """The trained network in a run folder of the module's own."""
    return shutil.copytree(trained, tmp_path_factory.mktemp("module") / "run")
