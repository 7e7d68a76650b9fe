"""The learning rate over time."""

import math

from rhobust.training.config import TrainConfig

RISE = 0.3
"""Share of a one-cycle run in which the rate rises."""


def learning_rate(config: TrainConfig, done: int, updates: int) -> float:
    """The rate of the next update when so many of all are done."""
    progress = done / updates
    match config.schedule:
        case "cosine":
            factor = 0.5 * (1 + math.cos(math.pi * progress))
        case "onecycle":
            fall = 0.5 * (1 + math.cos(math.pi * (progress - RISE) / (1 - RISE)))
            # From zero up, but not at zero: a run of few updates would lose its first one.
            factor = min(1.0, (done + 1) / (RISE * updates)) if progress < RISE else fall
        case "step":
            factor = 0.1 ** int(3 * progress)
        case "constant":
            factor = 1.0
    return config.lr * factor
