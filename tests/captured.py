"""A stand-in for CUDA graphs on a CPU: what is captured are torch's operations, and a replay runs them again.

As with a real graph, a replay reads and writes the tensors of the capture, runs no Python, and takes every number that
Python computed in the meantime as it was. Random numbers come from the generator again.
"""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CURRENT = [None]
"""Devices that are current, the last one now."""


class RecordedGraph(TorchDispatchMode):
    """The operations of a capture."""

    def __init__(self):
        super().__init__()
        self.calls, self.replays, self.generators = [], 0, []
        self.devices = set()
        """Devices that were current while it was captured and replayed."""
        self.mode = None
        """Which threads may not do what would break a capture."""

    def register_generator_state(self, generator):
        self.generators.append(generator._cdata)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing: a number was read")
        drawn_by = getattr((kwargs or {}).get("generator"), "_cdata", None)  # each call wraps it anew
        if torch.Tag.nondeterministic_seeded in func.tags and drawn_by not in self.generators:
            raise RuntimeError("random numbers must come from a generator that was registered")
        found = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, found))
        return found

    def replay(self):
        self.replays += 1
        self.devices.add(CURRENT[-1])
        with torch.no_grad():
            for func, args, kwargs, found in self.calls:
                again = func(*args, **kwargs)
                for old, new in zip(tree_leaves(found), tree_leaves(again), strict=True):
                    if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)


def pretend_cuda(monkeypatch, fail=None):
    """Let code that captures run on a CPU, where torch compiles nothing; returns the graphs that were made.

    Args:
        monkeypatch: Undoes it.
        fail: Raised at the end of every capture.
    """
    graphs = []

    @contextmanager
    def device(one):
        CURRENT.append(one)
        yield
        CURRENT.pop()

    def make():
        graphs.append(RecordedGraph())
        return graphs[-1]

    @contextmanager
    def capture(graph, *, capture_error_mode="global"):
        graph.devices.add(CURRENT[-1])
        graph.mode = capture_error_mode
        with graph:
            yield
        if fail is not None:
            raise fail

    stream = SimpleNamespace(wait_stream=lambda other: None)
    for name, stand_in in {
        "CUDAGraph": make,
        "graph": capture,
        "device": device,
        "Stream": lambda: stream,
        "current_stream": lambda: stream,
        "stream": lambda one: nullcontext(),
        "synchronize": lambda: None,
        "default_generators": {None: torch.Generator()},
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return graphs
