"""The front door, tried with networks as people have them: examples/own_networks.py, one call and one command each."""

import json
import sys
from pathlib import Path

import pytest
import torch

import rhobust
from rhobust.cli import run
from rhobust.progress import no_progress
from tests.conftest import load_script

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def example():
    return load_script("examples/own_networks.py")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "package"), [("cnn", "torch"), ("forgotten", "torch"), ("vit", "transformers"), ("timm", "timm")]
)
def test_one_call_and_one_command(kind, package, example, tmp_path, monkeypatch, capsys):
    pytest.importorskip(package)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with torch.random.fork_rng(devices=[]):
        network, named = example.prepare(kind, tmp_path)
    test = rhobust.load(str(tmp_path / "photos"), "test")
    images, labels = test.images[:200].numpy(), test.labels[:200].numpy()
    called = rhobust.evaluate(
        network, images, labels, sigma=0.25, effort="quick", out=tmp_path / "call", progress=no_progress
    )
    options = ["--data", str(tmp_path / "photos"), "--sigma", "0.25", "--out", str(tmp_path / "command")]
    assert run(["evaluate", *named, *options, "--json", "--quiet"]) == 0
    document = json.loads(capsys.readouterr().out)
    for page in (called.page, Path(document["report"])):
        assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    base = [one["value"] for one in document["measurements"] if one["quantity"] == "base accuracy"]
    causes = {finding["cause"] for finding in document["diagnosis"]}
    # Speed decides how many images are certified, and with it whether most radii end at the largest provable one.
    assert {finding.cause for finding in called.findings} - {"samples"} == causes - {"samples"}
    if kind == "forgotten":
        assert causes == {"normalisation"}
        assert "--mean 0.4" in document["diagnosis"][0]["remedy"]
    else:
        assert base[0] > 0.8
        assert causes <= {"samples"}


def test_the_photos_are_files_that_a_folder_of_images_is_made_of(example, tmp_path):
    example.write_photos(tmp_path / "photos")
    test = rhobust.load(str(tmp_path / "photos"), "test", progress=no_progress)
    assert (len(test), test.shape, test.classes[3]) == (797, (3, 32, 32), "digit-3")
