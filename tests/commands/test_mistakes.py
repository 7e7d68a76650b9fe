"""A mistake is one line that says what must hold, and exit code 2."""

import contextlib
import importlib
import sys
from pathlib import Path

import pytest
from safetensors.torch import save_file

from commands.conftest import SMALL, document, refused, train
from rhobust.cli import parse
from rhobust.models import load_model


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-command"], "the command must be one of evaluate, quickstart, data, train"),
        (train("method:nal --method.sigma -1"), "sigma must be > 0, got -1.0"),
        (train("method:nal --method.sigmaa 1"), "--method.sigma"),
        (train("method:nil"), "method:erm, method:gaussian"),
        (train(""), "method:erm"),
        (train(epochs=0), "epochs must be >= 1, got 0"),
        (
            train(data="minst"),
            "data must be one of mnist, cifar10, cifar100, svhn, tiny-imagenet, tiny-imagenet-50, digits",
        ),
        (train(model="resnet"), "model must be one of cnn, cnn-small, resnet18, vgg16, wrn-28-10"),
        (train(device="tpu"), "device must be auto, cpu"),
        (train(data="mnist", root="/nowhere"), "rhobust data get mnist"),
        (["attack", "/nowhere/run"], "/nowhere/run must be a run folder, but there is no such folder"),
        (["attack"], "a run folder, or all of --model, --data and --out must be given"),
        (["certify", "/nowhere/run"], "there is no such folder"),
        (["certify-shift", "/nowhere/run"], "there is no such folder"),
        (["report", "/nowhere/run"], "/nowhere/run is left out: there is no such file or folder"),
        (["compare", "."], "a run folder must be compared with another folder or file, got . alone"),
        (["report", "/nowhere/run", "--out", "."], "out must name a file, but . is a folder"),
        (["audit", "/nowhere/record"], "/nowhere/record must exist, but there is no such file"),
        (["transfer"], "at least one run folder must be given, got none"),
        (["data", "check", "mnist", "--root", "/nowhere"], "mnist"),
        (["data", "get", "mnst"], "data must be one of mnist"),
        (["data", "check", "mnst"], "hf-datasets:FOLDER-or-ID; got 'mnst', which does not exist"),
        (["evaluate"], "one of a run folder and --model must be given, got neither (rhobust evaluate --help has"),
        (["evaluate", "/nowhere/run"], "/nowhere/run must be a run folder, but there is no such folder"),
        (["evaluate", "."], ". must be a run folder, but it holds no config.json"),
        (["quickstart", "--n", "-1"], "n must be >= n0 >= 1, got n=-1 and n0=100"),
        (["quickstart", "--limit", "0"], "limit must be >= 1, got 0"),
        (["quickstart", "--out", ""], "--out must not be empty, got ''"),
        (train(out=""), "--out must not be empty, got ''"),
        (train(out=__file__), "out must name a folder, but"),
        (["measure-shift", "a", "b", "--severities", "9"], "severities must come with --corruptions, got 9"),
        (
            ["measure-shift", "run", "a", "b", "--alpha", "0.1"],
            "names must be as many as the command takes, got b too; a run folder is named by --run (see rhobust",
        ),
        (["monitor", "run", "a", "b"], "names must be as many as the command takes, got a, b too (see rhobust"),
        (["attack", "run", "a"], "got a too; choices are attack:pgd, attack:eot, attack:paper, attack:autoattack (see"),
        (["monitor", "run", "a", "--no-such", "b"], "Unrecognized options: a, --no-such, b (see rhobust"),
        (["measure-shift", "a", "b", "--alpha", "2"], "alpha must be in (0, 1), got 2.0"),
        (["data", "check", "digits", "--device", "cpu"], "--device"),
        (["data", "check", "\x1b[2Jcat"], "\\x1b[2Jcat"),
        (["certify", "run", "--sigma", "x"], "--sigma must be a number, got 'x'"),
        (["certify", "run", "--sigma=8:255"], "--sigma must be a number, got '8:255'"),
        (["certify", "run", "--n", "1e4"], "--n must be a whole number, got '1e4'"),
        (["certify", "run", "--radii", "0.1,0.2"], "--radii must be numbers with spaces between them, got '0.1,0.2'"),
        (["certify-shift", "run", "--eps", "1/0"], "--eps must be numbers with spaces between them, got '1/0'"),
        (["measure-shift", "a", "--corruptions", "jpeg", "--severities", "x"], "--severities must be whole numbers"),
        (["attack", "run", "--attack.steps", "many"], "--attack.steps must be a whole number, got 'many'"),
        (train("method:nal --method.gamma big"), "--method.gamma must be a number, got 'big'"),
        (["attack", "run", "--fast", "maybe"], "invalid choice 'maybe' for argument '--fast'"),
        (["certify", "run", "--compiled"], "Missing value for argument '--compiled'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert message in refused(capsys, arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["attack", "--radii", "0.5", "0.25"], "radii must increase, got 0.5 0.25"),
        (["attack", "--radii", "-1"], "radii must be >= 0, got -1.0"),
        (["certify", "--alpha", "1.5"], "alpha must be in (0, 1), got 1.5"),
        (["certify", "--n", "10"], "n must be >= n0 >= 1, got n=10 and n0=100"),
        (["certify", "--sigma", "0"], "sigma must be > 0 and finite, got 0.0"),
        (["certify", "--procedure", "sequential"], "radii must be given for the procedure sequential, got none"),
        (["certify", "--tolerance", "0.1", "--procedure", "fixed"], "tolerance must come with the procedure two-stage"),
        (["certify", "--tolerance", "0"], "tolerance must be > 0, got 0.0"),
        (["certify", "--dtype", "float16", "--device", "cpu"], "dtype must be float32 or bfloat16 on a cpu"),
        (["certify", "--noise", "laplace"], "grid"),
        (["predict", "/nowhere.png"], "/nowhere.png must be an image file, but there is no such file"),
        (["certify-shift", "--draws", "0"], "draws must be >= 1, got 0"),
        (["certify-shift", "--eps", "-0.1"], "eps must be >= 0, got -0.1"),
        (["certify-shift", "--eps", "nan"], "eps must be finite, got nan"),
        (["certify-shift", "--votes", "5"], "votes must be left out for the randomised classifier, got 5"),
        (["certify-shift", "--bound", "5"], "bound must be left out for the 0-1 loss, got 5.0"),
        (["certify-shift", "--cost", "w3"], "w1"),
        (
            ["certify-shift", "--loss", "cross-entropy", "--baselines"],
            "baselines must be left out for a loss that is not 0-1",
        ),
        (["certify-shift", "--loss", "cross-entropy", "--classifier", "majority"], "loss must be 0-1 for the majority"),
        (["curves", "--gammas", "0"], "gammas must be from 1e-12 to 1,000,000,000"),
        (["curves", "--alpha", "2"], "alpha must be in (0, 1), got 2.0"),
        (["attack", "--model", "a:b"], "a run folder must be given alone"),
        (["attack", "--mean", "0.5"], "a run folder must be given alone, but --mean was given with it"),
        (["attack", "--votes", "0"], "votes must be >= 1, got 0"),
        (["attack", "--source", "/nowhere/run"], "/nowhere/run must be a run folder, but there is no such folder"),
        (["attack", "attack:pgd", "--attack.restarts", "-1"], "restarts must be >= 0, got -1"),
        (["transfer"], "a transfer attack needs at least two runs, got 1"),
        (["attack", "--radii", "1e308"], "radii must be between"),
        (["attack", "--attack.draws", "1000000000000000000000"], "draws must be between"),
        (["curves", "--bound", "1e308"], "bound must be between"),
        (["certify", "--limit", "0"], "limit must be >= 1, got 0"),
        (["certify", "/nowhere.png"], "/nowhere.png must be an image file, but there is no such file"),
        (["certify", "a.png", "--limit", "5"], "--limit must be left out with image files, got 5"),
        (["certify", "a.png", "--data", "digits"], "--data must be left out with image files for"),
        (["certify", "--data", ""], "--data must not be empty, got ''"),
        (["certify", "--data="], "--data must not be empty, got ''"),
        (["certify", "--device", "cpu:7"], "device must be auto, cpu"),
        (
            ["certify", "--tsv", "/nowhere/table.tsv"],
            "tsv must name a file in an existing folder, but /nowhere is none",
        ),
        (
            ["compare", "--tsv", "/nowhere/table.tsv"],
            "tsv must name a file in an existing folder, but /nowhere is none",
        ),
        (["compare", "--device", "cpu"], "--device"),
        (
            ["compare", "/nowhere/run"],
            "/nowhere/run must be a run folder, a record or a table, but there is no such file",
        ),
    ],
)
def test_a_mistake_about_a_run_is_one_line(arguments, message, folder, capsys):
    assert message in refused(capsys, [arguments[0], str(folder), *arguments[1:], "--quiet"])


@pytest.mark.parametrize("words", [["--fast", "False"], ["--fast=False"], ["--fast", "false"]])
def test_an_option_that_is_on_off_or_left_out_takes_its_word(words):
    attack = importlib.import_module("rhobust.commands.attack").COMMAND
    for arguments in (["run", *words], [*words, "run"], ["run", *words, "--votes", "9"]):
        parsed = parse(attack, "attack", arguments)
        assert (parsed.evaluation.fast, parsed.target.run) == (False, Path("run"))


def test_a_folder_or_an_image_that_is_missing_is_one_line(folder, capsys):
    expected = "a run folder and at least one image must be given, or --model and an image, got"
    assert f"{expected} {folder} alone" in refused(capsys, ["predict", str(folder)])
    for words in ([], ["--model", "rhobust:digits"]):
        assert f"{expected} no names" in refused(capsys, ["predict", *words])


def test_a_share_that_cannot_be_is_one_line(folder, capsys):
    record = document(capsys, ["certify", str(folder), "--n0", "10", "--n", "50", *SMALL])["record"]
    message = "share must be in [0, 1], got -1"
    assert message in refused(capsys, ["audit", record, "--share", "-1", "--quiet"])


def test_a_damaged_config_is_one_line(folder, capsys, tmp_path):
    (tmp_path / "config.json").write_text((folder / "config.json").read_text().replace('"sigma"', '"sgima"'))
    assert "unknown keys (sgima)" in refused(capsys, ["attack", str(tmp_path)])
    (tmp_path / "config.json").write_text("{")
    assert "config.json must be a JSON document" in refused(capsys, ["certify", str(tmp_path)])


def test_the_users_own_network(folder, capsys, tmp_path, monkeypatch):
    (tmp_path / "mine_network.py").write_text(
        "from rhobust.models import build_model\n"
        "def make(num_classes):\n"
        "    return build_model('cnn-small', shape=(1, 8, 8), classes=num_classes, mean=[0.], deviation=[1.],"
        " activation='relu', seed=0)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    own = ["--model", "mine_network:make", "--weights", str(folder / "model.safetensors"), "--data", "digits"]
    own += ["--out", str(tmp_path / "records"), "--sigma", "0.25"]
    shift = ["--eps", "0", "0.1", "--quiet"]
    mine = document(capsys, ["certify-shift", *own, *shift])
    page = document(capsys, ["report", str(tmp_path / "records"), "--out", str(tmp_path / "own.html")])
    assert page["report"].endswith("own.html")
    assert "a training run" in refused(capsys, ["certify-shift", *own[:-4], "--out", str(folder), "--sigma", "0.25"])
    assert mine["summary"]["curve"] == document(capsys, ["certify-shift", str(folder), *shift])["summary"]["curve"]
    records = [str(tmp_path / "records")]  # it remembers sigma
    for named in (["--trust"], own[:4]):
        assert document(capsys, ["certify-shift", *records, *named, *shift])["record"] == mine["record"]
    assert "no such file" in refused(capsys, ["predict", records[0], "image.png"])
    Path("image.png").touch()
    assert "would run mine_network:make" in refused(capsys, ["predict", records[0], "image.png"])
    assert "got no --out" in refused(capsys, ["attack", *own[:2], "--data", "digits"])


@pytest.mark.parametrize("command", [["evaluate"], ["certify"], ["predict", "image.png"]], ids=" ".join)
@pytest.mark.parametrize(
    ("named", "message"),
    [
        (["--model", "none.py:make"], "model none.py:make must name a file, but there is no none.py"),
        (["--model", "none.py"], "model must have the form package.module:factory, file.py:factory"),
        (["--model", "mine:make", "--weights", "none.pt"], "none.pt must be a weights file, but there is no such file"),
        (["--model", "mine:make", "--mean", "0.5"], "mean and std must be given together, got one of them"),
    ],
)
def test_names_are_looked_at_before_images_are_decoded(command, named, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = [] if command[0] == "predict" else ["--out", "records"]
    assert message in refused(capsys, [*command, *named, *out, "--data", "no-images", "--sigma", "0.25"])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return nn.Linear(64, 10)", "for one input of shape 1x8x8 (float32)"),
        ("return nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).half()", "for one input of shape 1x8x8 (float32)"),
        (
            "return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Unflatten(1, (10, 1)))",
            "got the shape (1, 10, 1)",
        ),
        (
            "return nn.Sequential(nn.Flatten(), Answer(64, 10))",
            "got a dict for one input of shape 1x8x8 (float32): wrap it in a module that returns the logits alone",
        ),
        ("return nn.Sequential(nn.Flatten(), nn.Linear(64, 9))", "returns 9 logits per image, got 10 classes"),
        ("import no_such_module", "must build a network, but ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_a_network_that_does_not_fit_is_one_line(body, message, capsys, tmp_path, monkeypatch):
    (tmp_path / "misfit.py").write_text(
        "from torch import nn\n"
        "class Answer(nn.Linear):\n    def forward(self, x): return {'logits': super().forward(x)}\n"
        f"def make():\n    {body}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "misfit", raising=False)
    importlib.invalidate_caches()
    Path("weights.safetensors").touch()  # it is looked for before the network is built
    with contextlib.suppress(ValueError):
        save_file(load_model("misfit:make").state_dict(), "weights.safetensors")
    options = ["--model", "misfit:make", "--weights", "weights.safetensors", "--data", "digits", "--out", "records"]
    for command in ("certify-shift", "certify", "attack"):
        assert message in refused(capsys, [command, *options, "--sigma", "0.25", *SMALL])
    wrong_width = "a logit for each of the 10 classes, got 9"
    trained = refused(capsys, train(model="misfit:make", out="run"))
    assert (wrong_width if "got 10 classes" in message else message) in trained
    assert not Path("records").exists()
