"""How a task's large part travels: weights and images as plain bytes, code by its name.

A network is pickled as the name of its class and its weights; a worker imports the class, as the user's own process
did. Nothing that is pickled is ever read from a run folder: it goes from the process that the user started to the
workers that this process started, and nowhere else.
"""

import io
import pickle
import sys
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rhobust.executors.base import WorkerError

ALIGNED = 64
"""Bytes at whose multiples tensors begin in a file."""
WORTH = 1 << 20
"""Bytes from which on it is worth to look for the file that a tensor is a map of."""


@dataclass(frozen=True)
class Mapped:
    """Bytes that are in a file already: they travel as its path."""

    path: Path
    first: int
    size: int

    def open(self) -> np.ndarray:
        """Map them into memory; an `OSError` where there is no such file, or a shorter one."""
        try:
            return np.memmap(self.path, np.uint8, "r", self.first, (self.size,))
        except ValueError as error:
            raise OSError(
                f"{self.path} must hold the images of the process that started this worker: {error}"
            ) from None


@dataclass(frozen=True)
class Payload:
    """An object as a pickle, with the bytes of its tensors apart: they are neither copied nor held twice."""

    content: bytes
    buffers: "list[np.ndarray | Mapped]"
    path: list[str] = field(default_factory=lambda: list(sys.path))
    """Where the classes are looked for."""

    @classmethod
    def pack(cls, thing: Any, base: Any = pickle.Pickler) -> "Payload":
        """Pack an object.

        Args:
            thing: What travels.
            base: The pickler; cloudpickle's also takes classes of a notebook, by their code.
        """

        class TensorPickler(base):
            def reducer_override(self, one: Any) -> Any:
                if type(one) is Tensor and one.layout == torch.strided and not one.is_quantized:
                    content = one.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
                    return _tensor, (pickle.PickleBuffer(content.data), one.dtype, tuple(one.shape))
                return super().reducer_override(one) if hasattr(base, "reducer_override") else NotImplemented

        stream, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
        try:
            TensorPickler(stream, protocol=5, buffer_callback=buffers.append).dump(thing)
        except Exception as error:  # a network may refuse to be pickled in any way
            raise WorkerError(
                f"the network must be one that other processes can build, but {_reason(error)}: define its class in a"
                " module, or use the executor local"
            ) from None
        return cls(stream.getvalue(), [np.frombuffer(one.raw(), np.uint8) for one in buffers])

    def by_path(self) -> "Payload":
        """The same with every buffer that is a map of a file replaced by the file's path.

        Images of a decoded cache are such maps. They are private: where this process changed some of them, a worker
        finds another fingerprint than the record's and refuses.
        """
        return replace(self, buffers=[_mapped(one) or one for one in self.buffers])

    def unpack(self) -> Any:
        """The object; its images share memory with the buffers, its weights are copies."""
        sys.path += [place for place in self.path if place not in sys.path]
        buffers = [one.open() if isinstance(one, Mapped) else one for one in self.buffers]
        try:
            return pickle.loads(self.content, buffers=buffers)  # noqa: S301  # of the process that started this
        except (pickle.UnpicklingError, AttributeError, ImportError) as error:
            raise WorkerError(
                f"the network must be one that a worker can build, but there {_reason(error)}: define its class in a"
                " module that the worker can import, or use the executor local"
            ) from None

    def write(self, path: Path) -> None:
        """Write it to a file that all workers of this machine map into memory; what has a file already stays there."""
        light = self.by_path()
        with path.open("wb") as file:
            sizes = [one if isinstance(one, Mapped) else len(one) for one in light.buffers]
            pickle.dump((self.content, sizes, self.path), file)
            for buffer in light.buffers:
                if not isinstance(buffer, Mapped):
                    file.write(bytes(-file.tell() % ALIGNED))
                    file.write(buffer.data)

    @classmethod
    def read(cls, path: Path) -> "Payload":
        """Map a file that `write` wrote."""
        with path.open("rb") as file:
            content, sizes, places = pickle.load(file)  # noqa: S301  # of the process that started this one
            place, buffers = file.tell(), list[np.ndarray | Mapped]()
        for size in sizes:
            if isinstance(size, int):
                place += -place % ALIGNED
                buffers.append(Mapped(path, place, size).open() if size else np.empty(0, np.uint8))
                place += size
            else:
                buffers.append(size)
        return cls(content, buffers, places)


def _mapped(buffer: np.ndarray | Mapped) -> Mapped | None:
    """The file that a buffer is a map of; None for memory, and where nobody says."""
    if isinstance(buffer, Mapped) or len(buffer) < WORTH:
        return None
    first = buffer.__array_interface__["data"][0]
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        span, _, offset, _, _, *named = line.split(maxsplit=5)
        start, end = (int(one, 16) for one in span.split("-"))
        if start <= first < end:
            known = named and named[0].startswith("/") and Path(named[0]).is_file()
            whole = first + len(buffer) <= end
            return Mapped(Path(named[0]), int(offset, 16) + first - start, len(buffer)) if known and whole else None
    return None


def _tensor(content: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if not memoryview(content).nbytes:
        return torch.empty(shape, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it may be read-only: nothing writes to images
        tensor = torch.frombuffer(content, dtype=torch.uint8).view(dtype).reshape(shape)
    return tensor if dtype == torch.uint8 else tensor.clone()


def _reason(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
