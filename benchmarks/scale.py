"""How far one driver scales: the real engine and record, a fake network, and simulated workers up to 512.

Two clocks. The driver's time is real: what the engine computes between two answers (hand-out, rows, lock, writes,
progress) is measured on this machine as CPU time, so that other programs do not count; waits for the disk, once per
second, do not either. The workers' time is simulated: each block takes as long as its images'
noise samples at a given speed, after a start-up. The simulated clock moves on by whichever the driver waits for, so
that a driver that is too slow makes workers wait, as it would on a cluster.
"""

import dataclasses
import heapq
import importlib.util
import math
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.benchmark import Setting, Table
from rhobust.evaluation import Certify, Evaluation, Target, Untargeted, run
from rhobust.evaluation.engine import small_blocks
from rhobust.executors import Executor, Processes, Ray, Task
from rhobust.executors.hand_out import Event, hand_out
from rhobust.progress import ProgressCallback, no_progress
from rhobust.records import Row

IMAGES = 50_000
"""ImageNet's validation set."""
WORKERS = (8, 64, 512)
STARTUP = 30.0
"""Seconds until a worker computes: about 20 s of imports, weights and data and 7 s of compilation were measured for a
ResNet-18 on one GPU."""
MEASURED = 411_444.8
"""Noise samples per second of a ResNet-18 on 32x32 images on one H200, bf16, compiled (results/speed)."""
SPEED = MEASURED * 0.557 / 4.09
"""The same arithmetic at a ResNet-50 on 224x224 images, by multiplications per image: an extrapolation, and for the
driver the hard case, since slower workers ask for blocks less often."""
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
    startup: float = STARTUP
    clock: float = 0.0
    """Simulated seconds."""
    driver: float = 0.0
    """Real seconds that the driver worked."""
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
        self.real, self.answered = time.process_time(), False
        yield from hand_out(self, blocks)

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
    """Measure the driver, and simulate ImageNet on 8, 64 and 512 GPUs."""
    images = setting.limit or IMAGES
    evaluation = FakeCertify(images=images)
    total = sum(map(samples_of, range(images)))
    lines = []
    for workers in WORKERS:
        with tempfile.TemporaryDirectory() as folder:
            simulated = Simulated(workers)
            run(evaluation, Untargeted(Path(folder), "imagenet"), executor=simulated, progress=no_progress)
        ideal = STARTUP + total / SPEED / workers
        lines.append(
            {
                "workers": workers,
                "seconds": simulated.clock,
                "ideal": ideal,
                "efficiency": ideal / simulated.clock,
                "driver": simulated.driver,
                "rows_per_second": images / simulated.driver,
                "hand_out_ms": 1000 * statistics.fmean(simulated.handed),
                "hand_out_p99_ms": 1000 * sorted(simulated.handed)[int(0.99 * len(simulated.handed))],
                "blocks": len(small_blocks(range(images), workers)),
            }
        )
    real = [] if setting.run is None else _real(setting)
    return {**setting.machine(), "images": images, "samples": total, "lines": lines, **_floods(images), "real": real}


def _floods(images: int) -> dict[str, Any]:
    """Rows per second where workers take no time: the most that one driver takes, simulated and with real processes."""
    evaluation = FakeCertify(images=images)
    with tempfile.TemporaryDirectory() as folder:
        flooded = Simulated(512, speed=math.inf, startup=0.0)
        run(evaluation, Untargeted(Path(folder), "flood"), executor=flooded, progress=no_progress)
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


def _real(setting: Setting) -> list[dict[str, Any]]:
    """Noise samples per second of a trained run on one to eight workers per GPU, or on one to all cores."""
    assert setting.run is not None
    cuda = setting.device.type == "cuda"
    most = 8 if cuda else len(os.sched_getaffinity(0))
    evaluation = Certify(procedure="fixed", n=setting.draws or 10_000, limit=setting.limit or 256)
    lines: list[dict[str, Any]] = []
    for count in [count for count in (1, 2, 4, 8, 16, 32) if count <= most]:
        with tempfile.TemporaryDirectory() as folder, Processes(count, 1 / count if cuda else 1.0) as executor:
            target = Target.from_run(setting.run, device=setting.device, root=setting.root, progress=no_progress)
            here = dataclasses.replace(target, folder=Path(folder))
            run(dataclasses.replace(evaluation, limit=4 * count, seed=1), here, executor=executor, progress=no_progress)
            start = time.perf_counter()
            record = run(evaluation, here, executor=executor, progress=no_progress)
            seconds = time.perf_counter() - start
        speed = sum(row["n"] for row in record.rows) / seconds
        efficiency = speed / (lines[0]["samples_per_second"] * (1 if cuda else count)) if lines else 1.0
        lines.append({"workers": count, "samples_per_second": speed, "efficiency": efficiency})
    return lines


def scale_table(found: dict[str, Any]) -> Table:
    """The simulated curve, and what one driver takes."""
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
        for line in found["lines"]
    ]
    columns = ["workers", "minutes", "ideal", "efficiency", "driver s", "rows/s", "hand-out ms", "99%"]
    heading = [f"{found['images']:,} images, {found['samples']:,} noise samples, {SPEED:,.0f} samples/s per worker"]
    notes = [f"workers that take no time: {found['flood_rows_per_second']:,.0f} rows/s through the engine"]
    notes += [
        f"two real workers of {name} that take no time: {found[f'{name}_rows_per_second']:,.0f} rows/s,"
        f" {found[f'{name}_block_ms']:.2f} ms of the driver's CPU per block"
        for name in ("processes", "ray")
        if f"{name}_block_ms" in found
    ]
    notes += [
        f"{line['workers']} real workers: {line['samples_per_second']:,.0f} samples/s, {line['efficiency']:.2f} of the"
        " first line's per GPU or core"
        for line in found["real"]
    ]
    return Table(columns, rows, heading, notes)
