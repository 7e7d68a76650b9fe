"""The command line, called as a user calls it."""

import contextlib
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from safetensors.torch import save_file

import rhobust
from rhobust.cli import COMMANDS, run
from rhobust.models import load_factory_model
from rhobust.records import compress


def train(method="method:erm", **changes):
    options = {"data": "digits", "model": "cnn-small", "epochs": 1, "batch-size": 250} | changes
    return ["train", *method.split(), *(str(part) for name in options for part in (f"--{name}", options[name]))]


SMALL = ["--limit", "20", "--quiet"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("cli") / "run"
    assert run([*train("method:gaussian --method.sigma 0.25", lr=0.002, out=out), "--quiet"]) == 0
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


def test_help_lists_every_command(capsys):
    assert run(["--help"]) == run([]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_its_options(name, capsys):
    with pytest.raises(SystemExit) as stop:
        run([name, "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert f"usage: rhobust {name}" in text
    assert not re.search(r"\[(\[|\{None\}\|)(PATH|STR)", text), "a positional argument has no name"
    if name != "data":
        assert all(option in text for option in ("--device", "--json", "--quiet"))


def test_the_console_script_and_the_module(capsys):
    for command in ([sys.executable, "-m", "rhobust"],):
        result = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
        assert result.stdout.startswith("rhobust 0.")


def test_a_reader_who_leaves_is_no_mistake(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "rhobust", "data", "list"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, cwd=tmp_path, check=False)
    os.close(writer)
    assert done.stderr == b""
    assert done.returncode == 141


@pytest.mark.parametrize(
    ("arguments", "again"),
    [(train(), "the same command with --resume goes on"), (["certify", "run"], "the same command goes on")],
)
def test_an_interruption_says_how_to_go_on(arguments, again, capsys, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("rhobust.cli.parse", stop)
    assert run(arguments) == 130
    assert again in capsys.readouterr().err


def test_train_attack_certify_report(folder, capsys):
    attack = document(
        capsys, ["attack", str(folder), "attack:pgd", "--attack.steps", "3", "--radii", "0", "0.5", *SMALL]
    )
    assert [point["radius"] for point in attack["summary"]["robust_accuracy"]] == [0, 0.5]
    assert attack["settings"]["attack"]["steps"] == 3
    eot = document(capsys, ["attack", str(folder), "--radii", "0", "0.5", "--votes", "20", *SMALL])
    assert eot["settings"]["attack"]["kind"] == "eot"
    certify = document(capsys, ["certify", str(folder), "--n", "200", "--radii", "0", "0.25", *SMALL])
    assert certify["summary"]["certified_accuracy"][0]["n"] == 20
    shift = document(capsys, ["certify-shift", str(folder), "--eps", "0", "0.1", "--quiet"])
    assert shift["summary"]["points"] == 797
    soft = document(
        capsys, ["certify-shift", str(folder), "--loss", "cross-entropy", "--bound", "2", "--eps", "0.1", *SMALL]
    )
    assert soft["settings"]["bound"] == 2.0
    assert soft["summary"]["curve"][0]["certified_loss"] <= 2.0
    beside = document(
        capsys, ["certify-shift", str(folder), "--classifier", "k-vote", "--beside", "--eps", "0.1", *SMALL]
    )
    assert beside["settings"]["votes"] == 3
    assert [other["name"] for other in beside["summary"]["beside"]] == ["ours", "kumar", "ours", "cohen"]
    curves = document(capsys, ["curves", str(folder), "--gammas", "1", "4", "--eps", "0", "0.1", *SMALL])
    assert [point["gamma"] for point in curves["summary"]["attacks"]] == [1.0, 4.0]
    assert run(["curves", str(folder), "--gammas", "1", "4", "--eps", "0", "0.1", *SMALL]) == 0
    assert "the estimate bounds nothing" in capsys.readouterr().out
    report = document(capsys, ["report", str(folder), "--out", str(folder / "report.html")])
    assert "<html" in (folder / "report.html").read_text()
    assert report == {"report": str(folder / "report.html"), "problems": []}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A network trained without noise."""
    out = tmp_path_factory.mktemp("cli") / "plain"
    assert run([*train("method:erm", lr=0.002, out=out), "--quiet"]) == 0
    return out


def test_a_run_without_noise_needs_sigma_to_be_attacked_through_it(plain, capsys):
    assert "without noise, or nobody knows, so --sigma must be given" in refused(capsys, ["attack", str(plain), *SMALL])
    assert document(capsys, ["attack", str(plain), "--sigma", "0.25", "--radii", "0", "--votes", "5", *SMALL])


def test_transfer_noise_and_readings(folder, plain, capsys):
    small = ["--radii", "0", "0.5", "--votes", "10", *SMALL]
    runs = [str(folder), str(plain)]
    arguments = ["transfer", *runs, "attack:pgd", "--attack.steps", "3", *small]
    matrix = document(capsys, arguments)
    assert matrix["runs"] == runs
    assert [len(record["summary"]["targets"]) for record in matrix["records"]] == [2, 2]
    one = document(capsys, ["attack", *runs[:1], "attack:pgd", "--attack.steps", "3", "--source", runs[1], *small])
    assert one["settings"]["source"]["model_hash"] == matrix["records"][1]["settings"]["model_hash"]
    assert run(arguments) == 0
    shown = capsys.readouterr().out
    assert f"judged: {runs[0]} smoothed, {runs[1]} base" in shown
    comparison = document(capsys, ["noise", *runs, "attack:pgd", "--attack.steps", "3", "--sigma", "0.25", *small])
    assert [entry["with"]["settings"]["scored"] for entry in comparison["runs"]] == ["smoothed"] * 2
    assert run(["noise", *runs, "attack:pgd", "--attack.steps", "3", "--sigma", "0.25", *small]) == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()[1:5]] == ["with", "without"] * 2
    readings = document(capsys, ["readings", runs[1], "--steps", "2", "3", *small])
    assert len(readings["readings"]) == 4
    assert run(["readings", runs[1], "--steps", "2", "3", *small]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == ["PGD-2"] * 2 + ["PGD-3"] * 2


def test_attack_shows_votes_and_warnings(folder, capsys):
    weak = ["attack:pgd", "--attack.schedule", "constant", "--attack.relative-step", "0.2", "--attack.restarts", "0"]
    weak += ["--scored", "smoothed", "--radii", "0", "1"]
    assert run(["attack", str(folder), *weak, "--limit", "60", "--quiet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.split(" {2,}", lines[0])[-2:] == ["undecided votes", "if decided"]
    assert any(line.startswith("warning: a stronger attack gains ") for line in lines)
    curve = document(capsys, ["attack", str(folder), *weak, "--limit", "60"])["summary"]["robust_accuracy"]
    for line, point in zip(lines[1:], curve, strict=False):
        low, high = map(float, re.split(" {2,}", line)[2].split(" to "))
        assert low <= point["low"] <= point["high"] <= high


def test_predict_compare_and_audit(folder, capsys, tmp_path):
    images = rhobust.load("digits", "test").images
    for number in (0, 1):
        Image.fromarray(images[number, 0].numpy()).save(tmp_path / f"{number}.png")
    files = [str(tmp_path / f"{number}.png") for number in (0, 1)]
    found = document(capsys, ["predict", str(folder), *files, "--n", "200"])
    smoothed = rhobust.SmoothedClassifier(rhobust.open_run(folder).load_model(), 0.25, 10)
    assert [answer["prediction"] for answer in found["predictions"]] == smoothed.predict(images[:2], n=200)
    assert found["warnings"] == []
    other = document(capsys, ["predict", str(folder), files[0], "--n", "50", "--sigma", "0.5"])
    assert other["warnings"] == ["the network was trained with noise 0.25 and is smoothed with 0.5"]
    assert run(["predict", str(folder), *files, "--alpha", "0.5"]) == 0
    assert "class most probable under noise" in capsys.readouterr().out
    Image.new("L", (9, 8)).save(tmp_path / "wide.png")
    refusal = refused(capsys, ["predict", str(folder), str(tmp_path / "wide.png")])
    assert "wide.png must be an image of shape 1x8x8, got 1x8x9" in refusal

    table = str(tmp_path / "table.tsv")
    record = document(capsys, ["certify", str(folder), "--n", "200", "--tsv", table, "--seed", "7", *SMALL])["record"]
    curves = document(capsys, ["compare", record, table, "--radii", "0", "0.25"])["files"]
    assert [curve["standing"] for curve in curves] == ["proved", "claimed"]
    assert curves[0]["certified_accuracy"] == curves[1]["certified_accuracy"]
    again = tmp_path / "again.tsv"
    assert run(["compare", record, "--tsv", str(again)]) == 0
    assert again.read_text() == (tmp_path / "table.tsv").read_text()
    assert "--tsv must come with one record" in refused(capsys, ["compare", record, table, "--tsv", str(again)])
    given = str(compress(Path(record), tmp_path))
    assert document(capsys, ["compare", given, "--radii", "0", "0.25"])["files"] == [{**curves[0], "file": given}]
    changed = tmp_path / Path(record).name
    changed.write_text(Path(record).read_text().replace('"count": ', '"count": 1', 1))
    assert "must be as it was written to be called proved" in refused(capsys, ["compare", str(changed)])
    assert document(capsys, ["audit", record, "--quiet"])["audits"][0]["problems"] == []


def test_certified_numbers_are_printed_rounded_down(folder, capsys):
    arguments = ["certify-shift", str(folder), "--eps", "0", "0.1", "--quiet"]
    curve = document(capsys, arguments)["summary"]["curve"]
    assert run(arguments) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()[1:3]]
    for point, (eps, accuracy) in zip(curve, shown, strict=True):
        assert float(eps) == point["eps"]
        assert 0 <= point["certified_accuracy"] - float(accuracy) < 1e-3


def test_data_list_and_check(capsys):
    names = [entry["name"] for entry in document(capsys, ["data", "list"])]
    assert names == ["mnist", "cifar10", "tiny-imagenet", "tiny-imagenet-50", "digits"]
    checked = document(capsys, ["data", "check", "digits"])
    assert (checked["train"], checked["test"], checked["classes"]) == (1000, 797, 10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-command"], "the command must be one of quickstart, data, train"),
        (train("method:nal --method.sigma -1"), "sigma must be > 0, got -1.0"),
        (train("method:nal --method.sigmaa 1"), "--method.sigma"),
        (train("method:nil"), "method:erm, method:gaussian"),
        (train(""), "method:erm"),
        (train(epochs=0), "epochs must be >= 1, got 0"),
        (train(data="minst"), "data must be one of mnist, cifar10, tiny-imagenet, tiny-imagenet-50, digits"),
        (train(model="resnet"), "model must be one of cnn, cnn-small, resnet18, vgg16"),
        (train(device="tpu"), "device must be auto, cpu"),
        (train(data="mnist", root="/nowhere"), "rhobust data get mnist"),
        (["attack", "/nowhere/run"], "/nowhere/run must be a run folder, but there is no such folder"),
        (["attack"], "a run folder, or all of --model, --weights, --data and --out must be given"),
        (["certify", "/nowhere/run"], "there is no such folder"),
        (["certify-shift", "/nowhere/run"], "there is no such folder"),
        (["report", "/nowhere/run"], "/nowhere/run"),
        (["compare", "."], ". must be a record of certify or a table, got a folder"),
        (["report", "/nowhere/run", "--out", "."], "out must name a file, got the folder ."),
        (["audit", "/nowhere/record"], "/nowhere/record must exist, but there is no such file"),
        (["transfer"], "at least one run folder must be given, got none"),
        (["noise", "/nowhere/run"], "there is no such folder"),
        (["data", "check", "mnist", "--root", "/nowhere"], "mnist"),
        (["data", "get", "mnst"], "data must be one of mnist"),
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
        (["certify", "--alpha", "1.5"], "alpha must lie in (0, 1), got 1.5"),
        (["certify", "--n", "10"], "n must be >= n0 >= 1, got n=10 and n0=100"),
        (["certify", "--sigma", "0"], "sigma must be > 0, got 0.0"),
        (["certify", "--way", "grid"], "radii must be given for the way grid, got none"),
        (["certify", "--tolerance", "0.1", "--way", "cohen"], "tolerance must come with the way two-stage"),
        (["certify", "--tolerance", "0"], "tolerance must be > 0, got 0.0"),
        (["certify", "--dtype", "float16", "--device", "cpu"], "dtype must be float32 or bfloat16 on a cpu"),
        (["certify", "--noise", "laplace"], "grid"),
        (["predict"], "a run folder and at least one image must be given, got 1 names"),
        (["predict", "/nowhere.png"], "/nowhere.png must be an image file, but there is no such file"),
        (["certify-shift", "--draws", "0"], "draws must be >= 1, got 0"),
        (["certify-shift", "--eps", "-0.1"], "eps must be >= 0, got -0.1"),
        (["certify-shift", "--eps", "nan"], "eps must be finite, got nan"),
        (["certify-shift", "--votes", "5"], "votes must be left out for the randomised classifier, got 5"),
        (["certify-shift", "--bound", "5"], "bound must be left out for the 0-1 loss, got 5.0"),
        (["certify-shift", "--cost", "w3"], "w1"),
        (
            ["certify-shift", "--loss", "cross-entropy", "--beside"],
            "beside must be left out for a loss that is not 0-1",
        ),
        (["certify-shift", "--loss", "cross-entropy", "--classifier", "majority"], "loss must be 0-1 for the majority"),
        (["curves", "--gammas", "0"], "gammas must be > 0 and finite"),
        (["curves", "--alpha", "2"], "alpha must lie in (0, 1), got 2.0"),
        (["attack", "--model", "a:b"], "a run folder must stand alone"),
        (["attack", "--votes", "0"], "votes must be >= 1, got 0"),
        (["attack", "--source", "/nowhere/run"], "/nowhere/run must be a run folder, but there is no such folder"),
        (["attack", "attack:pgd", "--attack.restarts", "-1"], "restarts must be >= 0, got -1"),
        (["readings", "--steps", "0"], "steps must be >= 1, got 0"),
        (["transfer"], "a transfer attack needs at least two runs, got 1"),
    ],
)
def test_a_mistake_about_a_run_is_one_line(arguments, message, folder, capsys):
    assert message in refused(capsys, [arguments[0], str(folder), *arguments[1:], "--quiet"])


def test_a_share_that_cannot_be_is_one_line(folder, capsys):
    record = document(capsys, ["certify", str(folder), "--n0", "10", "--n", "50", *SMALL])["record"]
    message = "share must lie in [0, 1], got -1"
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
    records = [str(tmp_path / "records"), "--sigma", "0.25"]
    assert document(capsys, ["certify-shift", *records, *shift])["record"] == mine["record"]
    assert "holds records of mine_network:make" in refused(capsys, ["predict", records[0], "image.png"])
    assert "got no --weights, no --out" in refused(capsys, ["attack", *own[:2], "--data", "digits"])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return nn.Linear(64, 10)", "the network must take float32 images of shape 1x8x8, but it fails: "),
        ("return nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).half()", "must take float32 images"),
        ("return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Unflatten(1, (10, 1)))", "got (1, 10, 1) for one"),
        ("return nn.Sequential(nn.Flatten(), Answer(64, 10))", "logits of shape (n, classes), got a dict for one"),
        ("return nn.Sequential(nn.Flatten(), nn.Linear(64, 9))", "returns 9 logits an image, got 10 classes"),
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
    with contextlib.suppress(ValueError):
        save_file(load_factory_model("misfit:make").state_dict(), "weights.safetensors")
    options = ["--model", "misfit:make", "--weights", "weights.safetensors", "--data", "digits", "--out", "records"]
    for command in ("certify-shift", "certify", "attack"):
        assert message in refused(capsys, [command, *options, "--sigma", "0.25", *SMALL])
    wrong_width = "a logit for each of the 10 classes, got 9"
    trained = refused(capsys, train(model="misfit:make", out="run"))
    assert (wrong_width if "got 10 classes" in message else message) in trained
    assert not Path("records").exists()


@pytest.fixture
def pairs(tmp_path):
    """Test digits in a folder a class, and the same as JPEG."""
    test = rhobust.load("digits", "test")
    for number in range(30):
        for side, suffix in (("before", "png"), ("after", "jpg")):
            place = tmp_path / side / str(test.labels[number].item())
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(test.images[number, 0].numpy()).save(place / f"{number}.{suffix}")
    return [str(tmp_path / "before"), str(tmp_path / "after")]


def test_measure_shift(folder, pairs, capsys, tmp_path):
    alone = document(capsys, ["measure-shift", *pairs, "--quiet"])
    assert alone["record"] is None
    assert 0 < alone["summary"]["shift"]["eps"] < alone["summary"]["shift"]["eps_upper"]
    kept = document(capsys, ["measure-shift", *pairs, "--out", str(tmp_path / "kept"), "--quiet"])
    assert kept["summary"] == alone["summary"]
    assert kept["record"].startswith(str(tmp_path / "kept" / "measure-shift-"))
    arguments = ["measure-shift", *pairs, "--run", str(folder), "--draws", "5", "--alpha", "0.5", "--quiet"]
    certified = document(capsys, arguments)
    summary = certified["summary"]
    assert summary["certificate"]["certified_accuracy"] < summary["after"]["accuracy"]
    assert summary["shift"]["eps"] == alone["summary"]["shift"]["eps"]
    assert run(arguments) == 0
    out = capsys.readouterr().out
    assert summary["shift"]["statement"] in out
    assert summary["certificate"]["statement"] in out
    shown = next(line for line in out.splitlines() if line.startswith("certified after the change")).split()
    assert 0 <= summary["certificate"]["certified_accuracy"] - float(shown[4]) < 1e-3
    assert certified["record"] in out
    own = ["--model", "mine:make", "--quiet"]
    assert "all of --model, --weights" in refused(capsys, ["measure-shift", *pairs, *own])
    assert "--sigma must come with a network" in refused(capsys, ["measure-shift", *pairs, "--sigma", "0.25"])
    assert "every image must have a partner" in refused(capsys, ["measure-shift", pairs[0], str(tmp_path), "--quiet"])
    assert "two folders, or two .npy" in refused(capsys, ["measure-shift", "/nowhere", pairs[1]])


def test_quickstart_twice_gives_the_same_numbers_and_another_seed_gives_others(capsys, tmp_path):
    tiny = ["quickstart", "--epochs", "1", "--limit", "4", "--n", "100", "--quiet"]

    def numbers(out, seed):
        result = document(capsys, [*tiny, "--out", str(tmp_path / out), "--seed", seed])
        summaries = [record["summary"] for one in result["runs"] for record in one["records"]]
        return [{key: value for key, value in summary.items() if key != "seconds"} for summary in summaries]

    first = numbers("a", "0")
    assert first == numbers("b", "0")
    assert first != numbers("c", "1")
    assert (tmp_path / "a" / "report.html").exists()
