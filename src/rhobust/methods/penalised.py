"""The step rule that WRM and NAL share: ascent on a loss less gamma times the squared distance."""

import torch
from torch import Tensor

from rhobust.attacks.ascent import Move


def penalised_move(centre: Tensor, gamma: float, size: float) -> Move:
    """Damped ascent on l(x) - gamma ||x - centre||^2 from the gradient of l: step k = 0, 1, ... is size / sqrt(k + 1).

    With size 1 / (2 gamma), the first step from the centre is grad / (2 gamma).
    """

    def move(point: Tensor, gradient: Tensor, number: int) -> Tensor:
        step = size / (number + 1) ** 0.5
        return torch.lerp(point, centre, 2 * gamma * step).add_(gradient, alpha=step)

    return move
