"""The smoothed classifier as a function of its input that can be differentiated."""

import math

from torch import Tensor, nn
from torch.nn import functional as F

from rhobust.noise import Noise, noisy_copies

_LANES = 32
"""Numbers that a CPU takes through exp and log at once; what does not fill them goes another way, a last digit off."""


def smoothed_logits(model: nn.Module, x: Tensor, *, sigma: float, draws: int, rng: Noise) -> Tensor:
    """The logarithm of the mean softmax over fresh noise draws, `(n, classes)`.

    These are logits: their softmax is the mean softmax itself, and their cross-entropy is -log of the label's mean.
    """
    log_probability = model(noisy_copies(x, sigma, draws, rng)).log_softmax(dim=1).unflatten(0, (draws, len(x)))
    # Filled up, an example's value does not depend on how many stand beside it.
    spare = -len(x) % _LANES if x.device.type == "cpu" else 0
    return F.pad(log_probability, (0, 0, 0, spare)).logsumexp(dim=0)[: len(x)] - math.log(draws)
