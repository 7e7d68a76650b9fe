"""Networks that work, with odd manners: in place, with output, with global settings, of odd construction."""

import logging
import os
import sys
import threading
import time
import warnings
from typing import Any

import torch
from torch import nn

from tests.zoo.cases import BOUNDARY, CERTIFYING, GRADIENTS, Plain, add, forward

HALF = BOUNDARY / 255 / 16 / 2
"""x / 2 plus this keeps the boundary of the half-space."""

add("plain", Plain)


@forward()
def clamps_in_place(net: Any, x: Any) -> Any:
    return net.plain(x.clamp_(-10, 10))


@forward()
def shifts_in_place(net: Any, x: Any) -> Any:
    return net.plain(x.sub_(0.5).add_(0.5))


@forward(otherwise={"audit": "either"})
def halves_in_place(net: Any, x: Any) -> Any:
    return net.plain(x.mul_(0.5).add_(HALF))


@forward(otherwise={"audit": "either"})
def halves_behind_the_graph(net: Any, x: Any) -> Any:
    x.data.mul_(0.5).add_(HALF)
    return net.plain(x)


@forward(otherwise={"audit": "either", GRADIENTS: "either"})
def halves_as_numpy(net: Any, x: Any) -> Any:
    if not x.requires_grad:
        x.numpy()[:] = x.numpy() * 0.5 + HALF
    return net.plain(x)


@forward("either")
def zeroes_its_input(net: Any, x: Any) -> Any:
    z = net.plain(x)
    x.zero_()
    return z


@forward("either")
def in_place_now_and_then(net: Any, x: Any) -> Any:
    net.calls += 1
    return net.plain(x.mul_(0.5).add_(HALF) if net.calls % 3 == 0 else x)


@forward("either")
def resizes_its_input(net: Any, x: Any) -> Any:
    z = net.plain(x)
    x.resize_(0)
    return z


@forward()
def prints(net: Any, x: Any) -> Any:
    print("forward", tuple(x.shape))  # noqa: T201
    return net.plain(x)


@forward()
def prints_json(net: Any, x: Any) -> Any:
    sys.stdout.write('{"summary": 1}\n')
    return net.plain(x)


@forward()
def writes_to_the_file_descriptor(net: Any, x: Any) -> Any:
    os.write(1, b"forward\n")
    return net.plain(x)


@forward("refused", says="raised SystemExit: 0")
def exits_and_writes(net: Any, x: Any) -> Any:
    print("good bye")  # noqa: T201
    sys.exit(0)


@forward()
def logs(net: Any, x: Any) -> Any:
    logging.getLogger(__name__).warning("forward")
    return net.plain(x)


@forward()
def warns(net: Any, x: Any) -> Any:
    warnings.warn("odd", stacklevel=1)
    return net.plain(x)


@forward()
def makes_warnings_errors(net: Any, x: Any) -> Any:
    warnings.simplefilter("error")
    return net.plain(x)


@forward(otherwise={"train": "refused"})
def turns_gradients_off(net: Any, x: Any) -> Any:
    z = net.plain(x)
    torch.set_grad_enabled(False)
    return z


@forward()
def turns_gradients_on(net: Any, x: Any) -> Any:
    torch.set_grad_enabled(True)
    return net.plain(x)


@forward()
def sets_the_default_dtype(net: Any, x: Any) -> Any:
    torch.set_default_dtype(torch.float64)
    return net.plain(x)


@forward()
def sets_the_default_device(net: Any, x: Any) -> Any:
    z = net.plain(x)
    torch.set_default_device("meta")
    return z


@forward()
def sets_the_threads(net: Any, x: Any) -> Any:
    torch.set_num_threads(3)
    return net.plain(x)


@forward()
def seeds_the_generator(net: Any, x: Any) -> Any:
    torch.manual_seed(1)
    return net.plain(x)


@forward()
def starts_threads(net: Any, x: Any) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(net.plain(x)))
    thread.start()
    thread.join()
    return found[0]


@forward()
def changes_the_environment(net: Any, x: Any) -> Any:
    os.environ["ZOO"] = "1"
    return net.plain(x)


@forward()
def is_slow(net: Any, x: Any) -> Any:
    time.sleep(0.002)
    return net.plain(x)


@forward(otherwise={GRADIENTS: "refused"})
def without_gradients(net: Any, x: Any) -> Any:
    with torch.no_grad():
        return net.plain(x)


@forward(otherwise={GRADIENTS: "refused"})
def in_inference_mode(net: Any, x: Any) -> Any:
    with torch.inference_mode():
        return net.plain(x)


@forward(otherwise={"train": "refused", "audit": "works"})
def without_gradients_in_the_weights(net: Any, x: Any) -> Any:
    return nn.functional.linear(x.flatten(1), net.linear.weight.detach(), net.linear.bias.detach())


@forward()
def computes_in_double(net: Any, x: Any) -> Any:
    return nn.functional.linear(x.flatten(1).double(), net.linear.weight.double(), net.linear.bias.double()).float()


@forward(otherwise={CERTIFYING: "either"}, truth="unknown")
def computes_in_bfloat16(net: Any, x: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return net.plain(x)


@forward(otherwise={"train": "either"})
def moves_itself(net: Any, x: Any) -> Any:
    net.to("cpu")
    return net.plain(x.to("cpu"))


@forward(otherwise={"audit": "works"})
def stays_in_training_mode(net: Any, x: Any) -> Any:
    net.train()
    return net.plain(x)


@forward(otherwise={"train": "either"})
def freezes_itself(net: Any, x: Any) -> Any:
    net.requires_grad_(False)
    return net.plain(x)


@forward()
def thaws_itself(net: Any, x: Any) -> Any:
    net.requires_grad_(True)
    return net.plain(x)


def made_of(*layers: nn.Module) -> nn.Module:
    """The plain half-space with layers before its linear one, under the same names in the state dict."""
    network = nn.Sequential()
    for number, layer in enumerate(layers):
        network.add_module(str(number), layer)
    network.add_module("flatten", nn.Flatten())
    network.add_module("linear", Plain().linear)
    return network


add("a_sequence", made_of)
add("with_dropout", lambda: made_of(nn.Dropout(0.5)))
add("frozen_weights", lambda: Plain().requires_grad_(False), otherwise={"train": "refused"})
add("double_weights", lambda: Plain().double(), "refused", says="raised RuntimeError")
add("half_weights", lambda: Plain().half(), "refused", says="raised RuntimeError")
add("on_the_meta_device", lambda: Plain().to("meta"), "refused")


class Lazy(Plain):
    """Weights that get their shape at the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.LazyLinear(3)


add("lazy_weights", Lazy, otherwise={"train": "either"})


class NoWeights(nn.Module):
    """The half-space without any tensor of its own."""

    def forward(self, x: Any) -> Any:
        distance = x.flatten(1).sum(1) / 4 - 2040.5 / 1020
        return torch.stack([-distance, distance, distance * 0 - 9], 1)


add("no_weights", NoWeights, otherwise={"train": "refused", "audit": "refused", "transfer": "either"})


class Equal(Plain):
    """Compares by value, and so has no hash."""

    __hash__ = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal)


add("no_hash", Equal, "either")


class Locked(Plain):
    """Cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


add("cannot_be_copied", Locked)


class Cyclic(Plain):
    """Holds itself."""

    def __init__(self) -> None:
        super().__init__()
        self.me = [self]
        self.linear.register_forward_pre_hook(lambda *_: None)


add("holds_itself", Cyclic)


class Own(Plain):
    """Is called by another name than forward."""

    def __call__(self, x: Any) -> Any:
        return self.plain(x)


add("own_call", Own)
add("traced", lambda: torch.jit.trace(Plain(), torch.zeros(2, 1, 4, 4)), "either")
add("compiled_by_the_user", lambda: torch.compile(Plain(), backend="eager"), "either")
add("in_parallel", lambda: nn.DataParallel(Plain()), "either")


def spectral_norm() -> nn.Module:
    """With a layer that is divided by its spectral norm, which is built from random vectors."""
    with torch.random.fork_rng(devices=[]):
        return made_of(nn.utils.parametrizations.spectral_norm(nn.Conv2d(1, 1, 1)))


add("a_spectral_norm", spectral_norm, "either", truth="unknown")
