"""Forward passes of one network in one fixed shape: captured in a CUDA graph, compiled, or plain.

A compiled pass is kept as long as its network lives: every call, number of images, sigma and purpose shares it.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from threading import RLock
from types import FunctionType
from typing import Any
from weakref import ReferenceType, ref

import numpy as np
import torch
from torch import Tensor, nn

from rhobust.certificates.blocks import ForwardPass
from rhobust.certificates.spec import Dtype, Smoothing, arithmetic
from rhobust.models.folding import EvalCopy
from rhobust.models.inference import Guarded, frozen, guard
from rhobust.proofs.plan import CHUNK
from rhobust.settings import check_count
from rhobust.shared_context import forkable_lock
from rhobust.user_code import DeviceMemoryError, first_words

ROWS = {"cpu": 256, "cuda": 8192}
"""Rows of a forward pass: one fixed shape, so that an example's votes do not depend on what it is batched with."""
PIXELS = 3 * 32 * 32
"""Input dimension up to which a GPU takes all rows; larger images get fewer rows."""
FEWEST = 256
"""Rows of large images: enough to fill a large GPU."""
LEAST = 8
"""Fewest rows after which out of memory is an error."""
WARM_UP = 2
"""Passes before a CUDA graph capture: compilation and allocation happen in them."""
KEPT = 2
"""Compiled passes that are kept per network: each holds memory."""
MEASURED = 16
"""Rows on which the memory of a pass is measured, and on which a compiled network is compared with the original."""
PART = 0.7
"""Part of the free memory that a batch may take."""
FULL = (torch.OutOfMemoryError, DeviceMemoryError)
"""What is raised when the device's memory is full."""
AGREEMENT: dict[Dtype, float] = {"float32": 1e-2, "tf32": 5e-2, "float16": 0.1, "bfloat16": 0.3}
"""Change of the logits, relative to their spread, that rounding explains in half of the inputs."""


_ASKED: ContextVar[int | None] = ContextVar("batch size", default=None)


@contextmanager
def batch_size(rows: int | None) -> Iterator[None]:
    """Set how many noisy inputs the network evaluates at once; None: as many as fill the device and fit into memory.

    Votes do not depend on it, but for inputs on which the network's rounding decides: the kernels of a GPU round
    differently for another number of rows.

    Args:
        rows: Inputs per pass, at least 8.
    """
    if rows is not None:
        check_count("batch_size", rows)
        if rows < LEAST:
            raise ValueError(f"batch_size must be >= {LEAST}, got {rows}")
    token = _ASKED.set(rows)
    try:
        yield
    finally:
        _ASKED.reset(token)


def asked_batch_size() -> int | None:
    """The number that `batch_size` set here; None: none."""
    return _ASKED.get()


class NetworkPass:
    """Passes of a network in one shape and one arithmetic.

    What is compiled is a copy with batch norm folded; `refresh` gives it the network's present weights. A network that
    cannot be compiled or captured gets one warning, and the next best way. Out of memory halves the rows.
    """

    def __init__(self, shape: Sequence[int], smoothing: Smoothing, device: torch.device, rows: int) -> None:
        self.shape, self.device, self.rows = tuple(shape), device, rows
        self.dtype, self.width, self.compiled = smoothing.dtype, smoothing.num_classes, smoothing.compiled
        self.copied: EvalCopy | None = None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.output: ForwardPass | None = None
        """What the graph computes."""
        self.signature: Any = None
        """What the network was made of when it was copied."""
        self.seconds = 0.0
        """Time that compiling and capturing took."""
        self.release: Callable[[], None] = lambda: None
        """Frees memory that others can do without."""
        self.lock = RLock()
        """Held from the first of the inputs until the outputs are copied: threads may share a network."""
        self._allocate()

    @property
    def fixed(self) -> bool:
        """Whether every pass must have the same rows for repeated inputs: compiled, and on a GPU."""
        return self.compiled or self.device.type == "cuda"

    def _allocate(self) -> None:
        self.graph = None
        self.inputs = channels_last(torch.zeros(self.rows, *self.shape, dtype=torch.float32, device=self.device))
        """The inputs of the next pass."""

    def prepare(self, model: nn.Module, example: Tensor) -> None:
        """Choose the rows that fit into memory; compile and capture."""
        start = time.perf_counter()
        if self.device.type == "cuda":
            self._fit(model, example)
        while self.compiled:
            full: str | None = None
            try:
                self._compile(model, example)
            except FULL as error:
                full = str(error)
            if full is None:
                break
            self.copied = None
            self.halve(full)
        self.seconds = time.perf_counter() - start

    def run(self, model: nn.Module) -> ForwardPass:
        """The predictions and logits of `inputs`."""
        if self.graph is not None and self.output is not None:
            self.graph.replay()
            return self.output
        if self.copied is not None:
            with torch.no_grad(), arithmetic(self.dtype, self.device):
                return self.step(self.inputs)
        with torch.no_grad(), frozen(model), arithmetic(self.dtype, self.device):
            return _answers(guard(model), self.inputs, self.width)

    def halve(self, reason: str) -> None:
        """Take half the rows from now on; raises if there are few.

        To be called when the error is no longer handled: its frames hold the memory that ran out.
        """
        if self.rows // 2 < LEAST:
            raise ValueError(f"a batch of {self.rows} must fit into memory, but it does not: {first_words(reason)}")
        warnings.warn(f"out of memory with {self.rows} inputs per pass: {self.rows // 2} from now on", stacklevel=5)
        self.rows //= 2
        self.graph = self.output = None
        self.inputs = self.inputs[:0].clone()  # freed before the smaller one is allocated
        self.release()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self._allocate()

    def refresh(self, model: nn.Module, example: Tensor) -> bool:
        """Give the compiled copy the network's present weights; returns whether it is still a copy of it."""
        with self.lock:
            if self.copied is None or _signature(model) != self.signature:
                return False
            self.copied.refresh()
            return self._agrees(model, example)

    def _fit(self, model: nn.Module, example: Tensor) -> None:
        """Halve the rows until a batch fits into the free memory, by what a few rows take."""
        torch.cuda.synchronize(self.device)
        few = channels_last(example[:1].expand(MEASURED, *self.shape).contiguous())
        before = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        self.plain_logits(model, few)
        taken = torch.cuda.max_memory_allocated(self.device) - before
        free, total = torch.cuda.mem_get_info(self.device)
        reserved = torch.cuda.memory_reserved(self.device)
        # The user may have given this process a part of the card.
        with torch.cuda.device(self.device):  # whose index the device may lack
            allowed = int(torch.cuda.get_per_process_memory_fraction() * total)
        free = min(free, allowed - reserved)
        free += reserved - torch.cuda.memory_allocated(self.device)
        rows = self.rows
        while rows > LEAST and taken / MEASURED * rows > PART * free:
            rows //= 2
        if rows < self.rows:
            self.rows = rows
            self._allocate()

    def plain_logits(self, model: nn.Module, batch: Tensor) -> Tensor:
        """The network's own logits for a batch of any size, in the arithmetic but not compiled."""
        with torch.no_grad(), frozen(model), arithmetic(self.dtype, self.device):
            return checked(guard(model)(batch), len(batch), self.width)

    def _compile(self, model: nn.Module, example: Tensor) -> None:
        try:
            half = self.dtype in ("bfloat16", "float16")
            dtype = getattr(torch, self.dtype) if half else torch.float32
            self.copied = EvalCopy(_bare(model), dtype, example=example if half else None, folded=half)
            self.signature = _signature(model)
            if not self._agrees(model, example):
                raise ValueError("its copy has other logits")
            network, width = self.copied.network, self.width

            def step(inputs: Tensor) -> ForwardPass:
                return _answers(network, inputs, width)

            # Fixed shapes. A code object of its own: torch compiles only a few networks per code object.
            self.step: Callable[[Tensor], ForwardPass] = torch.compile(_own_code(step), dynamic=False)
            with ExitStack() as stack:
                stack.enter_context(torch.no_grad())
                stack.enter_context(arithmetic(self.dtype, self.device))
                stack.enter_context(torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext())
                self.step(self.inputs)
                if self.device.type == "cuda":
                    self._capture()
        except FULL:
            raise
        except Exception as error:  # whatever a compiler raises
            self.copied = None
            # An error of the network itself is said as such.
            self.plain_logits(model, self.inputs)
            _warn("the network could not be compiled, so votes are counted more slowly", error)

    def _capture(self) -> None:
        """Capture one whole pass in a CUDA graph: one launch, the same kernels and therefore the same votes."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self.step(self.inputs)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        try:
            graph = torch.cuda.CUDAGraph()
            # Other threads may use the device meanwhile.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self.output = self.step(self.inputs)
            self.graph = graph
        except FULL:
            raise
        except RuntimeError as error:
            _warn("no CUDA graph could be captured, so votes are counted more slowly", error)

    def _agrees(self, model: nn.Module, example: Tensor) -> bool:
        """Whether the copy has the logits of the network, up to rounding, in most of a few inputs."""
        assert self.copied is not None
        few = channels_last(example[:MEASURED].clone())
        ours = self.plain_logits(model, few).double()
        with torch.no_grad(), arithmetic(self.dtype, self.device):
            theirs = self.copied.network(few.clone()).double()
        if ours.shape != theirs.shape:
            return False
        finite = ours.isfinite()
        if not torch.equal(finite, theirs.isfinite()):
            return False
        if not finite.any():
            return True
        ours, theirs = ours.where(finite, 0), theirs.where(finite, 0)
        spread = (ours - ours.mean(1, keepdim=True)).abs().amax(1).median()
        size = ours.abs().amax(1).median()
        allowed = AGREEMENT[self.dtype] * torch.maximum(spread, AGREEMENT[self.dtype] * size)
        return bool((ours - theirs).abs().amax(1).median() <= allowed)


def prepared_pass(
    model: nn.Module, shape: Sequence[int], smoothing: Smoothing, device: torch.device, *, example: Tensor
) -> NetworkPass:
    """The passes of a network, ready to run; a compiled one is made once as long as the network lives.

    Their rows are those of `batch_size`; default: 256 on a CPU, on a GPU by the size of an input, if memory allows.
    """
    wanted = _ASKED.get() or batch_rows(device, shape)
    key = tuple(shape), smoothing.dtype, smoothing.num_classes, device, wanted
    with _MAKING if smoothing.compiled else nullcontext():
        kept = _kept(_bare(model)) if smoothing.compiled else {}
        found = kept.pop(key, None)
        if found is None or not found.refresh(model, example):
            while len(kept) >= KEPT:
                kept.pop(next(iter(kept)))
            found = NetworkPass(shape, smoothing, device, wanted)
            found.release = partial(_release_others, kept, found)
            found.prepare(model, example)
        if found.copied is not None:
            kept[key] = found
    return found


_MAKING = forkable_lock()
"""One thread makes passes: a network's are made once, and the preparation of a capture would break another one."""


def _release_others(kept: dict[Any, NetworkPass], own: NetworkPass) -> None:
    """Free the passes of other shapes; halved, the own one serves later calls too."""
    for key in [key for key, other in kept.items() if other is not own]:
        del kept[key]


def batch_rows(device: torch.device, shape: Sequence[int]) -> int:
    """Rows of a forward pass for images of a shape, if memory allows."""
    if device.type == "cpu":
        return ROWS["cpu"]
    size = int(np.prod(shape))
    return max(FEWEST, ROWS["cuda"] * PIXELS // max(size, PIXELS) // CHUNK * CHUNK)


def channels_last(batch: Tensor) -> Tensor:
    """A batch in the layout that is fast on a GPU."""
    return batch.contiguous(memory_format=torch.channels_last) if batch.is_cuda and batch.dim() == 4 else batch


def checked(logits: Any, rows: int, width: int) -> Tensor:
    """The logits, if there is one row per input: a missing row would be answered by another one."""
    if not isinstance(logits, Tensor):
        raise ValueError(f"logits must be a tensor of shape {(rows, width)}, got a {type(logits).__name__}")
    if logits.shape != (rows, width):
        wider = logits.dim() == 2 and len(logits) == rows
        remedy = f": num_classes must be {logits.shape[1]} for this network" if wider else ""
        raise ValueError(
            f"logits must have the shape {(rows, width)}, one row per input, got {tuple(logits.shape)}{remedy}"
        )
    return logits


def _answers(network: nn.Module, inputs: Tensor, width: int) -> ForwardPass:
    logits = checked(network(inputs), len(inputs), width)
    return ForwardPass(torch.where(logits.isnan().any(1), width, logits.argmax(1)), logits)


_PASSES: dict[int, tuple[ReferenceType[nn.Module], dict[Any, NetworkPass]]] = {}
"""Compiled passes of living networks, by their ids: a module may compare by value, and have no hash."""


def _kept(model: nn.Module) -> dict[Any, NetworkPass]:
    known = _PASSES.get(id(model))
    if known is None or known[0]() is not model:
        key = id(model)
        known = _PASSES[key] = ref(model, lambda _: _PASSES.pop(key, None)), {}
    return known[1]


def _bare(model: nn.Module) -> nn.Module:
    return model.network if isinstance(model, Guarded) else model


def _signature(model: nn.Module) -> list[Any]:
    """What a network is made of besides the values of its tensors."""
    found: list[Any] = []
    for name, module in _bare(model).named_modules():
        found.append((name, id(type(module)), [(key, id(hook)) for key, hook in _hooks(module)]))
        found += [
            (key, value if isinstance(value, int | float | str | bytes | tuple | None) else id(value))
            for key, value in vars(module).items()
            if not key.startswith("_") and key != "training"
        ]
        tensors = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        found += [(key, tensor.shape, tensor.dtype, tensor.device) for key, tensor in tensors]
    return found


def _hooks(module: nn.Module) -> list[tuple[int, Any]]:
    return [*module._forward_pre_hooks.items(), *module._forward_hooks.items()]


def _own_code(function: Any) -> Callable[[Tensor], ForwardPass]:
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(_NUMBERS)}")
    return FunctionType(code, function.__globals__, code.co_name, function.__defaults__, function.__closure__)


_NUMBERS = iter(range(2**62))


def _warn(what: str, error: Exception) -> None:
    warnings.warn(f"{what}: {first_words(error)}", stacklevel=5)
