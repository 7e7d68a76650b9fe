"""The demo's command, and the folder that it writes for a Space."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch

from rhobust.demo import DemoClassifier
from rhobust.demo.space import GRADIO
from rhobust.models import build_model
from rhobust.training import open_run
from tests.commands.conftest import document, refused, trained

ROOT = Path(__file__).parent.parent.parent
NETWORK = """
import torch

from rhobust.models import build_model


def make(num_classes=10):
    return build_model("cnn-small", shape=(1, 8, 8), classes=num_classes, mean=[0.3], deviation=[0.4],
                       activation="relu", seed=0)


def coloured():
    return torch.nn.Sequential(torch.nn.Conv2d(3, 2, 8), torch.nn.Flatten())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return trained(tmp_path_factory, "method:gaussian --method.sigma 0.25")


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A network of the user's own in the current folder, with weights of torch.save."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "net", raising=False)  # of another test
    Path("net.py").write_text(NETWORK)
    model = build_model(
        "cnn-small", shape=(1, 8, 8), classes=10, mean=[0.3], deviation=[0.4], activation="relu", seed=3
    )
    torch.save(model.state_dict(), "net.pt")
    return model


def classifier_of(space: Path) -> DemoClassifier:
    """What the page of a Space answers with; its server is not started."""
    return runpy.run_path(str(space / "app.py"))["classifier"]


def front_matter(text: str) -> dict[str, object]:
    return {
        key: json.loads(value)
        for key, _, value in (line.partition(": ") for line in text.split("---\n")[1].split("\n") if line)
    }


def test_a_run_becomes_a_space(folder, capsys, tmp_path):
    found = document(capsys, ["demo", str(folder), "--space", str(tmp_path / "space"), "--n", "500", "--quiet"])
    space = tmp_path / "space"
    assert found["files"] == ["README.md", "app.py", "examples", "model", "requirements.txt", "rhobust"]
    front = front_matter((space / "README.md").read_text())
    assert front["sdk"] == "gradio"
    assert front["app_file"] == "app.py"
    requirements = (space / "requirements.txt").read_text().split("\n")
    assert GRADIO in requirements
    assert any(line.startswith("torch>=") for line in requirements)
    assert not list(space.rglob("__pycache__"))
    assert (space / "rhobust" / "demo" / "style.css").exists()
    for path in (space / "app.py", space / "README.md"):
        assert str(tmp_path) not in path.read_text()
        assert str(folder) not in path.read_text()
    classifier = classifier_of(space)
    run = open_run(folder)
    assert (classifier.sigma, classifier.classes, classifier.shape, classifier.n) == (0.25, run.classes, (1, 8, 8), 500)
    assert classifier.examples.shape == (8, 1, 8, 8)
    images = classifier.examples.float() / 255
    assert torch.equal(classifier.model(images), run.load_model()(images))


def test_a_network_of_ones_own_becomes_a_space(own, capsys):
    words = ["demo", "--model", "net.py:make", "--weights", "net.pt", "--data", "digits", "--sigma", "0.5"]
    found = document(capsys, [*words, "--space", "space", "--quiet"])
    assert "model.safetensors" in found["files"]
    assert "net.py" in found["files"]
    classifier = classifier_of(Path("space").resolve())
    assert classifier.sigma == 0.5
    images = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(classifier.model(images), own.eval()(images))


def test_a_pretrained_network_becomes_a_space_by_its_name(capsys, tmp_path):
    words = ["demo", "--model", "rhobust:mnist-nal", "--space", str(tmp_path / "space"), "--quiet"]
    assert "model" in document(capsys, words)["files"]
    classifier = classifier_of(tmp_path / "space")
    assert (classifier.sigma, classifier.shape, classifier.classes) == (0.25, (1, 28, 28), tuple("0123456789"))


def test_classes_and_size_may_be_named_without_data(own, capsys):
    names = [f"digit {number}" for number in range(10)]
    words = ["demo", "--model", "net.py:make", "--weights", "net.pt", "--sigma", "0.5", "--classes", *names]
    document(capsys, [*words, "--resize", "8", "--mean", "0", "--std", "1", "--space", "space", "--quiet"])
    classifier = classifier_of(Path("space").resolve())
    assert classifier.classes == tuple(names)
    assert (classifier.shape, classifier.sizing.resize) == ((1, 8, 8), 8)
    assert len(classifier.examples) == 0


@pytest.mark.parametrize(("factory", "channels"), [("make", 1), ("coloured", 3)])
@pytest.mark.parametrize("means", [[], ["--mean", "0.5", "--std", "0.5"]])
def test_the_network_says_whether_images_are_grey(own, capsys, factory, channels, means):
    words = ["demo", "--model", f"net.py:{factory}", "--sigma", "0.5", "--crop", "8", *means]
    document(capsys, [*words, "--space", "space", "--quiet"])
    assert classifier_of(Path("space").resolve()).shape == (channels, 8, 8)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ([], "a run folder, or --model, must be given"),
        (["--model", "net.py:make", "--weights", "net.pt", "--sigma", "0.5"], "the size of images must be known"),
        (["--model", "net.py:make", "--weights", "net.pt", "--data", "digits"], "pass --sigma"),
        (["--model", "net:make", "--weights", "net.pt", "--data", "digits", "--sigma", "1"], "must be in one file"),
        (["--model", "net.py:make", "--data", "digits", "--sigma", "1", "--classes", "a", "b"], "must name 10 classes"),
        (["--model", "net.py:make", "--port", "0"], "port must be in 1..65535, got 0"),
        (["--model", "net.py:make", "--data", "digits", "--sigma", "1", "--alpha", "2"], "alpha must be"),
    ],
)
def test_mistakes_are_one_line(own, capsys, options, line):
    assert line in refused(capsys, ["demo", *options, "--space", "space", "--quiet"])
    assert not Path("space").exists()


def test_a_space_overwrites_nothing(own, folder, capsys):
    Path("space").mkdir()
    Path("space/mine").write_text("x")
    line = refused(capsys, ["demo", str(folder), "--space", "space", "--quiet"])
    assert "space must name a new or an empty folder" in line


def test_a_missing_gradio_is_one_line_before_anything_is_loaded(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert "python -m pip install '.[demo]'" in refused(capsys, ["demo", "no-such-run"])


def test_the_space_needs_what_the_extra_declares():
    assert f'demo = ["{GRADIO}"]' in (ROOT / "pyproject.toml").read_text()
