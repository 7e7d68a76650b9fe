"""The example and the guides, run as a reader would run them."""

import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import torch

from rhobust.cli import run
from tests.conftest import load_script

ROOT = Path(__file__).parent.parent
GUIDES = ROOT / "docs" / "guides"


@pytest.fixture(scope="module")
def example():
    return load_script("examples/measure_shift.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("examples") / "run"
    options = "method:gaussian --method.sigma 0.25 --data digits --model cnn-small --epochs 3 --lr 0.002"
    assert run(["train", *options.split(), "--out", str(out), "--quiet"]) == 0
    return out


def test_the_example_prints_a_line_a_change(example, folder, tmp_path, monkeypatch, capsys):
    few = ("none", "JPEG, quality 95", "JPEG, quality 25")
    monkeypatch.setattr(example, "CHANGES", {name: example.CHANGES[name] for name in few})
    out = tmp_path / "rows.json"
    options = [str(folder), "--limit", "150", "--draws", "4", "--alpha", "0.2", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["measure_shift.py", *options])
    example.main()
    header, *lines, last = capsys.readouterr().out.splitlines()
    assert header.split() == ["change", "eps", "at", "most", "certified", "measured", "95%", "interval"]
    rows = json.loads(out.read_text())["rows"]
    assert lines == [example.line(row) for row in rows]
    assert [row["change"] for row in rows] == list(few)
    assert last == "150 images, 4 draws, sigma 0.25, alpha 0.2 a line"
    eps = {row["change"]: row["shift"]["eps"] for row in rows}
    assert eps["none"] == 0 < eps["JPEG, quality 95"] < eps["JPEG, quality 25"]
    certified = {row["change"]: row["certificate"]["certified_accuracy"] for row in rows}
    assert certified["none"] > certified["JPEG, quality 95"] > 0
    assert all(certified[row["change"]] <= row["measured"]["accuracy"] for row in rows)


def test_every_change_keeps_the_shape_and_moves_the_image(example):
    rng = torch.Generator().manual_seed(0)
    for channels in (1, 3):
        images = torch.randint(256, (2, channels, 8, 8), dtype=torch.uint8, generator=rng)
        for name, change in example.CHANGES.items():
            after = example.changed(images, change)
            assert (after.shape, after.dtype) == (images.shape, torch.uint8)
            assert torch.equal(after, images) == (name == "none")
    ramp = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    darker = example.changed(ramp, example.gamma(2.0)).flatten().float()
    assert torch.equal(darker, (255 * (ramp.flatten() / 255).double() ** 2).round().float())


def test_a_run_without_noise_is_refused(example, tmp_path, monkeypatch, capsys):
    options = ["--data", "digits", "--model", "cnn-small", "--epochs", "1", "--out", str(tmp_path), "--quiet"]
    assert run(["train", "method:erm", *options]) == 0
    monkeypatch.setattr(sys, "argv", ["measure_shift.py", str(tmp_path)])
    with pytest.raises(SystemExit) as stop:
        example.main()
    assert stop.value.code == 2
    assert "must be trained with noise" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["digits", "mnist"])
def test_the_tables_of_the_page_are_the_records(name, example):
    document = json.loads((ROOT / "results" / "measured-shift" / f"measure-shift-{name}.json").read_text())
    assert [row["change"] for row in document["rows"]] == list(example.CHANGES)
    for row in document["rows"]:
        assert example.line(row) in (GUIDES / "measure-shift.md").read_text(encoding="utf-8")
        # What is proved stays below what was measured, and the bound of eps above what was measured.
        assert row["certificate"]["certified_accuracy"] < row["measured"]["low"]
        assert row["shift"]["eps"] <= row["shift"]["eps_capped"] <= row["shift"]["eps_upper"]


@pytest.mark.slow
def test_a_bound_for_a_review(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    own = (GUIDES / "own-model-and-data.md").read_text(encoding="utf-8")
    network = re.search(r"^`mynet.py`:\n\n```python\n(.*?)^```", own, re.MULTILINE | re.DOTALL)[1]
    Path("mynet.py").write_text(network)
    for language, code in re.findall(
        r"^```(python|sh)\n(.*?)^```",
        (GUIDES / "review.md").read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    ):
        if language == "python":
            exec(code, {"__name__": "review"})
            continue
        for line in code.splitlines():
            # Fewer epochs and noise samples than the page asks for: the path is what is tested.
            short = re.sub(r"--draws \d+", "--draws 5", re.sub(r"--epochs \d+", "--epochs 2", line))
            assert run(shlex.split(short)[1:]) == 0
    out = capsys.readouterr().out
    statement = next(line for line in out.splitlines() if "after every other change" in line)
    [record] = Path("runs/mynet").glob("measure-shift-*.jsonl")
    assert str(record) in out
    assert statement in Path("review.html").read_text(encoding="utf-8")
    shown = float(re.search(r"at least ([\d.]+)%", statement)[1])
    assert shown > 0


def test_the_pretrained_model_can_be_tried(tmp_path, monkeypatch, capsys):
    for name in ("results/pretrained/mnist-nal", "examples/mnist"):
        shutil.copytree(ROOT / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    page = (GUIDES / "pretrained.md").read_text(encoding="utf-8")
    commands = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    for line in "".join(commands).splitlines():
        # Fewer images and noise samples than the page asks for: the path is what is tested.
        short = re.sub(r"--n \d+", "--n 300", re.sub(r"--limit \d+", "--limit 2", line))
        short += " --limit 100 --draws 4" if "certify-shift" in line else ""
        assert run([*shlex.split(short)[1:], "--json", "--quiet"]) == 0
    seven, radii, shift, named = (json.loads(text) for text in capsys.readouterr().out.splitlines() if text)
    assert seven["predictions"][0]["class"] == "7"
    assert named["predictions"] == seven["predictions"]
    assert radii["summary"]["certified_accuracy"][1]["accuracy"] == 1.0
    assert shift["summary"]["curve"][0]["certified_accuracy"] > 0.5


def test_runs_that_hold_out_other_images_are_not_routed_together(tmp_path, monkeypatch):
    example, runs = load_script("examples/routed.py"), [str(tmp_path / seed) for seed in "01"]
    shape = "method:gaussian --method.sigma 0.25 --data digits --model cnn-small --epochs 1 --validation 100 --quiet"
    for seed, out in enumerate(runs):
        assert run(["train", *shape.split(), "--seed", str(seed), "--out", out]) == 0
    held_out = ["certify", *runs, "--router", runs[0], "--split", "validation"]
    for command in (["routes", *runs], held_out):
        monkeypatch.setattr(sys, "argv", ["routed.py", *command, "--out", str(tmp_path / "out"), "--limit", "2"])
        with pytest.raises(SystemExit, match="the runs must have the same images"):
            example.main()
