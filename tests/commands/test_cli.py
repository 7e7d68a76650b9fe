"""The command line, called as a user calls it."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import rhobust
from commands.conftest import SMALL, document, refused, trained
from rhobust import process
from rhobust.cli import COMMANDS, run
from rhobust.commands import quickstart
from rhobust.records import compress


def test_help_lists_every_command(capsys):
    assert run(["--help"]) == run([]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_its_options(name, capsys):
    assert run([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"usage: rhobust {name}" in text
    assert not re.search(r"\[(\[|\{None\}\|)(PATH|STR)", text), "a positional argument has no name"
    if name != "data":
        assert all(option in text for option in ("--json", "--quiet", "--debug"))
        assert ("--device" in text) == (name not in ("report", "compare", "sign", "publish"))


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
    [
        (["train", "method:erm"], "rhobust train method:erm --resume"),
        (["certify", "my run"], "rhobust certify 'my run'"),
        (["predict", "my run", "a.png"], None),
    ],
)
def test_an_interruption_says_how_to_go_on(arguments, again, capsys, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("rhobust.cli.parse", stop)
    assert run(arguments) == 130
    said = capsys.readouterr().err
    if again is None:
        assert said.endswith("; nothing is kept; this begins again: rhobust predict 'my run' a.png\n")
    else:
        assert said.endswith(f"this goes on from there: {again}\n")


@pytest.mark.parametrize("word", ["attack:fgsm", "method:fgsm"])
def test_a_mistyped_attack_is_not_taken_for_a_folder(word, capsys):
    assert run(["attack", word, "--model", "net.py:make", "--data", "digits", "--out", "mine"]) == 2
    role = word.partition(":")[0]
    assert capsys.readouterr().err.startswith(f"rhobust: {role} must be one of {role}:")


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
        capsys, ["certify-shift", str(folder), "--classifier", "k-vote", "--baselines", "--eps", "0.1", *SMALL]
    )
    assert beside["settings"]["votes"] == 3
    assert [other["name"] for other in beside["summary"]["beside"]] == ["ours", "kumar", "ours", "cohen"]
    curves = document(capsys, ["curves", str(folder), "--gammas", "1", "4", "--eps", "0", "0.1", *SMALL])
    assert [point["gamma"] for point in curves["summary"]["attacks"]] == [1.0, 4.0]
    assert run(["curves", str(folder), "--gammas", "1", "4", "--eps", "0", "0.1", *SMALL]) == 0
    assert "the estimate is not a bound" in capsys.readouterr().out
    report = document(capsys, ["report", str(folder), "--out", str(folder / "report.html")])
    assert "<html" in (folder / "report.html").read_text()
    assert report == {"report": str(folder / "report.html"), "problems": [], "left_out": [], "contradictions": []}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A network trained without noise."""
    return trained(tmp_path_factory, "method:erm")


def test_a_run_without_noise_needs_sigma_to_be_attacked_through_it(plain, capsys):
    assert "has no training noise on record: pass --sigma, or attack the base network with attack:pgd" in refused(
        capsys, ["attack", str(plain), *SMALL]
    )
    assert document(capsys, ["attack", str(plain), "--sigma", "0.25", "--radii", "0", "--votes", "5", *SMALL])


def test_transfer(folder, plain, capsys):
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
    assert f"predictor: {runs[0]} smoothed, {runs[1]} base" in shown


def test_attack_shows_votes_and_warnings(folder, capsys):
    weak = ["attack:pgd", "--attack.schedule", "constant", "--attack.relative-step", "0.2", "--attack.restarts", "0"]
    weak += ["--predictor", "smoothed", "--radii", "0", "1"]
    assert run(["attack", str(folder), *weak, "--limit", "60", "--quiet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.split(" {2,}", lines[0])[-2:] == ["votes not significant", "if all were decided"]
    assert any(line.startswith("warning: a stronger attack gains ") for line in lines)
    curve = document(capsys, ["attack", str(folder), *weak, "--limit", "60"])["summary"]["robust_accuracy"]
    for line, point in zip(lines[1:], curve, strict=False):
        low, high = map(float, re.split(" {2,}", line)[2].split(" to "))
        assert low <= point["low"] <= point["high"] <= high


NEIGHBOURLY = """
from torch import nn


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False))

    def forward(self, x):
        return self.network(x - x.mean(0))


def make():
    return Network()
"""


def test_predict_compare_and_audit(folder, capsys, tmp_path, monkeypatch):
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
    (tmp_path / "neighbourly.py").write_text(NEIGHBOURLY)
    monkeypatch.syspath_prepend(tmp_path)
    save_file({"network.1.weight": torch.ones(10, 64)}, tmp_path / "weights.safetensors")
    own = ["--model", "neighbourly:make", "--weights", str(tmp_path / "weights.safetensors"), "--sigma", "0.25"]
    assert "the network must be batch-independent" in refused(capsys, ["predict", files[0], *own])

    table = str(tmp_path / "table.tsv")
    record = document(capsys, ["certify", str(folder), "--n", "200", "--tsv", table, "--seed", "7", *SMALL])["record"]
    curves = document(capsys, ["compare", record, table, "--radii", "0", "0.25"])["comparisons"][0]["files"]
    assert [curve["status"] for curve in curves] == ["proved", "claimed"]
    assert curves[0]["certified_accuracy"] == curves[1]["certified_accuracy"]
    assert "against_first" not in curves[0]
    assert [(point["radius"], point["difference"]) for point in curves[1]["against_first"]] == [(0, 0), (0.25, 0)]

    def reason(*others):
        return document(capsys, ["compare", record, *others])["comparisons"][0]["files"][-1]["not_compared"]

    fewer = tmp_path / "fewer.tsv"
    fewer.write_text("\n".join(Path(table).read_text().splitlines()[:-1]))
    assert "must be of the same images" in reason(str(fewer))
    digits = rhobust.load("digits", "test")
    np.savez(tmp_path / "paler.npz", x_test=digits.images.numpy() // 2, y_test=digits.labels.numpy())
    paler = ["certify", str(folder), "--data", str(tmp_path / "paler.npz"), "--n", "200", *SMALL]
    assert "must have the same images" in reason(document(capsys, paler)["record"])
    grid = document(capsys, ["certify", str(folder), "--n", "200", "--radii", "0", "0.25", *SMALL])["record"]
    assert "must have the same procedure" in reason(grid)
    [found] = document(capsys, ["compare", grid, grid, "--radii", "0", "0.1", "0.25", "1"])["comparisons"]
    told = found["files"]
    assert [point["radius"] for point in told[0]["certified_accuracy"]] == [0, 0.25], "a grid knows its own radii"
    assert [point["radius"] for point in told[1]["against_first"]] == [0, 0.25]
    for radii in ([], ["-1"], ["nan"]):
        assert "radii must" in refused(capsys, ["compare", record, "--radii", *radii])
    again = tmp_path / "again.tsv"
    assert run(["compare", record, "--tsv", str(again)]) == 0
    assert again.read_text() == (tmp_path / "table.tsv").read_text()
    assert "--tsv must come with one record" in refused(capsys, ["compare", record, table, "--tsv", str(again)])
    given = str(compress(Path(record), tmp_path))
    [found] = document(capsys, ["compare", given, "--radii", "0", "0.25"])["comparisons"]
    title = "Certified accuracy, procedure fixed, at most 200 noise samples"
    assert found == {"title": title, "radii": [0, 0.25], "files": [{**curves[0], "file": given}]}
    changed = tmp_path / Path(record).name
    changed.write_text(Path(record).read_text().replace('"count": ', '"count": 1', 1))
    assert "must be as it was written, but it was changed" in refused(capsys, ["compare", str(changed)])
    assert document(capsys, ["audit", record, "--quiet"])["audits"][0]["problems"] == []


def test_attacks_and_folders_are_compared(capsys, tmp_path_factory):
    folder = trained(tmp_path_factory, "method:gaussian --method.sigma 0.25")
    other = trained(tmp_path_factory, "method:gaussian --method.sigma 0.5")
    attack = ["attack:pgd", "--radii", "0", "0.5", *SMALL]
    records = [document(capsys, ["attack", str(place), *attack])["record"] for place in (folder, other)]
    [found] = document(capsys, ["compare", *records])["comparisons"]
    told = found["files"]
    assert found["radii"] == [0, 0.5], "those of the attack where none are given"
    assert [one["status"] for one in told] == ["upper bound", "upper bound"]
    assert [[point["radius"] for point in one["robust_accuracy"]] for one in told] == [[0, 0.5]] * 2
    assert [one["n"] for one in told] == [20, 20]
    for place, point in enumerate(told[1]["against_first"]):
        accuracies = [one["robust_accuracy"][place]["accuracy"] for one in told]
        assert point["difference"] == pytest.approx(accuracies[1] - accuracies[0])
        assert point["low"] < point["difference"] < point["high"]

    def reason(record):
        return document(capsys, ["compare", records[0], record])["comparisons"][0]["files"][1]["not_compared"]

    votes = ["attack", str(folder), "attack:eot", "--attack.steps", "1", "--radii", "0", "0.5", *SMALL]
    assert "must have the same attack" in reason(document(capsys, votes)["record"])
    lent = ["attack", str(folder), "--source", str(other), *attack]
    assert "must have the same source" in reason(document(capsys, lent)["record"])
    proved = document(capsys, ["certify", str(folder), "--n", "200", *SMALL])["record"]
    assert reason(proved) == "a record of certify is not compared with one of attack"

    # Folders are compared record by record; what only one of them has is left out.
    [found] = document(capsys, ["compare", str(folder), str(other)])["comparisons"]
    assert found == document(capsys, ["compare", *records])["comparisons"][0]
    second = document(capsys, ["certify", str(other), "--n", "200", *SMALL])["record"]
    pairs = document(capsys, ["compare", str(other), str(folder)])["comparisons"]
    assert [[one["file"] for one in pair["files"]] for pair in pairs] == [records[::-1], [second, proved]]
    assert run(["compare", str(folder), str(other)]) == 0
    out = capsys.readouterr().out
    assert out.count("on the same images, with 95% intervals over images:") == 2
    attacked, certified = out.split("\n\nCertified accuracy, procedure ")
    assert attacked.startswith("Robust accuracy under PGD"), "an empty line between two comparisons"
    assert certified.splitlines()[1].startswith("file ")
    [found] = document(capsys, ["compare", str(folder), second])["comparisons"]
    assert [one["file"] for one in found["files"]] == [proved, second], "a file is compared with the folder's own"
    assert "must be compared with another folder or file" in refused(capsys, ["compare", str(folder)])
    empty = tmp_path_factory.mktemp("empty")
    assert "must hold a certificate or an attack that another" in refused(capsys, ["compare", str(folder), str(empty)])
    for given, got in ((records, "2 files"), ([str(empty)], str(empty))):
        line = refused(capsys, ["compare", *given, "--tsv", "table.tsv"])
        assert f"--tsv must come with one record, got {got}" in line


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
    assert names == ["mnist", "cifar10", "cifar100", "svhn", "tiny-imagenet", "tiny-imagenet-50", "digits"]
    checked = document(capsys, ["data", "check", "digits"])
    assert (checked["train"], checked["test"], checked["classes"]) == (1000, 797, 10)


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
    assert kept["summary"]["shift"] == alone["summary"]["shift"]
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
    shown = next(line for line in out.splitlines() if line.startswith("after every change")).split()
    assert 0 <= summary["certificate"]["certified_accuracy"] - float(shown[8]) < 1e-3
    assert summary["recentred"]["curve"][0]["statement"] in out
    assert certified["record"] in out
    own = ["--model", "mine:make", "--quiet"]
    assert "all of --model, --data" in refused(capsys, ["measure-shift", *pairs, *own])
    assert "--sigma must come with a network" in refused(capsys, ["measure-shift", *pairs, "--sigma", "0.25"])
    assert "every image must have a partner" in refused(capsys, ["measure-shift", pairs[0], str(tmp_path), "--quiet"])
    assert "two folders, or two .npy" in refused(capsys, ["measure-shift", "/nowhere", pairs[1]])


def test_monitor_fails_below_its_floor(folder, pairs, capsys):
    sides = ["--reference", pairs[0], "--changed", pairs[1], "--draws", "5", "--alpha", "0.5", "--quiet"]
    arguments = ["monitor", str(folder), *sides]
    good = document(capsys, [*arguments, "--at-least", "0.1"])
    assert good["passed"] is True
    assert [point["eps"] for point in good["summary"]["recentred"]["curve"]] == [0.0]
    assert run([*arguments, "--at-least", "1"]) == 1
    captured = capsys.readouterr()
    assert "must be certified >= 1, got 0." in captured.err
    assert "failed" in captured.out
    assert "--reference and --changed must be given" in refused(capsys, ["monitor", str(folder)])
    assert "at_least must be in [0, 1], got 2.0" in refused(capsys, [*arguments, "--at-least", "2"])


@pytest.mark.slow
def test_quickstart_twice_gives_the_same_numbers_and_another_seed_gives_others(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(quickstart, "METHODS", quickstart.METHODS[2:])
    tiny = ["quickstart", "--epochs", "1", "--limit", "4", "--n", "100", "--quiet"]

    def numbers(out, seed):
        result = document(capsys, [*tiny, "--out", str(tmp_path / out), "--seed", seed])
        summaries = [record["summary"] for one in result["runs"] for record in one["records"]]
        return [{key: value for key, value in summary.items() if key != "seconds"} for summary in summaries]

    first = numbers("a", "0")
    assert first == numbers("b", "0")
    assert first != numbers("c", "1")
    assert (tmp_path / "a" / "report.html").exists()


def test_help_says_what_to_give_and_what_a_negated_flag_does(capsys):
    assert run(["attack", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "None" not in shown.replace("None spreads", "")
    assert re.search(r"\n  --root PATH {2,}Folder of the data sets", shown)
    assert re.search(r"\n  --no-nested {2,}Attack every example at every radius, not only", shown)
    assert "(default: True)" not in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_a_termination_that_a_library_took_for_ctrl_c_keeps_its_exit_code(monkeypatch, capsys):
    handlers = {}
    monkeypatch.setattr(process.signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(process, "asked", set())
    process.catch_signals()
    stop = handlers[signal.SIGTERM]
    assert process.answer(KeyboardInterrupt(), ["report"]) == 130
    with pytest.raises(process.TerminatedError):
        stop(signal.SIGTERM, None)
    assert process.answer(KeyboardInterrupt(), ["report"]) == 143
    capsys.readouterr()
