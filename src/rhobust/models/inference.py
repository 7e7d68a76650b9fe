"""Inference: any network with every call of it checked, frozen networks, evaluation copies and output widths."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rhobust.data import to_unit
from rhobust.shared_context import forkable_lock
from rhobust.user_code import DeviceMemoryError, UserCode, UserCodeError, describe

LOGITS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
"""Dtypes of logits."""
StepRule = Callable[[Tensor, Tensor, int], Tensor]
"""From the iterate, its gradient and the step number to the next iterate."""


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
        try:
            with UserCode("the network raised", x):
                logits = self.network(copied)
        except DeviceMemoryError:
            raise
        except UserCodeError as error:
            if not (remedy := _narrow(self.network, x)):
                raise
            raise UserCodeError(f"{error}{remedy}") from error.__cause__
        changed = version is not None and copied._version != version
        if changed and copied is x:
            raise UserCodeError("the network must not change its inputs in place at some calls only, but it does")
        if changed or (compare and not torch.equal(copied, x)):
            _remember_in_place(self.network)
        self.in_place = _is_in_place(self.network)
        check_logits(logits, x)
        width = self.widths.setdefault(x.shape[1:], logits.shape[1])
        if logits.shape[1] != width:
            raise UserCodeError(
                f"the network must return {width} logits per input, as at its first call, got {logits.shape[1]}"
            )
        # A network may return the same memory at every call, and comparing two calls would compare it with itself.
        return logits if logits.requires_grad else logits.clone()


def _narrow(network: nn.Module, x: Tensor) -> str:
    """What may help a network that refuses its inputs and has no weights in their arithmetic; empty for others."""
    with suppress(Exception):  # weights that cannot be read are said where they are needed
        stored = {one.dtype for one in network.parameters() if one.is_floating_point()}
        if stored and x.dtype not in stored and x.is_floating_point():
            named = " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in stored))
            wanted = str(x.dtype).removeprefix("torch.")
            return (
                f"; its weights are {named} and images come as {wanted}: call .to(torch.{wanted}) on the network first"
            )
    return ""


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
    with UserCode("the network must have tensors to read, but it raised"):
        tensors = [*network.parameters(), *network.buffers()]
    device = tensors[0].device if tensors else default
    if device.type == "meta":
        raise UserCodeError("the network must have weights, but they are on the device meta, which holds none")
    return device


def state_of(network: nn.Module) -> dict[str, Tensor]:
    """A network's parameters and buffers by name."""
    with UserCode("the network must have weights to read, but it raised"):
        return dict(network.state_dict())


def load_state(network: nn.Module, state: dict[str, Tensor]) -> None:
    """Fill a network's parameters and buffers."""
    with UserCode("the network must take its weights, but it raised"):
        network.load_state_dict(state)


def move_to(device: torch.device, network: nn.Module) -> nn.Module:
    """The network, moved to a device."""
    with UserCode(f"the network must be movable to {device}, but it raised"):
        network.to(device)
    return network


def for_evaluation(network: nn.Module, device: torch.device | None = None) -> nn.Module:
    """The network in evaluation mode, moved to a device if one is given."""
    if device is not None:
        move_to(device, network)
    with UserCode("the network must have an evaluation mode, but it raised"):
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
    remedy = ""
    if not isinstance(logits, Tensor) or logits.is_nested:
        given = "a nested tensor" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        remedy = ": wrap it in a module that returns the logits alone"
    elif logits.dim() != 2 or len(logits) != len(x):
        given = f"the shape {tuple(logits.shape)}"
    elif logits.dtype not in LOGITS:
        given = f"the dtype {str(logits.dtype).removeprefix('torch.')}"
    elif logits.layout != torch.strided or logits.device != x.device:
        given = "a sparse tensor" if logits.layout != torch.strided else f"logits on the device {logits.device}"
    else:
        return
    raise UserCodeError(
        f"the network must return floating-point logits of shape (n, classes), got {given} for {describe(x)}{remedy}"
    )


class WithEvalCopy(nn.Module):
    """A network and its evaluation copy: the same function in evaluation mode, in a faster form, for inner loops."""

    def __init__(self, network: nn.Module, eval_copy: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.network, self.eval_copy = network, eval_copy

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


class CompiledCopy(nn.Module):
    """Compiled evaluation copy of the network with fused cross-entropy and fused attack step.

    Args:
        network: The copy.
        losses: From inputs and labels to cross-entropies.
        fuse: Compiles a step rule.
        noisy: Makes the copy for so many noisy copies of each image; default: this one serves.
    """

    def __init__(
        self,
        network: nn.Module,
        losses: Callable[[Tensor, Tensor], Tensor],
        fuse: Callable[[StepRule], StepRule],
        noisy: "Callable[[int], CompiledCopy] | None" = None,
    ) -> None:
        super().__init__()
        self.network, self.losses, self.fuse = network, losses, fuse
        self.noisy = None if noisy is None else cache(noisy)

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


def for_noisy_copies(network: nn.Module, copies: int) -> nn.Module:
    """The network for noisy copies of images, of whose gradients only the sum over the copies of an image counts.

    Args:
        network: Any network; only a compiled copy makes a difference.
        copies: Noisy copies of each image: the first one of all images, then the second one of all, and so on.
    """
    if isinstance(network, CompiledCopy) and network.noisy is not None and copies > 1:
        return network.noisy(copies)
    return network


@contextmanager
def autotuned(wanted: bool = True, *, most: int = 0) -> Iterator[None]:
    """Let cuDNN try its algorithms at the first pass of each shape, and keep the fastest: for gradients.

    Args:
        wanted: Whether to do so at all.
        most: Algorithms that it tries, the most promising first; 0: all.
    """
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.benchmark_limit
    if wanted:
        cudnn.benchmark, cudnn.benchmark_limit = True, most
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.benchmark_limit = before


@contextmanager
def compiled_anew() -> Iterator[None]:
    """Let torch compile the code of a class for as many networks, shapes and steps as there are.

    Torch gives up after eight, without an error: from the ninth network on attacks and trainings would run uncompiled.
    """
    from torch._dynamo import config  # its import takes seconds

    with config.patch(recompile_limit=config.accumulated_recompile_limit):
        yield


@contextmanager
def frozen(model: nn.Module) -> Iterator[nn.Module]:
    """The model for an inner loop: evaluation mode, weights without gradients; both are restored on exit.

    Every call of it is checked (`Guarded`). A model `WithEvalCopy` gives its copy instead.
    """
    if isinstance(model, WithEvalCopy):
        eval_copy = model.eval_copy()
        yield eval_copy if isinstance(eval_copy, CompiledCopy) else guard(eval_copy)
        return
    check_module(model)
    if isinstance(model, DistributedDataParallel):
        model = model.module  # an inner loop has no gradients in the weights, so there is nothing to reduce
    parts, user = list[_Frozen](), object()
    try:
        _freeze(model, parts, user)
        yield guard(model)
    finally:
        try:
            _unfreeze(parts, user)
        except BaseException:
            _unfreeze(parts, user)  # an interrupt came meanwhile
            raise


@dataclass
class _Frozen:
    """A module or a parameter, what the first of its users found (training mode, or a gradient), and its users."""

    part: nn.Module | nn.Parameter
    before: bool
    users: set[object] = field(default_factory=set)

    def restore(self) -> None:
        if isinstance(self.part, nn.Module):
            self.part.training = self.before
        elif self.part.requires_grad != self.before:  # an uninitialised parameter could not be set at all
            self.part.requires_grad_(self.before)


_FROZEN: dict[int, _Frozen] = {}
"""What is frozen, by ids: a module may compare by value."""
_LOCK = forkable_lock()
"""Threads may share a network, or the parts of one under two wrappers: what the first one found comes back with the
last one."""


def _freeze(model: nn.Module, parts: list[_Frozen], user: object) -> None:
    """Freeze a network for a user; `parts` gets what `_unfreeze` gives back, also where this fails midway."""
    with _LOCK, UserCode("the network cannot be put into evaluation mode:"):
        parameters = list(model.parameters())
        found = [(module, module.training) for module in model.modules()]
        found += [(parameter, parameter.requires_grad) for parameter in parameters]
        for part, before in found:
            one = _FROZEN.get(id(part)) or _Frozen(part, before)
            parts.append(one)
            one.users.add(user)
            _FROZEN[id(part)] = one
        model.eval()
        for parameter in parameters:
            parameter.requires_grad_(False)


def _unfreeze(parts: list[_Frozen], user: object) -> None:
    """Give parts back; once more does no harm."""
    with _LOCK:
        for one in parts:
            one.users.discard(user)
            if not one.users and _FROZEN.get(id(one.part)) is one:
                one.restore()
                del _FROZEN[id(one.part)]


def check_module(model: nn.Module) -> None:
    """Raise unless the network is a torch.nn.Module."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"the network must be a torch.nn.Module, got a {type(model).__name__}")


def output_width(model: nn.Module, x: Tensor) -> int:
    """The number of classes of a network; raises if it cannot take the inputs or returns no logits.

    Args:
        model: From inputs in [0, 1] to logits.
        x: Inputs, uint8 or float in [0, 1]; the first one is evaluated.
    """
    # A copy: a network with in-place operations would change the caller's image.
    first = x[:1].clone() if x.is_floating_point() else to_unit(x[:1])
    with torch.no_grad(), frozen(model) as network:
        logits = network(first, compare=True) if isinstance(network, Guarded) else network(first)
    return logits.shape[1]
