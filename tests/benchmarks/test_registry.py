"""The bench command runs what the registry names."""

import json

import torch

from benchmarks import BENCHMARKS, Benchmark, Setting, Table
from benchmarks.__main__ import main
from benchmarks.training import training_table


def toy(setting):
    return {"device": setting.device.type, "curve": setting.curve}


def toy_table(result):
    return Table(["name", "value"], [["curve", str(result["curve"])]], heading=["above"], notes=["below"])


def test_named_benchmarks_run_and_are_shown(monkeypatch, capsys):
    for name in list(BENCHMARKS):
        monkeypatch.delitem(BENCHMARKS, name)
    monkeypatch.setitem(BENCHMARKS, "one", Benchmark(toy, toy_table))
    monkeypatch.setitem(BENCHMARKS, "two", Benchmark(toy, toy_table))
    assert main(["two", "--curve", "7", "--device", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"two": {"device": "cpu", "curve": 7}}
    assert main(["--device", "cpu"]) == 0
    one = "above\nname   value\ncurve      0\nbelow\n"
    assert capsys.readouterr().out == f"{one}\n{one}"


def test_one_that_fails_leaves_the_others(monkeypatch, capsys):
    def fails(setting):
        raise ValueError("mnist must be there,\n  but it is not")

    monkeypatch.setitem(BENCHMARKS, "one", Benchmark(fails, toy_table))
    monkeypatch.setitem(BENCHMARKS, "two", Benchmark(toy, toy_table))
    assert main(["one", "two", "--device", "cpu", "--json"]) == 2
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"two": {"device": "cpu", "curve": 0}}
    assert shown.err == "benchmarks: one: mnist must be there, but it is not\n"
    assert main(["one", "--device", "cpu"]) == 2
    assert capsys.readouterr().out == ""


def test_an_unknown_benchmark_is_one_line(capsys):
    assert main(["weather"]) == 2
    assert f"a benchmark must be one of {', '.join(BENCHMARKS)}, got weather" in capsys.readouterr().err


def test_the_training_table_shows_every_method():
    row = {"textbook_ms": 20.0, "ours_ms": 5.0, "ratio": 4.0, "images_per_second": 9.0, "tflops": 0.1}
    rows = [{"method": name, **row, "share_of_matmul": 0.5, "peak_gib": None} for name in ("nal", "pgd")]
    about = {"model": "cnn", "shape": [1, 28, 28], "batch": 64, "device": "cpu", "matmul_tflops": 0.1, "torch": "2"}
    table = training_table({**about, "methods": rows, "curve": {"default": [1.0, 0.5]}})
    assert [line[:4] for line in table.rows] == [["nal", "20.0", "5.0", "4.0"], ["pgd", "20.0", "5.0", "4.0"]]
    assert all(len(line) == len(table.columns) for line in table.rows)
    assert table.notes == ["NAL loss, default: 1.0000 0.5000"]


def test_a_setting_needs_a_device_only():
    assert Setting(torch.device("cpu")).curve == 0
