"""Simulated workers on the real engine: the record is whole, and the clock is never faster than the workers."""

import json
from pathlib import Path

from benchmarks.scale import FakeCertify, Simulated, samples_of, scale_table
from rhobust.evaluation import Untargeted, run
from rhobust.progress import no_progress


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


def test_the_table_shows_every_number_of_workers():
    line = {"seconds": 60.0, "ideal": 54.0, "efficiency": 0.9, "driver": 1.0, "rows_per_second": 9e4}
    lines = [{"workers": count, **line, "hand_out_ms": 0.02, "hand_out_p99_ms": 0.1} for count in (8, 512)]
    found = {"images": 10, "samples": 100, "lines": lines, "flood_rows_per_second": 1e4, "real": []}
    table = scale_table({**found, "ray_rows_per_second": 5e3, "ray_block_ms": 1.5})
    assert [row[:4] for row in table.rows] == [["8", "1.0", "0.9", "0.90"], ["512", "1.0", "0.9", "0.90"]]
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert table.notes[1] == (
        "two real workers of ray that take no time: 5,000 rows/s, 1.50 ms of the driver's CPU per block"
    )


def test_the_engine_keeps_up_with_512_workers():
    """The record of the simulation in results/: 5,000 rows per second, and a block handed out within 5 ms."""
    path = Path(__file__).parent.parent.parent / "results" / "speed" / "scale-simulation.json"
    found = json.loads(path.read_text())
    assert found["flood_rows_per_second"] >= 5000
    assert all(line["hand_out_p99_ms"] < 5 and line["rows_per_second"] >= 5000 for line in found["lines"])
