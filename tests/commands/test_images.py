"""predict and certify on image files: runs, folders of records and networks by name."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

import rhobust
from commands.conftest import document, refused
from rhobust.cli import run
from rhobust.models.sources import TakeLogits, label_names

FEW = ["--n", "200", "--quiet"]
CODE = """
import torch
from rhobust.models import build_model

def make(num_classes=10):
    return build_model('cnn-small', shape=(1, 8, 8), classes=num_classes, mean=[0.], deviation=[1.],
                       activation='relu', seed=0).network

def ready():
    model = make()
    model.load_state_dict(torch.load('bare.pt'))
    return model

def coloured(num_classes=2):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, num_classes))
"""


@pytest.fixture
def here(folder, tmp_path, monkeypatch):
    """The current folder holds two digits, a wide image, and the run's network as the user's own code and weights."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    images = rhobust.load("digits", "test").images[:2]
    for place, image in enumerate(images):
        Image.fromarray(image[0].numpy()).save(f"{place}.png")
    Image.fromarray(np.tile(images[0, 0].numpy().repeat(2, 0), (1, 2))).save("wide.png")
    (tmp_path / "imaged.py").write_text(CODE)
    state = load_file(folder / "model.safetensors")
    constants = {key: state.pop(key).flatten().tolist() for key in ("mean", "deviation")}
    torch.save({key.removeprefix("network."): value for key, value in state.items()}, "bare.pt")
    yield ["--mean", str(constants["mean"][0]), "--std", str(constants["deviation"][0]), "--sigma", "0.25"]
    sys.modules.pop("imaged", None)


def test_certify_answers_per_image_and_writes_nothing(folder, here, capsys):
    before = sorted(path.name for path in folder.iterdir())
    found = document(capsys, ["certify", str(folder), "0.png", "1.png", *FEW])
    smoothed = rhobust.SmoothedClassifier(rhobust.open_run(folder).load_model(), 0.25, 10)
    wanted = smoothed.certify(rhobust.load("digits", "test").images[:2], n=200)
    for got, certificate in zip(found["certificates"], wanted, strict=True):
        assert (got["prediction"], got["radius"]) == (certificate.prediction, certificate.radius)
        assert (got["count"], got["n"]) == (certificate.count, 200)
    assert (found["alpha"], found["n"], found["sigma"]) == (0.001, 200, 0.25)
    assert run(["certify", "0.png", str(folder), *FEW]) == 2  # the folder comes first
    capsys.readouterr()
    assert run(["certify", str(folder), "--n", "200", "0.png"]) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = lines[1].split()
    first = found["certificates"][0]
    assert shown[:2] == ["0.png", first["class"] or "abstains"]
    assert shown[2:5] == [str(first["count"]), "of", "200"]
    if first["class"] is not None:
        assert float(shown[5]) <= first["radius"]
    assert "with probability 99.9% over 200 noise samples" in lines[2]
    assert "rounded down" in lines[2]
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.parametrize("data", [[], ["--data", "few.npz"]])
def test_the_weights_say_how_many_classes_there_are(data, here, capsys):
    """Neither the factory's own number of classes nor that of a few labels."""
    with torch.random.fork_rng(devices=[]):
        five = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 5))
    torch.save(five.state_dict(), "five.pt")
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
    np.savez("few.npz", x_test=pixels, y_test=np.arange(6) % 3)
    Image.fromarray(pixels[0]).save("rgb.png")
    network = ["--model", "imaged:coloured", "--weights", "five.pt", "--sigma", "0.25"]
    found = document(capsys, ["predict", "rgb.png", *network, *data, *FEW])
    [prediction] = rhobust.SmoothedClassifier(five, 0.25, 5).predict(pixels[:1], n=200)
    assert [answer["prediction"] for answer in found["predictions"]] == [prediction]


def test_one_mean_is_that_of_every_channel(here, capsys):
    Image.fromarray(np.tile(np.asarray(Image.open("0.png"))[:, :, None], (1, 1, 3))).save("rgb.png")
    given = ["predict", "--model", "imaged.py:coloured", *here, "rgb.png", "--n", "100"]
    assert len(document(capsys, given)["predictions"]) == 1


def test_the_network_says_how_many_channels_it_takes(here, capsys):
    Image.open("0.png").convert("RGB").save("rgb.png")
    given = ["predict", *here, "--n", "100", "--model", "imaged.py:coloured"]
    grey, colour = (document(capsys, [*given, name]) for name in ("0.png", "rgb.png"))
    assert grey["shape"] == colour["shape"] == [3, 8, 8]
    assert grey["predictions"][0]["votes"] == colour["predictions"][0]["votes"]
    both = document(capsys, [*given, "0.png", "rgb.png"])
    assert (both["shape"], len(both["predictions"])) == ([3, 8, 8], 2)
    assert "must take grey or coloured images, but the network raised" in refused(capsys, [*given, "wide.png"])
    line = refused(capsys, ["predict", "--model", "imaged.py:ready", *here, "rgb.png"])
    assert "1 channels, but got 3 channels" in line


def test_a_missing_image_is_said_before_test_data_are_decoded(here, capsys, monkeypatch):
    loads = ["--model", "imaged.py:ready", *here, "--data", "digits"]
    assert run(["certify-shift", *loads, "--out", "records", "--eps", "0", "--limit", "20", "--quiet"]) == 0
    monkeypatch.setattr("rhobust.data.digits.Digits.load", lambda *_, **__: pytest.fail("test data were read"))
    for command in ("predict", "certify"):
        for network in (loads, ["records", "--trust"]):
            folder, options = ([network[0]], network[1:]) if network[0] == "records" else ([], network)
            line = refused(capsys, [command, *folder, "0.png", "nothing.png", *options, *FEW])
            assert "nothing.png must be an image file, but there is no such file" in line


def test_a_network_by_name_answers_as_the_run_does(folder, here, capsys):
    for command, answers in (("predict", "predictions"), ("certify", "certificates")):
        wanted = document(capsys, [command, str(folder), "0.png", "1.png", *FEW])[answers]
        given = ["imaged.py:make", "--weights", "bare.pt", *here]
        assert document(capsys, [command, "--model", *given, "0.png", "1.png", *FEW])[answers] == wanted
        loads = ["--model", "imaged.py:ready", *here]
        assert document(capsys, [command, "0.png", "1.png", *loads, *FEW])[answers] == wanted
        records = ["certify-shift", *loads, "--data", "digits", "--out", f"records-{command}", "--eps", "0"]
        assert run([*records, "--limit", "20", "--quiet"]) == 0
        capsys.readouterr()
        own = [command, f"records-{command}", "0.png", "1.png", *FEW]
        assert document(capsys, [*own, "--trust"])[answers] == wanted
        assert document(capsys, [*own, "--model", "imaged.py:ready"])[answers] == wanted
        assert "would run imaged.py:ready" in refused(capsys, own)
        assert "--mean was given with it" in refused(capsys, [*own, "--mean", "0.5"])
    again = ["certify-shift", "records-predict", "--trust", "--eps", "0", "--limit", "20"]
    assert document(capsys, again)["settings"]["sigma"] == 0.25


def test_images_of_another_size_are_refused_or_resized(folder, here, capsys):
    for command in ("predict", "certify"):
        line = refused(capsys, [command, str(folder), "wide.png", *FEW])
        assert "wide.png must be an image of shape 1x8x8, got 1x16x16: see --resize and --crop" in line
        assert document(capsys, [command, str(folder), "wide.png", "--resize", "8", *FEW])["shape"] == [1, 8, 8]
        own = ["--model", "imaged.py:make", "--weights", "bare.pt", *here, "--data", "digits"]
        assert "must be an image of shape 1x8x8" in refused(capsys, [command, "wide.png", *own, *FEW])


def test_classes_have_the_names_of_the_data(folder, here, capsys):
    for name in "abcdefghij":
        (where := Path(f"named/test/{name}")).mkdir(parents=True)
        Image.new("L", (8, 8)).save(where / "1.png")
    own = ["--model", "imaged.py:make", "--weights", "bare.pt", *here]
    numbered = document(capsys, ["predict", "0.png", *own, *FEW])
    assert any("--data DATA gives their names" in one for one in numbered["warnings"])
    found = document(capsys, ["predict", "0.png", *own, "--data", "named", *FEW])
    assert not any("--data" in one for one in found["warnings"])
    plain, named = numbered["predictions"][0], found["predictions"][0]
    assert named["prediction"] == plain["prediction"]
    assert [name for name, _ in named["votes"]] == ["abcdefghij"[int(name)] for name, _ in plain["votes"]]


PRETRAINED = Path(__file__).parents[2] / "results" / "pretrained" / "mnist-nal"
SEVEN = Path(__file__).parents[2] / "examples" / "mnist" / "0-is-7.png"


@pytest.mark.parametrize(("command", "answers"), [("predict", "predictions"), ("certify", "certificates")])
def test_a_pretrained_network_answers_by_its_name_alone(command, answers, capsys):
    named = document(capsys, [command, "--model", "rhobust:mnist-nal", str(SEVEN), *FEW])
    assert named[answers] == document(capsys, [command, str(PRETRAINED), str(SEVEN), *FEW])[answers]
    assert (named["sigma"], named["shape"], named["warnings"]) == (0.25, [1, 28, 28], [])
    other = document(capsys, [command, "--model", "rhobust:mnist-nal", "--sigma", "0.5", str(SEVEN), *FEW])
    assert other["warnings"] == ["the network was trained with noise 0.25 and is smoothed with 0.5"]


def test_a_network_of_transformers_names_its_classes():
    network = nn.Identity()
    network.config = SimpleNamespace(id2label={0: "cat", 1: "dog"})
    assert label_names(TakeLogits(network), 2) == ("cat", "dog")
    assert label_names(TakeLogits(network), 3) is None


@pytest.mark.parametrize("command", ["predict", "certify"])
def test_a_network_must_be_named(command, here, capsys):
    assert "must" in refused(capsys, [command, "0.png", *FEW])
    assert "must" in refused(capsys, [command, "0.png", "--weights", "bare.pt", *FEW])
    assert "pass --sigma" in refused(capsys, [command, "0.png", "--model", "imaged.py:ready", *FEW])


def test_the_folder_of_an_evaluation_stands_for_its_network(here, capsys, monkeypatch):
    monkeypatch.setitem(rhobust.evaluate.__wrapped__.__globals__, "assess", lambda target, **options: target)
    mean, std, sigma = (float(value) for value in here[1::2])
    made = rhobust.evaluate("imaged.py:ready", "digits", mean=[mean], std=[std], sigma=sigma, out="page", device="cpu")
    own = ["--model", "imaged.py:ready", *here]
    wanted = document(capsys, ["predict", "0.png", *own, *FEW])["predictions"]
    assert document(capsys, ["predict", "page", "0.png", "--trust", *FEW])["predictions"] == wanted
    rhobust.evaluate(made.model, "digits", out="memory", device="cpu")
    assert "must name its network" in refused(capsys, ["predict", "memory", "0.png", "--trust", *FEW])
