"""One weight update: the method's loss, its gradient, the optimiser."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from rhobust.methods import Loss, Method
from rhobust.noise import Noise
from rhobust.training.processes import Processes


@dataclass
class Step:
    """The plain update, in the weights' own precision; what the fast path must agree with."""

    model: nn.Module
    method: Method
    optimizer: torch.optim.Optimizer
    noise: Noise
    processes: Processes
    clip: float | None
    """Largest norm of the gradient; None leaves it as it is."""

    def __call__(self, x: torch.Tensor, y: torch.Tensor, share: torch.Tensor) -> Loss:
        """Update the weights once.

        Args:
            x: This process's inputs.
            y: Their labels.
            share: This process's share of the whole batch, a scalar; 1 for a single process.
        """
        self.optimizer.zero_grad(set_to_none=True)
        loss = _checked(self.loss(x, y))
        (loss.value * share).backward()
        self.processes.add_gradients(self.model)
        if self.clip is not None:
            clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        return Loss(loss.value.detach(), loss.squared_distance.detach())

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> Loss:
        """The method's loss of a batch."""
        return self.method.loss(self.model, x, y, self.noise)


def _checked(loss: Loss) -> Loss:
    """Refuse what a method of the user's own may return in the place of a loss."""
    if not isinstance(loss, Loss):
        raise ValueError(f"a method's loss must return a rhobust.methods.Loss, got a {type(loss).__name__}")
    if loss.value.dim() or not loss.value.requires_grad:
        shape = f"the shape {tuple(loss.value.shape)}" if loss.value.dim() else "one without a gradient"
        raise ValueError(f"a loss's value must be a scalar that depends on the weights, got {shape}")
    return loss
