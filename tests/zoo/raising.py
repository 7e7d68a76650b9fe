"""Networks that raise: anything, anywhere."""

import asyncio
import errno
import sys
from typing import Any

import torch
from torch import nn

from tests.zoo.cases import GRADIENTS, Plain, add, forward


class OwnError(Exception):
    """An error of the user's own."""


class OwnBaseError(BaseException):
    """One that `except Exception` does not catch."""


class MuteError(Exception):
    """One whose message fails too."""

    def __str__(self) -> str:
        raise KeyError("no message")

    __repr__ = __str__


ERRORS = {
    "runtime_error_empty": lambda: RuntimeError(""),
    "runtime_error_lines": lambda: RuntimeError("first\nsecond\x1b[31m\nthird"),
    "key_error": lambda: KeyError("x"),
    "index_error": lambda: IndexError("list index out of range"),
    "type_error": lambda: TypeError("unsupported operand"),
    "attribute_error": lambda: AttributeError("no attribute"),
    "value_error": lambda: ValueError("mine"),
    "value_error_empty": lambda: ValueError(),
    "not_implemented": lambda: NotImplementedError("later"),
    "zero_division": lambda: ZeroDivisionError("division by zero"),
    "overflow": lambda: OverflowError("too large"),
    "floating_point": lambda: FloatingPointError("underflow"),
    "assertion": lambda: AssertionError(),
    "stop_iteration": lambda: StopIteration(1),
    "generator_exit": lambda: GeneratorExit(),
    "memory_error": lambda: MemoryError(),
    "out_of_memory": lambda: torch.OutOfMemoryError("CUDA out of memory"),
    "disk_full": lambda: OSError(errno.ENOSPC, "No space left on device"),
    "file_not_found": lambda: FileNotFoundError("weights.bin"),
    "broken_pipe": lambda: BrokenPipeError(errno.EPIPE, "Broken pipe"),
    "timeout": lambda: TimeoutError("too slow"),
    "system_exit_0": lambda: SystemExit(0),
    "system_exit_none": lambda: SystemExit(),
    "system_exit_text": lambda: SystemExit("bye"),
    "unicode_error": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
    "cancelled": lambda: asyncio.CancelledError(),
    "group": lambda: ExceptionGroup("two", [KeyError("a"), ValueError("b")]),
    "user_warning": lambda: UserWarning("raised, not warned"),
    "own_error": lambda: OwnError("mine"),
    "own_base_error": lambda: OwnBaseError("mine"),
    "mute_error": MuteError,
    "long_message": lambda: RuntimeError("x" * 100_000),
}


class Raising(Plain):
    """Raises in the forward pass, from some call on."""

    def __init__(self, error: Any, call: int = 1) -> None:
        super().__init__()
        self.error, self.left = error, call

    def forward(self, x: Any) -> Any:
        self.left -= 1
        if self.left <= 0:
            raise self.error()
        return self.plain(x)


for one, error in ERRORS.items():
    says = "out of memory" if one == "out_of_memory" else f"raised {type(error()).__name__}"
    add(f"raises_{one}", lambda error=error: Raising(error), "refused", says=says)
for call in (2, 3, 5, 9, 17):
    add(f"raises_at_call_{call}", lambda call=call: Raising(ERRORS["key_error"], call), "either", says="KeyError: 'x'")
add("exits_at_call_4", lambda: Raising(ERRORS["system_exit_0"], 4), "either", says="raised SystemExit: 0")


@forward("refused", says="raised RecursionError")
def recursion(net: Any, x: Any) -> Any:
    return recursion(net, x)


@forward("refused", says="raised RuntimeError")
def raises_for_a_batch(net: Any, x: Any) -> Any:
    if len(x) > 1:
        raise RuntimeError("one at a time")
    return net.plain(x)


@forward("refused", says="raised RuntimeError")
def raises_for_one_input(net: Any, x: Any) -> Any:
    if len(x) == 1:
        raise RuntimeError("batches only")
    return net.plain(x)


@forward(otherwise={GRADIENTS: "refused"}, says="raised RuntimeError: no gradients here")
def raises_with_gradients(net: Any, x: Any) -> Any:
    if torch.is_grad_enabled():
        raise RuntimeError("no gradients here")
    return net.plain(x)


@forward("refused", says="raised RuntimeError: gradients only")
def raises_without_gradients(net: Any, x: Any) -> Any:
    if not torch.is_grad_enabled():
        raise RuntimeError("gradients only")
    return net.plain(x)


@forward(otherwise={"train": "refused"}, says="raised OwnError: evaluation only")
def raises_in_training(net: Any, x: Any) -> Any:
    if net.training:
        raise OwnError("evaluation only")
    return net.plain(x)


@forward("refused", says="raised OwnError: training only")
def raises_in_evaluation(net: Any, x: Any) -> Any:
    if not net.training:
        raise OwnError("training only")
    return net.plain(x)


@forward("refused", says="raised ValueError: outside")
def raises_outside_the_unit_cube(net: Any, x: Any) -> Any:
    if x.min() < 0 or x.max() > 1:
        raise ValueError("outside")
    return net.plain(x)


class Backward(torch.autograd.Function):
    """The identity; its gradient raises."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise OwnError("in the gradient")


@forward(otherwise={GRADIENTS: "refused"}, says="OwnError: in the gradient")
def raises_in_the_gradient(net: Any, x: Any) -> Any:
    return Backward.apply(net.plain(x))


@forward(otherwise={GRADIENTS: "refused"}, says="SystemExit")
def exits_in_the_gradient(net: Any, x: Any) -> Any:
    logits = net.plain(x)
    if logits.requires_grad:
        logits.register_hook(lambda _: sys.exit(0))
    return logits


def raising(what: str) -> Any:
    """A network one of whose methods raises."""

    def fail(self: Any, *arguments: Any, **options: Any) -> Any:
        raise KeyError(what)

    return type(f"Raising{what.title()}", (Plain,), {what: fail})


add("state_dict_raises", raising("state_dict"), "refused", says="KeyError: 'state_dict'")
add(
    "load_state_dict_raises",
    raising("load_state_dict"),
    "refused",
    says="KeyError: 'load_state_dict'",
)
add("eval_raises", raising("eval"), "refused", says="KeyError: 'eval'")
add("train_raises", raising("train"), "refused", says="KeyError: 'train'")
add("parameters_raise", raising("parameters"), "refused", says="KeyError: 'parameters'")
add("modules_raise", raising("modules"), "refused", says="KeyError: 'modules'")
add("to_raises", raising("to"), "refused", says="KeyError: 'to'")


def factory(error: BaseException) -> Any:
    """A factory that raises."""

    def make(num_classes: int = 3) -> nn.Module:
        raise error

    return make


add("factory_raises", factory(KeyError("x")), "refused", says="must build a network, but KeyError: 'x'")
add("factory_exits", factory(SystemExit(0)), "refused", says="must build a network, but SystemExit")
add("factory_breaks_a_pipe", factory(BrokenPipeError()), "refused", says="must build a network, but BrokenPipeError")
add("factory_returns_none", lambda: None, "refused", says="must return a torch.nn.Module, got NoneType")
add("factory_returns_a_class", lambda: Plain, "refused", says="must return a torch.nn.Module, got type")
add("factory_returns_a_function", lambda: Plain().forward, "refused", says="must return a torch.nn.Module")
add("factory_wants_more", lambda this, that: Plain(), "refused", says="must build a network, but TypeError")
