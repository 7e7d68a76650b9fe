"""Inference: frozen networks, evaluation copies, checks of a network and its output width."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rhobust.data import to_unit
from rhobust.foreign import Foreign
from rhobust.models.guarded import Guarded, guard

StepRule = Callable[[Tensor, Tensor, int], Tensor]
"""From the iterate, its gradient and the step number to the next iterate."""


class WithEvalCopy(nn.Module):
    """A network and its evaluation copy: the same function in evaluation mode, in a faster form, for inner loops."""

    def __init__(self, network: nn.Module, eval_copy: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.network, self.eval_copy = network, eval_copy

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


class CompiledCopy(nn.Module):
    """Compiled evaluation copy of the network with fused cross-entropy and fused attack step."""

    def __init__(
        self, network: nn.Module, losses: Callable[[Tensor, Tensor], Tensor], fuse: Callable[[StepRule], StepRule]
    ) -> None:
        super().__init__()
        self.network, self.losses, self.fuse = network, losses, fuse

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


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
    modes: list[tuple[nn.Module, bool]] = []
    grads: list[tuple[nn.Parameter, bool]] = []
    try:
        with Foreign("the network cannot be put into evaluation mode:"):
            modes += [(module, module.training) for module in model.modules()]
            grads += [(parameter, parameter.requires_grad) for parameter in model.parameters()]
            model.eval()
            for parameter, _ in grads:
                parameter.requires_grad_(False)
        yield guard(model)
    finally:
        for module, mode in modes:
            module.training = mode
        for parameter, needed in grads:
            parameter.requires_grad_(needed)


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
