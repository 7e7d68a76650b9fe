"""Calls of the user's own code: every error is one line that names the place, and global settings are restored."""

import sysconfig
import warnings
from pathlib import Path
from traceback import FrameSummary, walk_tb
from types import TracebackType
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn

REASON = 300
"""Characters of an error's own message that are shown."""
LOGITS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
"""Dtypes of logits."""
_LIBRARIES = tuple(str(Path(sysconfig.get_path(name))) for name in ("stdlib", "purelib", "platlib"))


class NetworkError(ValueError):
    """An error of the user's own code in one line; its cause is the error itself."""


class Foreign:
    """Context of a call of the user's own code, which may raise anything and change global settings.

    Every exception but KeyboardInterrupt, SystemExit included, becomes a `NetworkError` of one line that names the
    error and its place. Errors that rhobust itself raised inside pass unchanged. Torch's grad mode, default dtype,
    default device and number of threads, and Python's warning filters are restored.

    Args:
        before: Start of the line, for example "the network raised".
        inputs: The inputs of a network, whose number and shape end the line.
    """

    def __init__(self, before: str, inputs: Tensor | None = None) -> None:
        self.before, self.inputs = before, inputs

    def __enter__(self) -> None:
        self.settings = _settings()
        self.filters = warnings.filters[:]

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        now = _settings()
        if now != self.settings:
            _restore(now, self.settings)
        if warnings.filters != self.filters:
            warnings.filters[:] = self.filters  # pyrefly: ignore[unsupported-operation]
            with warnings.catch_warnings():
                pass  # makes Python notice that the filters were changed
        if error is None or isinstance(error, KeyboardInterrupt) or _is_ours(error, traceback):
            return
        after = "" if self.inputs is None else f", for {_describe(self.inputs)}"
        if isinstance(error, torch.OutOfMemoryError):
            # The message of torch's own is long, and its cause holds the memory.
            raise NetworkError(f"{self.before} an error: the device is out of memory{after}") from None
        raise NetworkError(f"{self.before} {_reason(error)}{_place(traceback)}{after}") from error


class Guarded(nn.Module):
    """A network whose every call is checked: errors are one line, inputs stay unchanged, outputs are logits.

    The first call gets a copy of its inputs. A network that changes it works in place, and gets a copy at every call; a
    network that does so at a later call only is refused. Nothing waits for the device, unless `compare` is set.

    Args:
        network: Any network, from inputs `(n, ...)` to logits `(n, classes)`.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.in_place: bool | None = None
        """Whether the network changes its inputs; None before the first call."""
        self.widths: dict[torch.Size, int] = {}
        """How many logits it returned, by the shape of an input."""

    def forward(self, x: Tensor, *, compare: bool = False) -> Tensor:
        """The logits of inputs.

        Args:
            x: Inputs.
            compare: Compare the inputs with a copy, which also shows changes that torch does not count.
        """
        if torch.compiler.is_compiling():
            return self.network(x)
        first = self.in_place is None
        in_place = self.in_place or _is_in_place(self.network)
        copied = x.clone() if compare or first or in_place or x.is_inference() else x
        version = None if copied.is_inference() else copied._version
        with Foreign("the network raised", x):
            logits = self.network(copied)
        changed = version is not None and copied._version != version
        if changed and copied is x:
            raise NetworkError("the network must not change its inputs in place at some calls only, but it does")
        if changed or (compare and not torch.equal(copied, x)):
            _remember_in_place(self.network)
        self.in_place = _is_in_place(self.network)
        check_logits(logits, x)
        width = self.widths.setdefault(x.shape[1:], logits.shape[1])
        if logits.shape[1] != width:
            raise NetworkError(
                f"the network must return {width} logits per input, as at its first call, got {logits.shape[1]}"
            )
        # A network may return the same memory at every call, and comparing two calls would compare it with itself.
        return logits if logits.requires_grad else logits.clone()


_IN_PLACE: dict[int, ReferenceType[nn.Module]] = {}
"""Networks that changed their inputs, by their ids: a module may compare by value, and have no hash."""


def _is_in_place(network: nn.Module) -> bool:
    known = _IN_PLACE.get(id(network))
    return known is not None and known() is network


def _remember_in_place(network: nn.Module) -> None:
    key = id(network)
    _IN_PLACE[key] = ref(network, lambda _: _IN_PLACE.pop(key, None))


def guard(network: nn.Module) -> nn.Module:
    """The network with every call checked."""
    return network if isinstance(network, Guarded) else Guarded(network)


def device_of(network: nn.Module, default: torch.device) -> torch.device:
    """The device of a network's tensors; the default for a network without any."""
    with Foreign("the network must have tensors to read, but it raised"):
        tensors = [*network.parameters(), *network.buffers()]
    device = tensors[0].device if tensors else default
    if device.type == "meta":
        raise NetworkError("the network must have weights, but they are on the device meta, which holds none")
    return device


def state_of(network: nn.Module) -> dict[str, Tensor]:
    """A network's parameters and buffers by name."""
    with Foreign("the network must have weights to read, but it raised"):
        return dict(network.state_dict())


def load_state(network: nn.Module, state: dict[str, Tensor]) -> None:
    """Fill a network's parameters and buffers."""
    with Foreign("the network must take its weights, but it raised"):
        network.load_state_dict(state)


def move_to(device: torch.device, network: nn.Module) -> nn.Module:
    """The network, moved to a device."""
    with Foreign(f"the network must be movable to {device}, but it raised"):
        network.to(device)
    return network


def for_evaluation(network: nn.Module, device: torch.device | None = None) -> nn.Module:
    """The network in evaluation mode, moved to a device if one is given."""
    if device is not None:
        move_to(device, network)
    with Foreign("the network must have an evaluation mode, but it raised"):
        network.eval()
    return network


def own_inputs(network: nn.Module) -> None:
    """Let a network that is known to work in place have copies of its inputs at every call from now on."""
    if _is_in_place(network):
        network.register_forward_pre_hook(_copy_inputs)


def _copy_inputs(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(one.clone() if isinstance(one, Tensor) else one for one in inputs)


def check_logits(logits: Any, x: Tensor) -> None:
    """Raise unless a network's output for inputs is a dense floating-point tensor of one row per input."""
    if not isinstance(logits, Tensor) or logits.is_nested:
        given = "a nested tensor" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
    elif logits.dim() != 2 or len(logits) != len(x):
        given = f"the shape {tuple(logits.shape)}"
    elif logits.dtype not in LOGITS:
        given = f"the dtype {str(logits.dtype).removeprefix('torch.')}"
    elif logits.layout != torch.strided or logits.device != x.device:
        given = "a sparse tensor" if logits.layout != torch.strided else f"logits on the device {logits.device}"
    else:
        return
    raise NetworkError(
        f"the network must return floating-point logits of shape (n, classes), got {given} for {_describe(x)}"
    )


def _settings() -> tuple[Any, ...]:
    return torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_default_device(), torch.get_num_threads()


def _restore(now: tuple[Any, ...], before: tuple[Any, ...]) -> None:
    setters = (torch.set_grad_enabled, torch.set_default_dtype, torch.set_default_device, torch.set_num_threads)
    for setter, is_now, was in zip(setters, now, before, strict=True):
        if is_now != was:
            setter(was)


def _is_ours(error: BaseException, traceback: TracebackType | None) -> bool:
    """Whether rhobust itself refused something, in words for the user."""
    if not isinstance(error, ValueError | FloatingPointError):
        return False
    names = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(traceback)]
    return isinstance(error, NetworkError) or names[-1].startswith("rhobust.")


def _reason(error: BaseException) -> str:
    """The type of an error and the first line of its message."""
    try:
        lines = str(error).strip().splitlines() or [""]
    except Exception:  # a message of the user's own that fails too
        lines = [""]
    text = " ".join(lines[0].split())
    shown = "".join(one if one.isprintable() else repr(one)[1:-1] for one in text[:REASON])
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__


def _place(traceback: TracebackType | None) -> str:
    """The innermost line of the user's own code, or else of a library that is neither torch nor rhobust."""
    frames = [
        FrameSummary(frame.f_code.co_filename, line, frame.f_code.co_name, lookup_line=False)
        for frame, line in walk_tb(traceback)
        if frame.f_globals.get("__name__", "").partition(".")[0] not in ("torch", "rhobust", "importlib")
        and not frame.f_code.co_filename.startswith("<frozen")
    ]
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)] or frames
    return f" in {Path(own[-1].filename).name}:{own[-1].lineno} ({own[-1].name})" if own else ""


def _describe(x: Tensor) -> str:
    dtype = str(x.dtype).removeprefix("torch.")
    count = "one input" if len(x) == 1 else f"{len(x)} inputs"
    return f"{count} of shape {'x'.join(map(str, x.shape[1:]))} ({dtype})"
