"""How far one driver scales: the real engine and record, a fake network, and simulated workers up to 512.

Two clocks. The driver's time is real: all that the engine computes (hand-out, rows, lock, writes, progress, the end of
the record) is measured on this machine as CPU time, so that other programs do not count; waits for the disk, once per
second, do not either. The workers' time is simulated: each block takes as long as its images' noise samples at a given
speed, after a start-up. The simulated clock moves on by whichever the driver waits for, so that a driver that is too
slow makes workers wait, as it would on a cluster. The engine reads that clock: it writes once per simulated second.
"""

import heapq
import importlib.util
import math
import mmap
import os
import pickle
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from benchmarks.benchmark import Setting, Table
from benchmarks.workers import measure_start, measure_workers
from rhobust.evaluation import Evaluation, Untargeted, engine, run
from rhobust.evaluation.engine import SMALL, small_blocks
from rhobust.executors import Executor, Processes, Ray, Task
from rhobust.executors.payload import Payload
from rhobust.executors.workers import Event, hand_out
from rhobust.progress import ProgressCallback, no_progress, progress_or_default
from rhobust.records import Row

IMAGES = 50_000
"""ImageNet's validation set."""
WORKERS = (8, 16, 32, 64, 128, 256, 512)
SENT = 1 << 28
"""Bytes of images whose way to a worker is timed."""
SPEED = 28_459.0
"""Noise samples per second of a ResNet-50 on 224x224 images on one H200, bf16, compiled (results/speed)."""
FIRST = 7.93
"""Seconds of its first call there, compilation included; measured anew where there is a GPU."""
EASY, SPREAD, MANY, HARD = 1100, 1.0, 100_000, 0.075
"""Median and logarithmic deviation of the samples of an image that is decided early; samples, and share, of those that
are not. Mean and median of all are near those measured on CIFAR-10, 9,292 and 1,280 (results/speed)."""


def samples_of(index: int) -> int:
    """Noise samples that an image takes: most are decided early, some take all."""
    draw = random.Random(index)
    return MANY if draw.random() < HARD else min(MANY, 100 + int(EASY * math.exp(SPREAD * draw.gauss(0, 1))))


@dataclass(frozen=True, kw_only=True)
class FakeCertify(Evaluation):
    """Rows like those of a sequential certificate, without a network."""

    kind: ClassVar[str] = "fake"

    images: int = IMAGES
    """Number of images."""

    def resolve(self, target: Any) -> "FakeCertify":
        return self

    def examples(self, target: Any) -> Sequence[int]:
        return range(self.images)

    def block(self, target: Any) -> None:
        return

    def samples(self, row: Row) -> int:
        return row["n"]

    def rows(self, target: Any, examples: Sequence[int], progress: ProgressCallback) -> Iterator[Row]:
        for index in examples:
            n = samples_of(index)
            yield {
                "index": index,
                "label": index % 1000,
                "prediction": index % 1000,
                "radius": 0.4271890123,
                "count": n - n // 50,
                "n": n,
                "p_lower": 0.9561123456,
                "selected": index % 1000,
                "top": 98,
                "evidence": [[n // 4, n // 4], [n // 2, n // 2]],
            }

    def summarise(self, target: Any, rows: list[Row]) -> Row:
        return {"samples": sum(row["n"] for row in rows)}


@dataclass
class Simulated(Executor):
    """Workers on a simulated clock; the driver's own time is measured and added to it."""

    workers: int
    speed: float = SPEED
    startup: float = 0.0
    """Seconds until a worker computes."""
    clock: float = 0.0
    """Simulated seconds."""
    driver: float = 0.0
    """Seconds of CPU time that the driver worked."""
    real: float = field(default_factory=time.process_time)
    """CPU time up to which the driver's work is counted."""
    idle: float = 0.0
    """Simulated seconds that workers without a block waited for one, all together."""
    handed: list[float] = field(default_factory=list)
    """Real seconds between the arrival of answers and the sending of the next blocks."""

    def size(self, device: str) -> int:
        return self.workers

    @property
    def active(self) -> int:
        return self.workers

    def map(
        self, task: Task, blocks: Sequence[list[int]], notify: ProgressCallback = no_progress
    ) -> Iterator[tuple[list[int], list[Row]]]:
        draw = random.Random(0)
        self.task, self.new = task, list(range(self.workers))
        self.queues: dict[int, list[tuple[int, list[int]]]] = {worker: [] for worker in self.new}
        # Machines do not start at the same moment.
        self.free = {worker: self.startup * (1 + 0.2 * draw.random()) for worker in self.new}
        self.heap: list[tuple[float, int]] = []
        self.answered = False
        yield from hand_out(self, blocks)

    def write_record(self, images: int) -> None:
        """Let the real engine write a record of the fake network, to its end, by the simulated clock."""
        kept, clock = engine.time, SimpleNamespace(monotonic=lambda: self.clock, perf_counter=lambda: self.clock)
        self.real = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            try:
                engine.time = clock  # type: ignore[assignment]
                run(FakeCertify(images=images), Untargeted(Path(folder), "fake"), executor=self, progress=no_progress)
            finally:
                engine.time = kept
            self._pass()

    def send(self, worker: Any, number: int, block: list[int]) -> None:
        self._pass()
        if self.answered:
            self.handed.append(time.process_time() - self.arrived)
        if not self.queues[worker]:
            self._begin(worker, block)
        self.queues[worker].append((number, block))

    def _pass(self) -> None:
        """Let the simulated clock go on by the time that the driver worked."""
        now = time.process_time()
        self.driver += now - self.real
        self.clock += now - self.real
        self.real = now

    def _begin(self, worker: int, block: list[int]) -> None:
        begin = max(self.clock, self.free[worker])
        self.idle += max(0.0, self.clock - self.free[worker])
        self.free[worker] = begin + sum(map(samples_of, block)) / self.speed
        heapq.heappush(self.heap, (self.free[worker], worker))

    def events(self) -> list[Event]:
        self._pass()
        if self.new:
            found, self.new = [Event("ready", worker) for worker in self.new], []
            return found
        found = []
        self.clock = max(self.clock, self.heap[0][0])
        while self.heap and self.heap[0][0] <= self.clock:
            _, worker = heapq.heappop(self.heap)
            number, block = self.queues[worker].pop(0)
            found.append(Event("done", worker, number, list(self.task(block))))
            if self.queues[worker]:
                following = self.queues[worker][0][1]
                self.free[worker] += sum(map(samples_of, following)) / self.speed  # it was there already
                heapq.heappush(self.heap, (self.free[worker], worker))
        # Making rows is the workers' work.
        self.real = self.arrived = time.process_time()
        self.answered = True
        return found


def nothing(shared: Any, settings: Any, block: Sequence[int], progress: ProgressCallback) -> Iterator[Row]:
    """Rows at once: what is left is the way to a worker and back."""
    yield from FakeCertify().rows(None, block, progress)


def bench_scale(setting: Setting) -> dict[str, Any]:
    """Measure real workers; measure the driver, and simulate ImageNet on 8 to 512 GPUs.

    The document is written after each part.
    """
    if unknown := [part for part in setting.parts if part not in PARTS]:
        raise ValueError(f"a part of scale must be one of {', '.join(PARTS)}, got {unknown[0]}")
    found: dict[str, Any] = {**setting.machine(), "cores": len(os.sched_getaffinity(0))}
    with progress_or_default(setting.progress) as notify:
        for part, measure in PARTS.items():
            if not setting.parts or part in setting.parts:
                found |= measure(setting, notify)
                setting.write(found)
    return found


def simulate(setting: Setting, notify: ProgressCallback) -> dict[str, Any]:
    """The driver with simulated workers that start as a real one does, and where it is flooded."""
    images, startup = setting.limit or IMAGES, measure_start(setting, notify)
    if setting.device.type == "cpu":
        startup |= {"first": FIRST, "seconds": startup["ready"] + FIRST}
    total = sum(map(samples_of, range(images)))
    lines = []
    for workers in WORKERS:
        simulated = Simulated(workers, startup=startup["seconds"])
        simulated.write_record(images)
        handed = sorted(simulated.handed) or [0.0]  # none where no worker got a second block
        ideal = startup["seconds"] + total / SPEED / workers
        lines.append(
            {
                "workers": workers,
                "seconds": simulated.clock,
                "ideal": ideal,
                "efficiency": ideal / simulated.clock,
                "driver": simulated.driver,
                "rows_per_second": images / simulated.driver,
                "hand_out_ms": 1000 * statistics.fmean(handed),
                "hand_out_p99_ms": 1000 * handed[int(0.99 * len(handed))],
                "blocks": len(small_blocks(range(images), workers)),
            }
        )
        notify(f"bench scale: {workers} simulated workers, {simulated.clock:.0f} s")
    found = {"startup": startup, "images": images, "samples": total, "speed": SPEED, "lines": lines}
    return found | _transfers() | _floods(images)


def _transfers() -> dict[str, Any]:
    """Bytes per second of CPU time from the driver to a worker of this machine, and bytes of a row on its way back."""
    images = torch.zeros(SENT, dtype=torch.uint8)
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        Payload.pack(images).write(Path(folder) / "images")
        Payload.read(Path(folder) / "images").unpack()[:: mmap.PAGESIZE].sum()  # every page is read
        seconds = time.process_time() - start
    rows = list(FakeCertify().rows(None, range(SMALL), no_progress))
    return {"sent_bytes_per_second": SENT / seconds, "row_bytes": len(pickle.dumps(rows)) / len(rows)}


def _floods(images: int) -> dict[str, Any]:
    """Rows per second where workers take no time: the most that one driver takes, simulated and with real processes."""
    flooded = Simulated(512, speed=math.inf, startup=0.0)
    flooded.write_record(images)
    found = {"flood_rows_per_second": images / flooded.driver}
    known: dict[str, Executor] = {"processes": Processes(2)}
    if importlib.util.find_spec("ray") is not None:
        known["ray"] = Ray(2)
    blocks = small_blocks(range(min(images, 20_000)), 64)
    for name, executor in known.items():
        with executor:
            list(executor.map(Task(nothing, None), blocks[:2]))  # they are started
            start = time.process_time()
            rows = sum(len(of) for _, of in executor.map(Task(nothing, None), blocks))
            seconds = time.process_time() - start
        found |= {f"{name}_rows_per_second": rows / seconds, f"{name}_block_ms": 1000 * seconds / len(blocks)}
    return found


PARTS = {"workers": lambda setting, notify: {"workers": measure_workers(setting, notify)}, "simulation": simulate}


def scale_table(found: dict[str, Any]) -> Table:
    """Real workers, the simulated curve, and what one driver takes."""
    columns = ["workers", "minutes", "ideal", "efficiency", "driver s", "rows/s", "hand-out ms", "99%"]
    rows = [
        [
            str(line["workers"]),
            f"{line['seconds'] / 60:.1f}",
            f"{line['ideal'] / 60:.1f}",
            f"{line['efficiency']:.2f}",
            f"{line['driver']:.1f}",
            f"{line['rows_per_second']:,.0f}",
            f"{line['hand_out_ms']:.3f}",
            f"{line['hand_out_p99_ms']:.3f}",
        ]
        for line in found.get("lines", ())
    ]
    heading, notes = [], []
    for line in found.get("workers", ()):
        speed = f"{line['samples_per_second']:,.0f} samples/s, {line['gain']:.2f} times one"
        by_time = f", {line['cpu_efficiency']:.2f} of it per CPU second" if "cpu_efficiency" in line else ""
        heading.append(f"{line['network']}, {line['workers']} real workers: {speed}{by_time}")
    if rows:
        start = found["startup"]
        heading += [
            f"start-up: {start['ready']:.1f} s until a worker has {start['network']}, of which {start['imports']:.1f} s"
            f" are imports, and {start['first']:.1f} s for the first pass",
            f"{found['images']:,} images, {found['samples']:,} noise samples, {SPEED:,.0f} samples/s per worker",
        ]
        notes.append(f"workers that take no time: {found['flood_rows_per_second']:,.0f} rows/s through the engine")
        sent, row = found["sent_bytes_per_second"] / 1e9, found["row_bytes"]
        notes.append(f"images to the workers of a machine: {sent:.2f} GB/s; a row on its way back: {row:.0f} bytes")
    notes += [
        f"two real workers of {name} that take no time: {found[f'{name}_rows_per_second']:,.0f} rows/s,"
        f" {found[f'{name}_block_ms']:.2f} ms of the driver's CPU per block"
        for name in ("processes", "ray")
        if f"{name}_block_ms" in found
    ]
    return Table(columns, rows, heading, notes)


def plot_scale(found: dict[str, Any], path: Path) -> None:
    """Draw the simulated wall time over the number of workers, next to what it would be if nothing were lost."""
    figure = import_module("matplotlib.figure").Figure(figsize=(8, 3.4), layout="constrained")
    workers, lines = [line["workers"] for line in found["lines"]], found["lines"]
    for number, (title, curves) in enumerate(
        {
            "seconds": {"simulated": [line["seconds"] for line in lines], "ideal": [line["ideal"] for line in lines]},
            "efficiency": {"simulated": [line["efficiency"] for line in lines]},
        }.items(),
        start=1,
    ):
        panel = figure.add_subplot(1, 2, number)
        for name, values in curves.items():
            panel.plot(workers, values, "o-" if name == "simulated" else "--", label=name)
        panel.set_xscale("log", base=2)
        panel.set_xticks(workers, [str(count) for count in workers])
        panel.set_xlabel("workers")
        panel.set_ylabel(title)
        panel.grid(alpha=0.3)
        if number == 1:
            panel.set_yscale("log")
            panel.legend()
        else:
            panel.set_ylim(0, 1.05)
    figure.savefig(path)
