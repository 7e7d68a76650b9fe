"""The smoothed classifier: any network, answered by vote under Gaussian noise."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rhobust.attacks.ascent import check_module, output_width
from rhobust.attacks.smoothed import smoothed_logits
from rhobust.data import as_float, check_images
from rhobust.declared import check_count
from rhobust.noise import BatchNoise, stream

from rhobust.certificates.radius import Certificate, certify_inputs, predict_inputs
from rhobust.certificates.smoothing import Dtype, Smoothing, native_dtype, noise_kind
from rhobust.certificates.ways import choose_way


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
        dtype: Arithmetic of the network in `predict` and `certify`; the device's own where none is given.
        compiled: Whether to compile the network for them.
    """

    def __init__(
        self,
        model: nn.Module,
        sigma: float,
        num_classes: int,
        *,
        draws: int = 16,
        seed: int = 0,
        dtype: Dtype | None = None,
        compiled: bool = False,
    ) -> None:
        super().__init__()
        check_module(model)
        Smoothing(sigma, num_classes)
        check_count("draws", draws)
        self.model, self.sigma, self.num_classes, self.draws, self.seed = (
            model,
            sigma,
            num_classes,
            draws,
            seed,
        )
        self.training = model.training
        self.dtype, self.compiled = dtype, compiled
        self._noise: dict[torch.device, BatchNoise] = {}

    def extra_repr(self) -> str:
        return f"sigma={self.sigma:g}, num_classes={self.num_classes}, draws={self.draws}"

    def forward(self, x: Tensor) -> Tensor:
        """Log of the mean softmax over fresh noise draws, `(n, num_classes)`."""
        x = as_float(x)
        if x.device not in self._noise:
            # Asked once: a network with other outputs would be attacked as another classifier than is certified.
            width = output_width(self.model, x)
            if width != self.num_classes:
                raise ValueError(f"the network must return {self.num_classes} logits, num_classes, got {width}")
            self._noise[x.device] = BatchNoise(stream(self.seed, "forward", device=x.device))
        return smoothed_logits(self.model, x, sigma=self.sigma, draws=self.draws, rng=self._noise[x.device])

    def predict(self, x: Tensor, *, n: int = 1000, alpha: float = 1e-3, seed: int = 0) -> list[int | None]:
        """The class of each input by n votes, or None.

        With probability at most alpha an input is given an answer that is not the class most probable under noise. An
        input must not have been made with knowledge of the seed, which with its place in x names the noise.
        """
        found = predict_inputs(self.model, x, self._smoothing(x, seed), indices=range(len(x)), n=n, alpha=alpha)
        return [answer.prediction for answer in found]

    def certify(
        self,
        x: Tensor,
        *,
        n0: int | None = None,
        n: int = 100_000,
        alpha: float = 1e-3,
        radii: Sequence[float] | None = None,
        tolerance: float | None = None,
        seed: int = 0,
    ) -> list[Certificate]:
        """The certified class and L2 radius of each input.

        Each claim is false with probability at most alpha. Inputs on the 1/255 grid get exact integer noise. Inputs at
        the same place of two calls with one seed share their noise; none may have been made with knowledge of it.

        Args:
            x: Inputs, uint8 or float in [0, 1].
            n0: Draws that select the class; 100, or 500 with a tolerance.
            n: Draws that count it, at most.
            alpha: Probability that a certificate is false.
            radii: Increasing radii to decide: an input stops drawing when it is known which of them hold.
            tolerance: How much smaller than with n draws a radius may be expected to be, to save draws.
            seed: Names the noise.
        """
        if radii is not None and tolerance is not None:
            raise ValueError("radii or tolerance must be given, got both")
        way = choose_way(radii=radii, tolerance=tolerance, n0=n0, n=n)
        return certify_inputs(self.model, x, self._smoothing(x, seed), way, indices=range(len(x)), alpha=alpha)

    def _smoothing(self, x: Tensor, seed: int) -> Smoothing:
        check_images(x)
        return Smoothing(
            self.sigma,
            self.num_classes,
            noise=noise_kind(x),
            seed=seed,
            dtype=self.dtype or native_dtype(x.device),
            compiled=self.compiled,
        )
