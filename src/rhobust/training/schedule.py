"""The learning rate over time."""

import math

from rhobust.training.config import TrainConfig

RISE = 0.3
"""Share of a one-cycle run in which the rate rises."""


def learning_rate(config: TrainConfig, progress: float) -> float:
    """The rate when a share of the run is done, in [0, 1)."""
    match config.schedule:
        case "cosine":
            factor = 0.5 * (1 + math.cos(math.pi * progress))
        case "onecycle":
            fall = 0.5 * (1 + math.cos(math.pi * (progress - RISE) / (1 - RISE)))
            factor = progress / RISE if progress < RISE else fall
        case "step":
            factor = 0.1 ** int(3 * progress)
        case "constant":
            factor = 1.0
    return config.lr * factor
