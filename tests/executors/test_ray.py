"""What travels to Ray's workers, with a Ray of this process: the large part once, images by path where that works."""

import importlib.util
import pickle
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rhobust.executors import Ray, Task, WorkerError
from rhobust.executors.ray import Actors
from rhobust.executors.workers import hand_out


class Method:
    def __init__(self, ray, function):
        self.ray, self.function = ray, function

    def remote(self, *given):
        self.ray.sent.append(len(pickle.dumps(given)))
        return self.ray.put(self.function(*given))


class FakeRay(SimpleNamespace):
    """Answers at once; writes down what was stored and how large the calls were."""

    def __init__(self):
        kinds = {name: type(name, (Exception,), {}) for name in ("RayTaskError", "RayError")}
        kinds["ActorDiedError"] = type("ActorDiedError", (kinds["RayError"],), {})
        pickler = SimpleNamespace(CloudPickler=pickle.Pickler)
        super().__init__(stored=[], sent=[], removed=None, exceptions=SimpleNamespace(**kinds), cloudpickle=pickler)

    def remote(self, **resources):
        def decorate(cls):
            def make(**given):
                worker = cls(**given)
                return SimpleNamespace(**{name: Method(self, getattr(worker, name)) for name in ("prepare", "compute")})

            return SimpleNamespace(remote=make)

        return decorate

    def put(self, thing):
        self.stored.append(thing)
        if self.removed is not None:  # the workers are on a machine without this file
            self.removed = self.removed.unlink()
        return len(self.stored) - 1

    def get(self, place):
        return self.stored[place]

    def wait(self, answers, num_returns, timeout):
        return answers[:num_returns], answers[num_returns:]


def mean(shared, settings, block, progress):
    return [{"index": index, "mean": float(shared["images"][index].float().mean())} for index in block]


@pytest.fixture
def ray(monkeypatch):
    made = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", made)
    return made


@pytest.fixture
def images(tmp_path):
    """Images that are a map of a file, and the file."""
    path = tmp_path / "images.bin"
    np.random.default_rng(0).integers(0, 256, 2 << 20, np.uint8).tofile(path)
    return torch.from_numpy(np.memmap(path, np.uint8, "c", 0, (8, 1, 512, 512))), path


def computed(ray, shared):
    actors, blocks = Actors(ray, "cpu", 2, 1.0), [[index] for index in range(8)]
    actors.begin(Task(mean, shared), print)
    rows = [row for _, of in hand_out(actors, blocks) for row in of]
    return sorted(row["mean"] for row in rows)


def test_images_in_a_file_travel_as_its_path(ray, images):
    shared = {"images": images[0]}
    wanted = sorted(row["mean"] for row in mean(shared, None, range(8), None))
    assert computed(ray, shared) == wanted
    assert len(pickle.dumps(ray.stored[0])) < 10_000


def test_images_travel_once_where_a_machine_lacks_their_file(ray, images):
    shared, ray.removed = {"images": images[0]}, images[1]
    wanted = sorted(row["mean"] for row in mean(shared, None, range(8), None))
    assert computed(ray, shared) == wanted
    assert sum(len(pickle.dumps(one)) > 1 << 20 for one in ray.stored) == 1


def test_a_live_data_set_is_stored_once_and_blocks_are_numbers(ray):
    shared = {"images": torch.zeros(8, 1, 512, 512, dtype=torch.uint8)}
    computed(ray, shared)
    assert sum(len(pickle.dumps(one)) > 1 << 20 for one in ray.stored) == 1
    assert max(ray.sent) < 10_000


def test_gpus_for_workers_on_cpus_are_one_line(ray, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: ray)
    with pytest.raises(ValueError, match="gpus must be at most the number of GPUs that a worker may use, 0, got 2"):
        list(Ray(1, 2.0).map(Task(mean, None), [[0]]))


def test_workers_that_never_start_are_one_line_after_a_while(ray, monkeypatch):
    waits = []
    monkeypatch.setattr("rhobust.executors.ray.time", SimpleNamespace(sleep=waits.append, monotonic=lambda: 100.0))

    def lose(place):
        raise ray.exceptions.ActorDiedError("it ended")

    monkeypatch.setattr(ray, "get", lose)
    with pytest.raises(WorkerError, match="workers must start, but 22 ended one after the other: it ended"):
        computed(ray, {"images": torch.zeros(8, 1, 2, 2, dtype=torch.uint8)})
    assert waits[:2] == [0.0, 0.0]  # two at once may be a node
    assert sum(waits) > 20
