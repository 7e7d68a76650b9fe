"""The one ascent loop: every inner maximisation but AutoAttack's, in training and in attacks, goes through `ascend`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rhobust.data import to_unit

Objective = Callable[[Tensor], Tensor]
"""From inputs `(n, ...)` to one value an example, `(n,)`."""
Move = Callable[[Tensor, Tensor, int], Tensor]
"""From the iterate, its gradient and the step's number to the next iterate."""


def ascend(objective: Objective, start: Tensor, *, steps: int, move: Move) -> Tensor:
    """Follow the gradient of a per-example objective for a number of steps.

    The values are summed, never averaged, over the batch: an example's path does not depend on the batch size.

    Args:
        objective: The value of each example.
        start: Where to begin, `(n, ...)`.
        steps: How many gradients to take.
        move: The step rule, projection included.
    """
    x = start.detach()
    for number in range(steps):
        x.requires_grad_()
        with torch.enable_grad():
            values = objective(x)
        (gradient,) = torch.autograd.grad(values, x, torch.ones_like(values))
        x = move(x.detach(), gradient, number).detach()
    return x


class Lender(nn.Module):
    """A network that lends inner loops a stand-in: the same function in evaluation mode, in a faster form."""

    def __init__(self, network: nn.Module, lend: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.network, self.lend = network, lend

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


class Lent(nn.Module):
    """A stand-in that computes the losses of labelled examples in one piece with itself, and steps in one piece too."""

    def __init__(
        self, network: nn.Module, losses: Callable[[Tensor, Tensor], Tensor], fuse: Callable[[Move], Move]
    ) -> None:
        super().__init__()
        self.network, self.losses, self.fuse = network, losses, fuse

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


def label_losses(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of each example at its label, `(n,)`."""
    if isinstance(network, Lent):
        return network.losses(x, y)
    return F.cross_entropy(network(x), y, reduction="none")


def beside(network: nn.Module, move: Move) -> Move:
    """A step rule of many small operations, in one piece where the network that lends itself can fuse it."""
    return network.fuse(move) if isinstance(network, Lent) else move


@contextmanager
def frozen(model: nn.Module) -> Iterator[nn.Module]:
    """Lend a model for an inner loop: evaluation mode, weights without gradients; everything is put back after."""
    if isinstance(model, Lender):
        yield model.lend()
        return
    check_module(model)
    modes = [(module, module.training) for module in model.modules()]
    grads = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    model.eval()
    for parameter, _ in grads:
        parameter.requires_grad_(False)
    try:
        yield model
    finally:
        for module, mode in modes:
            module.training = mode
        for parameter, needed in grads:
            parameter.requires_grad_(needed)


def check_module(model: nn.Module) -> None:
    """Refuse a plain function, or a class in the place of a network."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"the network must be a torch.nn.Module, got a {type(model).__name__}")


def output_width(model: nn.Module, x: Tensor) -> int:
    """The number of classes a network answers with; one that cannot take the inputs, or gives no logits, is refused.

    Args:
        model: From inputs in [0, 1] to logits.
        x: Inputs, uint8 or float in [0, 1]; the first one is asked about.
    """
    # A copy: a network that works in place would change the caller's image.
    first = x[:1].clone() if x.is_floating_point() else to_unit(x[:1])
    try:
        with torch.no_grad(), frozen(model) as lent:
            logits = lent(first)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        shape = "x".join(map(str, first.shape[1:]))
        raise ValueError(f"the network must take float32 images of shape {shape}, but it fails: {reason}") from error
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != 1:
        given = tuple(logits.shape) if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise ValueError(f"the network must return logits of shape (n, classes), got {given} for one image")
    return logits.shape[1]


def norms(x: Tensor) -> Tensor:
    """The L2 norm of each example, shaped to multiply it."""
    return torch.linalg.vector_norm(x, dim=tuple(range(1, x.dim())), keepdim=True)


def unit(gradient: Tensor) -> Tensor:
    """Each example's gradient over its L2 norm; a zero gradient stays zero."""
    return gradient / norms(gradient).clamp_min(torch.finfo(gradient.dtype).tiny)


def project_l2(x: Tensor, centre: Tensor, eps: float) -> Tensor:
    """The nearest point of the L2 ball of radius eps around each centre."""
    offset = x - centre
    return torch.addcdiv(centre, offset, norms(offset).clamp_min(max(eps, torch.finfo(x.dtype).tiny)), value=eps)


def project_linf(x: Tensor, centre: Tensor, eps: float) -> Tensor:
    """The nearest point of the L-infinity ball of radius eps around each centre."""
    return centre + (x - centre).clamp(-eps, eps)


def l2_move(centre: Tensor, eps: float, size: float) -> Move:
    """Steps of one length along the normalised gradient, within the L2 ball around each centre and in [0, 1]."""

    def move(point: Tensor, gradient: Tensor, _: int) -> Tensor:
        length = norms(gradient).clamp_min(torch.finfo(gradient.dtype).tiny)
        return project_l2(torch.addcdiv(point, gradient, length, value=size), centre, eps).clamp_(0, 1)

    return move


def linf_move(centre: Tensor, eps: float, size: float) -> Move:
    """Steps of one length along the gradient's sign, within the L-infinity ball around each centre and in [0, 1]."""
    return lambda point, gradient, _: project_linf(point + size * gradient.sign(), centre, eps).clamp(0, 1)
