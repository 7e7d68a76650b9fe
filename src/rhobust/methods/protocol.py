"""What a training method is."""

from typing import NamedTuple, Protocol

from torch import Tensor, nn

from rhobust.noise import Noise


class Loss(NamedTuple):
    """What a method returns for a batch."""

    value: Tensor
    """The scalar to minimise."""
    squared_distance: Tensor
    """How far the inner maximiser moved each input, squared, `(n,)`; zeros where there is none."""


class Method(Protocol):
    """A frozen dataclass of hyper-parameters that turns a batch into a loss.

    A method that trains for smoothing has a field `sigma`; evaluation takes it as the smoothing noise.
    """

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, rng: Noise) -> Loss:
        """The loss of a batch.

        Args:
            model: The network in training mode, from inputs in [0, 1] to logits.
            x: Inputs, `(n, ...)`.
            y: Labels, `(n,)`, or probabilities of the classes, `(n, classes)`.
            rng: The only source of noise.
        """
        ...


def squared_distance(worst: Tensor, x: Tensor) -> Tensor:
    """How far each input was moved, squared, `(n,)`."""
    return (worst - x).flatten(1).square().sum(1)
