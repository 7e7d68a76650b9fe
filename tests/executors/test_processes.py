"""Spawned processes: they take over the target, die, and are started again."""

import os
import re
import signal
import subprocess
import sys
import time
from multiprocessing import Pipe
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from rhobust.evaluation import Certify, Target, run
from rhobust.executors import Processes, Task, WorkerError
from rhobust.executors.payload import Payload
from rhobust.executors.processes import gpus_of, memory_share, share_of_gpu
from rhobust.executors.workers import Connected, Worker
from rhobust.progress import no_progress


def rows(shared, settings, block, progress):
    """Rows that say who computed them; a negative example says how its worker ends."""
    if -1 in block and not shared.exists():
        shared.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if -2 in block:
        raise ValueError("an answer")
    time.sleep(0.02)
    return [{"index": index, "process": os.getpid(), "threads": torch.get_num_threads()} for index in block]


@pytest.fixture(scope="module")
def executor():
    with pytest.MonkeyPatch.context() as patch, Processes(2) as executor:
        patch.syspath_prepend(Path(__file__).parent.parent)  # where workers find this module
        yield executor


def test_workers_are_other_processes_are_kept_and_one_that_is_killed_costs_its_block(executor, tmp_path):
    task, blocks = Task(rows, tmp_path / "killed"), [[index] for index in range(-1, 30)]
    assert len(list(executor.map(task, [[7]]))) == 1  # over before the second worker is ready
    found = {block[0]: of[0]["process"] for block, of in executor.map(task, blocks)}
    assert sorted(found) == list(range(-1, 30))
    assert (tmp_path / "killed").exists()
    assert os.getpid() not in found.values()
    again = [of[0]["process"] for _, of in executor.map(task, blocks)]
    assert len({*found.values(), *again}) <= 3  # two, and the one that was started again


def test_a_live_network_travels_and_gives_the_rows_of_one_process(executor, target, tmp_path):
    evaluation = Certify(radii=(0.0, 0.25), n=500, n0=50)
    alone = run(evaluation, target, progress=no_progress)
    kept = alone.path.rename(tmp_path / "alone").read_bytes().splitlines()
    events = []
    together = run(evaluation, target, executor=executor, progress=events.append)
    assert together.path.read_bytes().splitlines()[:-1] == kept[:-1]
    assert {**together.summary, "seconds": None} == {**alone.summary, "seconds": None}
    assert events[-1].done == 40
    assert re.fullmatch(r"(1 worker|2 workers), [\d,]+ samples/s, 0 s left", events[-1].note)


def test_what_a_worker_raises_is_raised_here_and_the_workers_end(executor, tmp_path):
    with pytest.raises(ValueError, match=r"^an answer$"):
        list(executor.map(Task(rows, tmp_path / "killed"), [[-2]]))
    assert executor.active == 0


class Unpicklable(nn.Module):
    """A network that cannot travel."""

    def __init__(self):
        super().__init__()
        self.function = lambda x: x

    def forward(self, x):
        return self.function(x.flatten(1)[:, :2])


def test_a_network_that_cannot_travel_is_one_line(grey_images, tmp_path):
    target = Target(Unpicklable(), grey_images, 0.25, folder=tmp_path)
    with pytest.raises(WorkerError, match=r"the network must be one that other processes can build, but .*lambda"):
        run(Certify(n=200), target, executor=Processes(1), progress=no_progress)


class Refusing(nn.Flatten):
    """A network that refuses to be pickled, as torch.jit's do."""

    def __reduce__(self):
        raise RuntimeError("tried to serialize it")


def test_a_network_that_refuses_to_travel_is_one_line():
    with pytest.raises(WorkerError, match="other processes can build, but tried to serialize it: define its class"):
        Payload.pack(Refusing())


UNGUARDED = """
import rhobust, torch
digits = rhobust.load("digits", "test").select(range(4))
target = rhobust.Target(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)), digits, sigma=0.25)
rhobust.run(rhobust.Certify(n=200), target, executor=rhobust.Processes(1))
"""


@pytest.mark.slow
def test_a_script_without_a_guard_is_told_so(tmp_path):
    (tmp_path / "script.py").write_text(UNGUARDED)
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.strip().endswith('is everything that runs below if __name__ == "__main__":?')


def test_a_parcel_holds_tensors_apart_and_shares_its_images(tmp_path):
    images = torch.arange(60, dtype=torch.uint8).reshape(5, 1, 3, 4)
    things = {
        "images": images,
        "again": images,
        "half": torch.tensor(1.5, dtype=torch.bfloat16),
        "none": torch.empty(0),
    }
    Payload.pack(things).write(tmp_path / "payload")
    payload = Payload.read(tmp_path / "payload")
    assert [len(buffer) for buffer in payload.buffers] == [60, 2, 0]
    found = payload.unpack()
    assert torch.equal(found["images"], images)
    assert found["images"] is found["again"]
    assert found["half"] == 1.5
    assert found["none"].shape == (0,)


def test_images_that_are_a_map_of_a_file_are_not_copied(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, 3 << 20, np.uint8)
    pixels.tofile(tmp_path / "images.bin")
    held = np.memmap(tmp_path / "images.bin", np.uint8, "c", 4096, (2, 1, 1024, 1024))
    mapped = torch.from_numpy(held)
    memory = torch.from_numpy(pixels[: 1 << 20])
    Payload.pack([mapped, memory]).write(tmp_path / "payload")
    assert 1 << 20 < (tmp_path / "payload").stat().st_size < 2 << 20
    again, copied = Payload.read(tmp_path / "payload").unpack()
    assert torch.equal(again, mapped)
    assert torch.equal(copied, memory)


def test_gpus_are_shared_out(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,7")
    assert Processes().size("cuda") == 3
    assert Processes(gpus=0.25).size("cuda") == 12
    assert Processes(5).size("cuda") == 5
    assert [gpus_of(place, 0.5) for place in range(4)] == ["4", "5", "7", "4"]
    assert gpus_of(1, 2) == "7,4"
    for wrong in (0.0, -1.0, 1.5):
        with pytest.raises(ValueError, match=r"gpus must be a whole number, or a share in \(0, 1\], got"):
            share_of_gpu(wrong)
    with pytest.raises(ValueError, match="workers must be >= 1, got 0"):
        Processes(0)


def test_more_gpus_per_worker_than_there_are_are_one_line(monkeypatch):
    line = "gpus must be at most the number of GPUs that a worker may use, {}, got 2"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
    with pytest.raises(ValueError, match=line.format(1)):
        Processes(gpus=2).start("cuda")
    with pytest.raises(ValueError, match=line.format(0)):
        list(Processes(1, 2.0).map(Task(rows, None), [[0]]))
    Processes(gpus=0.25).start("cpu").end()  # a share of no GPU is harmless


def test_workers_on_one_gpu_share_its_memory(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    assert memory_share(2, 1.0) == 1
    assert memory_share(16, 0.125) == 0.125
    assert memory_share(3, 0.125) == 0.125  # as asked for, though more is there
    assert memory_share(8, 1.0) == 0.25  # four on each of two
    assert memory_share(1, 2.0) == 1
    parts = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", parts.append)
    for device, share in (("cuda", 0.25), ("cuda", 1.0), ("cpu", 0.25)):
        rest = Payload.pack(Task(os.path.join, None, None, device))
        assert Worker(share=share).prepare(1, lambda: None, rest) is None
    assert parts == [0.25]


def seen(shared, settings, block, progress):
    """What a worker knows of its GPU."""
    fraction = torch.cuda.get_per_process_memory_fraction()
    return [{"index": index, "gpus": torch.cuda.device_count(), "fraction": fraction} for index in block]


@pytest.mark.gpu
def test_two_workers_on_a_gpu_write_the_record_of_one_process(half_space, grey_images, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent.parent)
    target = Target(half_space, grey_images, 0.25, folder=tmp_path, model_hash="0" * 16, device="cuda")
    evaluation = Certify(radii=(0.0, 0.25), n=500, n0=50)
    alone = run(evaluation, target, progress=no_progress)
    kept = alone.path.rename(tmp_path / "alone").read_bytes().splitlines()
    with Processes(2, 0.5) as executor:
        rows = [row for _, of in executor.map(Task(seen, None, None, "cuda"), [[0], [1]]) for row in of]
        assert all((row["gpus"], row["fraction"]) == (1, 0.5) for row in rows)
        together = run(evaluation, target, executor=executor, progress=no_progress)
    assert together.path.read_bytes().splitlines()[:-1] == kept[:-1]


def test_a_worker_that_comes_too_late_for_a_task_fails_no_later_one():
    ours, theirs = Pipe()
    crew = Connected([ours])
    crew.asked = -2
    for answer in ((-1, FileNotFoundError("the file of the first task")), (-2, None)):
        theirs.send(answer)
    assert crew.events() == []
    assert [event.what for event in crew.events()] == ["ready"]
    theirs.send((-2, FileNotFoundError("the file of the second task")))
    with pytest.raises(FileNotFoundError, match="second"):
        crew.events()
