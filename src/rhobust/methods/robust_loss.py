"""A training method inside somebody's own loop: from a network and a batch to a loss to minimise."""

from numbers import Integral

import torch
import torch.distributed as dist
from torch import Generator, Tensor, nn

from rhobust.data import as_float, check_range
from rhobust.methods.base import Loss, Method
from rhobust.models.inference import check_module
from rhobust.noise import BatchNoise, stream
from rhobust.settings import check_instance, named_kind


def robust_loss(method: Method, *, seed: int = 0) -> "RobustLoss":
    """The loss of a training method, for a training loop of your own.

    Args:
        method: NAL(...) or any other method.
        seed: Random seed of the noise.

    >>> from rhobust.methods import NAL
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    >>> loss_fn = robust_loss(NAL(sigma=0.25))
    >>> loss = loss_fn(model, torch.full((2, 1, 2, 2), 0.5), torch.tensor([0, 2]))
    >>> loss.backward()
    """
    return RobustLoss(method, seed=seed)


class RobustLoss:
    """A method with a noise stream of its own: called with a network, a batch and labels it returns a scalar.

    Works under autocast, with networks wrapped by DistributedDataParallel (each process has its own noise, and inner
    loops reduce no gradients) and by Lightning or Accelerate. Inner loops run in evaluation mode with frozen weights;
    both are restored before the outer step. Torch's global generators are not used.

    Args:
        method: The training method.
        seed: Random seed of the noise.
    """

    def __init__(self, method: Method, *, seed: int = 0) -> None:
        if isinstance(method, type) or not callable(getattr(method, "loss", None)):
            raise ValueError(f"method must be a training method such as NAL(sigma=0.25), got {named_kind(method)}")
        check_instance("seed", seed, Integral, "an int")
        self.method, self.seed = method, seed
        self.squared_distance: Tensor | None = None
        """Squared distance of each adversarial example of the last batch from its input, `(n,)`; None before it."""
        self._generators: dict[torch.device, Generator] = {}
        self._checked = False

    def __repr__(self) -> str:
        return f"robust_loss({self.method!r}, seed={self.seed})"

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, rng: Generator | None = None) -> Tensor:
        """The loss of a batch, a scalar with gradients in the network's weights.

        Args:
            model: The network, from inputs in [0, 1] to logits, in training mode and on the device of x.
            x: Inputs, `(n, ...)`: float in [0, 1], or uint8.
            y: Class numbers, `(n,)`, or probabilities of the classes, `(n, classes)`.
            rng: Source of the noise, on the device of x; default: a stream named by the seed and the process.
        """
        check_module(model)
        x = as_float(x).float()
        if not torch.is_grad_enabled():
            raise ValueError("the loss must be computed with gradients, but torch.no_grad() or inference mode is on")
        if not self._checked:
            # Once: it waits for the device.
            check_range(x, "x")
            self._checked = True
        generator = self._generator(x.device) if rng is None else rng
        loss = self.method.loss(model, x, y, BatchNoise(generator))
        if not isinstance(loss, Loss):
            raise ValueError(f"a method's loss must return a rhobust.methods.Loss, got a {type(loss).__name__}")
        self.squared_distance = loss.squared_distance.detach()
        return loss.value

    def state_dict(self) -> dict[str, Tensor]:
        """State of the noise on each device, for a checkpoint."""
        return {str(device): generator.get_state() for device, generator in self._generators.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue with the noise of a checkpoint."""
        for name, value in state.items():
            self._generator(torch.device(name)).set_state(value.cpu())

    def _generator(self, device: torch.device) -> Generator:
        if device not in self._generators:
            rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
            self._generators[device] = stream(self.seed, "robust-loss", rank, device=device)
        return self._generators[device]
