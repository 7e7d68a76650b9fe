"""Real workers: how long one takes until it computes, and noise samples per second of one to eight of them."""

import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch

from benchmarks.benchmark import Setting, untrained
from rhobust.data import Dataset
from rhobust.evaluation import Certify, Target
from rhobust.executors import Task
from rhobust.executors.processes import Spawned, seeing_gpus, visible_gpus
from rhobust.executors.workers import Event, hand_out
from rhobust.progress import ProgressCallback, no_progress
from rhobust.proofs.plan import CHUNK
from rhobust.records import Row

COUNTS = (1, 2, 4, 8)
"""Workers on one GPU, or on as many cores."""
SECONDS = 1.5
"""About how long one worker computes at least."""
SAMPLES = {"cuda": 4900, "cpu": 1000}
"""Noise samples per image, by device: the same for all, so that all images take equally long. With the 100 that select
a class, a block fills five passes of a GPU, and two blocks for each of eight workers take few seconds."""
BLOCK = 8
"""Images in a block: the same for every number of workers, so that none of them has fuller batches."""
SIGMA = 0.25
Network = tuple[str, tuple[int, int, int], int]
"""Name, shape of an image and number of classes."""
NETWORKS: dict[str, tuple[Network, ...]] = {
    "cuda": (("cnn", (1, 28, 28), 10), ("resnet18", (3, 32, 32), 10)),
    "cpu": (("cnn-small", (1, 8, 8), 10),),
}
"""Networks by device; on a GPU MNIST's and CIFAR-10's."""
LARGE: Network = ("torchvision:resnet50", (3, 224, 224), 1000)
"""The network whose start-up is measured on a GPU, where torchvision is installed."""
IMAGES = 2048
"""Random images, at most."""
REPEATS = {"cuda": 2, "cpu": 6}
"""Rounds over all numbers of workers, by device; the fastest of each counts: other programs only slow down."""


def measure_workers(setting: Setting, notify: ProgressCallback) -> list[dict[str, Any]]:
    """Noise samples per second of one to eight workers on one GPU, or on one to all cores, one thread each.

    All workers are started at once and hold the network; then the first one, two, four and eight of them compute the
    same blocks. What loads and compiles is timed apart (`ready_seconds`). `gain` is what some workers give
    together in relation to one, `efficiency` that per worker: on a GPU, which they share, a gain above one is what one
    worker leaves idle. On a CPU `cpu_efficiency` is what a second of CPU time gives in relation to one worker, that of
    the driver included: other programs that run at the same time change it little.
    """
    cuda = setting.device.type == "cuda"
    most = max(COUNTS) if cuda else len(os.sched_getaffinity(0))
    counts = [count for count in COUNTS if count <= most]
    lines: list[dict[str, Any]] = []
    with _workers(setting, counts[-1]) as spawned:
        for target in _targets(setting):
            task = _certify(target, setting.draws or SAMPLES[setting.device.type])
            start = time.perf_counter()
            _begin(spawned, task)
            _timed(spawned, 1, BLOCK)  # the others find what it compiled on the disk
            _timed(spawned, spawned.count, BLOCK * spawned.count)
            ready, images = time.perf_counter() - start, setting.limit
            if images is None:  # as many as one worker computes in about that time, and two blocks for each of eight
                fast = min(len(target.data), int(BLOCK * SECONDS / _timed(spawned, 1, BLOCK)[0]))
                images = max(2 * BLOCK * counts[-1], fast)
            rounds = [[_timed(spawned, count, images) for count in counts] for _ in range(REPEATS[setting.device.type])]
            samples, first = images * task.settings.samples({"n": task.settings.n}), dict[str, float]()
            for count, *times in zip(counts, *rounds, strict=True):
                speed, rate = (samples / min(column) for column in zip(*times, strict=True))
                first = first or {"speed": speed, "rate": rate}
                line = {"network": target.name, "workers": count, "images": images, "samples_per_second": speed}
                gain = speed / first["speed"]
                line |= {"gain": gain, "efficiency": gain / count, "ready_seconds": ready}
                lines.append(line if cuda else line | {"cpu_efficiency": rate / first["rate"]})
                notify(f"bench scale: {target.name}, {count} workers, {speed:,.0f} samples/s")
    return lines


class First:
    """The first few of some workers that are ready, for `hand_out`."""

    def __init__(self, spawned: Spawned, count: int) -> None:
        self.spawned, self.new = spawned, spawned.connections[:count]

    def send(self, worker: Any, number: int, block: list[int]) -> None:
        self.spawned.send(worker, number, block)

    def events(self) -> list[Event]:
        found, self.new = self.new, []
        return [Event("ready", worker) for worker in found] or self.spawned.events()


def _begin(spawned: Spawned, task: Task) -> tuple[float, float]:
    """Give all workers a task and wait until they have it; seconds on the wall, and of the driver's CPU."""
    wall, cpu = time.perf_counter(), time.process_time()
    spawned.begin(task)
    while len(spawned.ready) < spawned.count:
        spawned.events()
    return time.perf_counter() - wall, time.process_time() - cpu


def _timed(spawned: Spawned, count: int, images: int) -> tuple[float, float]:
    """Seconds on the wall, and of the CPU in driver and workers together, of some of the workers."""
    blocks = [list(range(first, min(first + BLOCK, images))) for first in range(0, images, BLOCK)]
    wall, cpu = time.perf_counter(), time.process_time()
    spent = sum(row["seconds"] for _, rows in hand_out(First(spawned, count), blocks) for row in rows)
    return time.perf_counter() - wall, time.process_time() - cpu + spent


def clocked(target: Target, evaluation: Certify, block: Sequence[int], progress: ProgressCallback) -> Iterator[Row]:
    """The CPU time that a block took."""
    start = time.process_time()
    list(evaluation.rows(target, block, progress))
    yield {"index": block[0], "seconds": time.process_time() - start}


def _certify(target: Target, samples: int) -> Task:
    """Equally many noise samples for each image."""
    return Task(clocked, target, Certify(procedure="fixed", n=samples).resolve(target), target.device.type)


def measure_start(setting: Setting, notify: ProgressCallback) -> dict[str, Any]:
    """Seconds until a new worker computes, part by part, with nothing compiled before.

    `imports` is a Python process with what a worker imports; `ready` the time until the worker has the network on its
    device, imports included; `first` what its first image takes longer than its second, compilation included. On a
    GPU it is wall time; on a CPU, which other programs may use too, CPU time, without what disks take.
    """
    cuda = setting.device.type == "cuda"
    code = "import time, rhobust.evaluation, rhobust.executors.workers; print(time.process_time())"
    environment, imports = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, math.inf
    for _ in range(REPEATS[setting.device.type]):  # the first one may read from a disk
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", code], check=True, env=environment, stdout=subprocess.PIPE)
        imports = min(imports, time.perf_counter() - start if cuda else float(done.stdout))
    large = cuda and find_spec("torchvision") is not None
    target = _untrained(setting, LARGE if large else NETWORKS[setting.device.type][-1])
    task, before = _certify(target, CHUNK), os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    with tempfile.TemporaryDirectory() as cache, _workers(setting, 1) as worker:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache  # the worker is a new machine's
        try:
            started = _begin(worker, replace(task, function=touch))
            started = tuple(map(sum, zip(started, _timed(worker, 1, 1), strict=True)))
        finally:
            os.environ.pop("TORCHINDUCTOR_CACHE_DIR")
            os.environ |= {} if before is None else {"TORCHINDUCTOR_CACHE_DIR": before}
        _begin(worker, task)
        passes = [_timed(worker, 1, 1) for _ in range(2)]
    ready, first, second = (wall if cuda else cpu for wall, cpu in (started, *passes))
    notify(f"bench scale: start-up with {target.name}: {ready:.1f} s and {first - second:.1f} s")
    found = {"network": target.name, "imports": imports, "ready": ready, "first": first - second}
    return {**found, "seconds": ready + first - second}


def touch(shared: Any, settings: Any, block: Sequence[int], progress: ProgressCallback) -> Iterator[Row]:
    """The worker's CPU time up to now: it has what it needs."""
    yield {"index": block[0], "seconds": time.process_time()}


@contextmanager
def _workers(setting: Setting, count: int) -> Iterator[Spawned]:
    """Workers on one GPU, or with one thread each."""
    cuda = setting.device.type == "cuda"
    before = torch.get_num_threads()
    torch.set_num_threads(before if cuda else count)
    with seeing_gpus(visible_gpus()[0] if cuda else None):
        spawned = Spawned(setting.device.type, count, 1 / count if cuda else 1.0)
        try:
            yield spawned
        finally:
            spawned.end()
            torch.set_num_threads(before)


def _targets(setting: Setting) -> Iterator[Target]:
    """The run that is given, or networks with random weights and images: fixed samples take as long."""
    if setting.run is not None:
        yield Target.from_run(setting.run, device=setting.device, root=setting.root, progress=no_progress)
        return
    for network in NETWORKS[setting.device.type]:
        yield _untrained(setting, network)


def _untrained(setting: Setting, network: Network) -> Target:
    name, shape, classes = network
    model = untrained(name, shape, classes)
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (IMAGES, *shape), dtype=torch.uint8, generator=rng)
    labels = torch.arange(IMAGES) % classes
    data = Dataset("random", "test", images, labels, tuple(map(str, range(classes))))
    return Target(model, data, SIGMA, name, device=setting.device)
