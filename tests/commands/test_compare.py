"""compare: runs beside tables of other programs, names, seeds, and tables for papers."""

import json
import re
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from rhobust.cli import run
from rhobust.measurements import write_tsv
from rhobust.methods import Gaussian
from rhobust.progress import no_progress
from rhobust.records import read_record


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three trainings that differ in their seeds, and one with more noise, each certified on the same images."""
    from rhobust import TrainConfig, train
    from rhobust.evaluation import Certify, Target
    from rhobust.evaluation import run as evaluate

    place = tmp_path_factory.mktemp("runs")
    config = TrainConfig(Gaussian(sigma=0.25), data="digits", model="cnn-small", epochs=1, lr=0.003)
    others = {f"g{seed}": replace(config, seed=seed) for seed in (0, 1, 2)}
    for name, one in (others | {"wide": replace(config, method=Gaussian(sigma=0.5))}).items():
        train(one, place / name, device="cpu", progress=no_progress)
        target = Target.from_run(place / name, device="cpu", progress=no_progress)
        evaluate(Certify(radii=(0.0, 0.1), n=200, procedure="fixed", limit=30), target, progress=no_progress)
    [record] = (place / "g0").glob("certify-*.jsonl")
    write_tsv(read_record(record), place / "peer.tsv")
    return place


def compared(capsys, *arguments):
    assert run(["compare", *map(str, arguments), "--radii", "0", "0.1", "--json"]) == 0
    return json.loads(capsys.readouterr().out)["comparisons"]


def test_a_table_is_compared_beside_a_run_folder_in_any_order(runs, capsys):
    [found] = compared(capsys, runs / "peer.tsv", runs / "g0", runs / "wide")
    assert [one["status"] for one in found["files"]] == ["claimed", "proved", "proved"]
    assert [point["difference"] for point in found["files"][1]["against_first"]] == [0, 0]
    [found] = compared(capsys, runs / "g0", runs / "peer.tsv")
    assert [point["difference"] for point in found["files"][1]["against_first"]] == [0, 0]
    assert "over_seeds" not in found, "a table has no seed"


def test_mean_and_deviation_over_seeds(runs, capsys):
    [found] = compared(capsys, *(runs / name for name in ("g2", "wide", "g0", "g1")))
    [spread] = found["over_seeds"]
    assert spread["seeds"] == [0, 1, 2]
    assert [Path(file).parent.name for file in spread["files"]] == ["g0", "g1", "g2"], "the noisier one is no seed"
    files = [one for one in found["files"] if one["file"] in spread["files"]]
    for place, point in enumerate(spread["certified_accuracy"]):
        accuracies = [one["certified_accuracy"][place]["accuracy"] for one in files]
        assert point["mean"] == pytest.approx(statistics.mean(accuracies))
        assert point["deviation"] == pytest.approx(statistics.stdev(accuracies))
    averages = [one["average_certified_radius"] for one in files]
    assert spread["average_certified_radius"]["deviation"] == pytest.approx(statistics.stdev(averages))
    [found] = compared(capsys, runs / "g0", runs / "g0", runs / "wide")
    assert "over_seeds" not in found, "one run twice is no second seed"


def test_names_and_tables_for_papers(runs, capsys):
    named = [f"Their_50% & more={runs / 'peer.tsv'}", f"NAL={runs / 'g0'}", f"NAL={runs / 'g1'}", "--radii", "0", "0.1"]
    assert run(["compare", *named]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^NAL +0, 1 +0\.\d{3} ± 0\.\d{3} ", text, re.MULTILINE)
    assert run(["compare", *named, "--format", "latex"]) == 0
    latex = capsys.readouterr().out
    assert r"Their\_50\% \& more & claimed & " in latex
    assert re.search(r"^NAL & 0, 1 & 0\.\d{3} \$\\pm\$ 0\.\d{3} & .*\\\\$", latex, re.MULTILINE)
    for block in re.findall(r"\\begin\{tabular\}\{([lr]+)\}\n(.*?)\\end\{tabular\}", latex, re.DOTALL):
        rows = [line for line in block[1].splitlines() if line.endswith(r"\\")]
        assert {len(re.split(r"(?<!\\)&", row)) for row in rows} == {len(block[0])}
    assert latex.count(r"\toprule") == latex.count(r"\bottomrule") == 3
    assert all(line.startswith(("\\", "%")) or line.endswith(r"\\") for line in latex.splitlines())
    assert run(["compare", *named, "--format", "markdown"]) == 0
    markdown = capsys.readouterr().out
    assert r"| Their\_50% & more | claimed | " in markdown
    tables = [block for block in markdown.split("\n\n") if block.startswith("|")]
    assert len(tables) == 3
    for table in tables:
        assert len({line.count(" | ") for line in table.splitlines()}) == 1
    numbers = [re.findall(r"0\.\d{3}", shown) for shown in (text, latex, markdown)]
    assert numbers[0] == numbers[1] == numbers[2]


def test_a_title_says_what_is_compared(runs, capsys):
    """Two attacks of named runs are told apart by nothing else."""
    title = "Certified accuracy, procedure fixed, at most 200 noise samples"
    files = [f"A={runs / 'g0'}", f"B={runs / 'g1'}"]
    for form, line in (("text", f"{title}:"), ("markdown", f"{title}:"), ("latex", f"% {title}:")):
        assert run(["compare", *files, "--format", form]) == 0
        assert capsys.readouterr().out.splitlines()[0] == line
    assert compared(capsys, *files)[0]["title"] == title
    assert compared(capsys, runs / "peer.tsv")[0]["title"] is None


def test_records_of_two_procedures_have_no_title_and_are_told_apart_in_words(runs, capsys, tmp_path):
    [record] = (runs / "g0").glob("certify-*.jsonl")
    assert run(["certify", str(runs / "g1"), "--radii", "0", "0.1", "--n", "200", "--limit", "30", "--quiet"]) == 0
    capsys.readouterr()
    [other] = (runs / "g1").glob("certify-grid-*.jsonl")
    [found] = compared(capsys, record, other)
    other.unlink()
    assert found["title"] is None
    assert found["files"][1]["not_compared"].startswith("records must have the same procedure to be compared")


def test_what_cannot_be_compared_is_one_line(runs, capsys):
    for arguments, message in (
        ([runs / "g0"], "must be compared with another folder or file"),
        (
            [runs / "g0", f"x={runs / 'none.tsv'}"],
            "none.tsv must be a run folder, a record or a table, but there is no such file",
        ),
        ([runs / "g0", runs / "peer.tsv", "--format", "html"], "html"),
    ):
        assert run(["compare", *map(str, arguments)]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_a_folder_with_an_equals_sign_is_a_folder(runs, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("gamma=2").symlink_to(runs / "g0")
    [found] = compared(capsys, "gamma=2", runs / "g1")
    assert "name" not in found["files"][0]
