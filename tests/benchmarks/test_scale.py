"""Simulated workers on the real engine: the record is whole, and the clock is never faster than the workers."""

import json
import os
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from benchmarks.benchmark import Setting
from benchmarks.scale import FakeCertify, Simulated, bench_scale, samples_of, scale_table
from benchmarks.workers import COUNTS, measure_start, measure_workers
from rhobust.evaluation import Untargeted, engine, run
from rhobust.progress import no_progress
from rhobust.records import RecordWriter


def test_simulated_workers_write_the_record_of_one_process(tmp_path):
    evaluation, executor = FakeCertify(images=300), Simulated(16, speed=1000.0, startup=5.0)
    events = []
    record = run(evaluation, Untargeted(tmp_path / "many"), executor=executor, progress=events.append)
    alone = run(evaluation, Untargeted(tmp_path / "one"), progress=no_progress)
    assert record.rows == alone.rows
    assert events[-1].note.startswith("16 workers, ")
    work = sum(map(samples_of, range(300))) / 1000
    longest = max(map(samples_of, range(300))) / 1000
    assert 5 + work / 16 <= executor.clock <= 6 + work / 16 + longest + executor.driver
    assert executor.driver > 0
    assert len(executor.handed) > 100


def test_the_engine_writes_by_the_simulated_clock_and_all_its_work_is_counted(monkeypatch):
    writes, append = [], RecordWriter.append
    simulated = Simulated(4, speed=20_000.0)

    def count(writer, rows):
        writes.append(simulated.clock)
        append(writer, rows)

    monkeypatch.setattr(RecordWriter, "append", count)
    before = time.process_time()
    simulated.write_record(300)
    spent = time.process_time() - before
    assert len(writes) > 10
    assert all(later - first >= 1 for first, later in pairwise(writes[:-1]))
    assert 0 < simulated.driver <= spent  # the rest is the workers'
    assert engine.time is time


def test_the_table_shows_real_and_simulated_workers():
    line = {"seconds": 60.0, "ideal": 54.0, "efficiency": 0.9, "driver": 1.0, "rows_per_second": 9e4}
    lines = [{"workers": count, **line, "hand_out_ms": 0.02, "hand_out_p99_ms": 0.1} for count in (8, 512)]
    startup = {"network": "cnn", "imports": 3.0, "ready": 5.0, "first": 2.0, "seconds": 7.0}
    found = {"startup": startup, "images": 10, "samples": 100, "lines": lines, "flood_rows_per_second": 1e4}
    found |= {"sent_bytes_per_second": 1.5e9, "row_bytes": 80.0}
    shared = {"network": "cnn", "workers": 2, "samples_per_second": 5e4, "gain": 1.5}
    cores = {**shared, "cpu_efficiency": 0.9}
    table = scale_table({**found, "workers": [shared, cores], "ray_rows_per_second": 5e3, "ray_block_ms": 1.5})
    assert [row[:4] for row in table.rows] == [["8", "1.0", "0.9", "0.90"], ["512", "1.0", "0.9", "0.90"]]
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert table.heading[:3] == [
        "cnn, 2 real workers: 50,000 samples/s, 1.50 times one",
        "cnn, 2 real workers: 50,000 samples/s, 1.50 times one, 0.90 of it per CPU second",
        "start-up: 5.0 s until a worker has cnn, of which 3.0 s are imports, and 2.0 s for the first pass",
    ]
    assert table.notes[1] == "images to the workers of a machine: 1.50 GB/s; a row on its way back: 80 bytes"
    assert table.notes[2] == (
        "two real workers of ray that take no time: 5,000 rows/s, 1.50 ms of the driver's CPU per block"
    )


def test_a_part_that_is_not_known_is_one_line():
    with pytest.raises(ValueError, match="a part of scale must be one of workers, simulation, got all"):
        bench_scale(Setting(device=torch.device("cpu"), parts=("all",)))


@pytest.mark.slow
def test_real_workers_and_their_start_up_are_measured():
    setting = Setting(device=torch.device("cpu"), limit=16, draws=200)
    lines = measure_workers(setting, no_progress)
    assert [line["workers"] for line in lines] == [count for count in COUNTS if count <= len(os.sched_getaffinity(0))]
    assert lines[0]["gain"] == lines[0]["efficiency"] == lines[0]["cpu_efficiency"] == 1
    for line in lines:
        assert line["gain"] == line["samples_per_second"] / lines[0]["samples_per_second"]
        assert line["efficiency"] == line["gain"] / line["workers"]
        assert line["ready_seconds"] > 0
    found = measure_start(setting, no_progress)
    assert found["seconds"] == pytest.approx(found["ready"] + found["first"])
    assert found["ready"] > found["imports"] / 2 > 0


def test_the_engine_keeps_up_with_512_workers():
    """The record of the simulation in results/: 5,000 rows per second, and a block handed out within 5 ms."""
    path = Path(__file__).parent.parent.parent / "results" / "speed" / "scale-simulation.json"
    found = json.loads(path.read_text())
    assert found["flood_rows_per_second"] >= 5000
    assert all(line["hand_out_p99_ms"] < 5 and line["rows_per_second"] >= 5000 for line in found["lines"])
