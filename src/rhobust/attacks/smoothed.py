"""The smoothed classifier as a function of its input that can be differentiated."""

import math

from torch import Tensor, nn

from rhobust.noise import Noise, noisy_copies


def smoothed_logits(model: nn.Module, x: Tensor, *, sigma: float, draws: int, rng: Noise) -> Tensor:
    """The logarithm of the mean softmax over fresh noise draws, `(n, classes)`.

    These are logits: their softmax is the mean softmax itself, and their cross-entropy is -log of the label's mean.
    """
    log_probability = model(noisy_copies(x, sigma, draws, rng)).log_softmax(dim=1).unflatten(0, (draws, len(x)))
    return log_probability.logsumexp(dim=0) - math.log(draws)
