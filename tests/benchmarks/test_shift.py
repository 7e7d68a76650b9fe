"""The shift benchmark compares like with like, on a tiny run."""

from pathlib import Path

import pytest
import torch

from benchmarks import Setting
from benchmarks import shift as shifts
from benchmarks.shift import bench_shift, shift_table
from rhobust.cli import run
from rhobust.progress import no_progress


@pytest.fixture
def folder(tmp_path):
    options = ["--method.sigma", "0.25", "--data", "digits", "--model", "cnn-small", "--epochs", "1", "--lr", "0.002"]
    assert run(["train", "method:gaussian", *options, "--out", str(tmp_path / "run"), "--quiet"]) == 0
    return tmp_path / "run"


def test_few_draws_against_many(folder, monkeypatch):
    monkeypatch.setattr(shifts, "POINTS", ())
    monkeypatch.setattr(shifts, "EPS", (0.0, 0.5, 2.0))
    setting = Setting(torch.device("cpu"), run=folder, limit=60, draws=40, progress=no_progress)
    result = bench_shift(setting)
    compared = result["run"]
    assert compared["eps"] == pytest.approx([0.0, 0.125])
    assert (compared["ours"]["forward_passes"], compared["intervals"]["forward_passes"]) == (1200, 2400)
    assert compared["passes_ratio"] == 2.0
    for way in ("ours", "intervals"):
        certified = compared[way]["certified_accuracy"]
        assert certified == sorted(certified, reverse=True)
        assert certified[0] < compared[way]["accuracy_under_noise"]
    # Sixty points and forty draws leave intervals wide: few draws without intervals do better.
    assert compared["never_less_up_to_half_sigma"]
    table = shift_table(result)
    assert len(table.rows) == 2
    assert table.notes[-1] == "never less up to sigma / 2: yes"


def test_a_run_without_its_data_is_refused_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(shifts, "_timed", lambda points: pytest.fail("the bound was timed first"))
    run_folder = Path(__file__).parents[2] / "results" / "pretrained" / "mnist-nal"
    with pytest.raises(ValueError, match=r"must be under .*, but it is not; run `rhobust data get mnist"):
        bench_shift(Setting(torch.device("cpu"), run=run_folder, root=tmp_path, progress=no_progress))


def test_without_a_run_the_bound_alone_is_timed(monkeypatch):
    monkeypatch.setattr(shifts, "POINTS", (100, 200))
    monkeypatch.setattr(shifts, "EPS", (0.0,))
    result = bench_shift(Setting(torch.device("cpu"), progress=no_progress))
    assert [one["points"] for one in result["bound"]] == [100, 200]
    assert all(one["peak_mib"] > 0 for one in result["bound"])
    assert result["run"] is None
    assert shift_table(result).rows == []
