"""The smoothed classifier: any network, answered by vote under Gaussian noise."""

import torch
from torch import Tensor, nn

from rhobust.attacks.smoothed import smoothed_logits
from rhobust.data import to_unit
from rhobust.noise import BatchNoise, stream

from .radius import Certificate, certify_inputs, predict_inputs
from .votes import noise_kind


class SmoothedClassifier(nn.Module):
    """A network smoothed by Gaussian noise.

    As a module its output is the logarithm of the mean softmax over noise draws: logits, whose softmax is that mean.
    So losses and attacks that take logits mean what they say. Gradients go through the draws, which are fresh at each
    pass: to an attack this is a randomised classifier. It is in training mode where the network is.

    Args:
        model: Any network from inputs in [0, 1] to logits.
        sigma: Standard deviation of the noise.
        num_classes: Number of classes.
        draws: Noise draws of one forward pass.
        seed: Names the noise of the forward passes, drawn anew at each.
    """

    def __init__(self, model: nn.Module, sigma: float, num_classes: int, *, draws: int = 16, seed: int = 0) -> None:
        super().__init__()
        if not sigma > 0:
            raise ValueError(f"sigma must be > 0, got {sigma}")
        if num_classes < 2:
            raise ValueError(f"num_classes must be >= 2, got {num_classes}")
        if draws < 1:
            raise ValueError(f"draws must be >= 1, got {draws}")
        self.model, self.sigma, self.num_classes, self.draws, self.seed = (
            model,
            sigma,
            num_classes,
            draws,
            seed,
        )
        self.training = model.training
        self._noise: dict[torch.device, BatchNoise] = {}

    def forward(self, x: Tensor) -> Tensor:
        """Log of the mean softmax over fresh noise draws, `(n, num_classes)`."""
        if x.dtype == torch.uint8:
            x = to_unit(x)
        if x.device not in self._noise:
            self._noise[x.device] = BatchNoise(stream(self.seed, "forward", device=x.device))
        return smoothed_logits(self.model, x, sigma=self.sigma, draws=self.draws, rng=self._noise[x.device])

    def predict(self, x: Tensor, *, n: int = 1000, alpha: float = 1e-3, seed: int = 0) -> list[int | None]:
        """The class of each input by n votes, or None.

        With probability at least 1 - alpha an answer is the class most probable under noise.
        """
        check_images(x)
        return predict_inputs(
            self.model,
            x,
            indices=range(len(x)),
            sigma=self.sigma,
            num_classes=self.num_classes,
            n=n,
            alpha=alpha,
            seed=seed,
            noise=noise_kind(x),
        )

    def certify(
        self, x: Tensor, *, n0: int = 100, n: int = 100_000, alpha: float = 1e-3, seed: int = 0
    ) -> list[Certificate]:
        """The certified class and L2 radius of each input.

        Each claim is false with probability at most alpha. Inputs on the 1/255 grid get exact integer noise.
        """
        check_images(x)
        return certify_inputs(
            self.model,
            x,
            indices=range(len(x)),
            sigma=self.sigma,
            num_classes=self.num_classes,
            n0=n0,
            n=n,
            alpha=alpha,
            seed=seed,
            noise=noise_kind(x),
        )


def check_images(x: Tensor) -> None:
    """Refuse what is not a batch of images, uint8 or float in [0, 1]."""
    if x.dim() < 2 or len(x) == 0:
        raise ValueError(f"x must be a batch of inputs (n, ...), got the shape {tuple(x.shape)}")
    if x.dtype == torch.uint8:
        return
    if not x.is_floating_point():
        raise ValueError(f"x must be uint8 or floating point, got {x.dtype}")
    if x.isnan().any() or x.min() < 0 or x.max() > 1:
        raise ValueError(f"x must lie in [0, 1], got values from {x.min().item():.4g} to {x.max().item():.4g}")
