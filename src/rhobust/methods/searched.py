"""The inner maximum of a bounded loss, looked for along a path that leaves the input."""

import torch
from torch import Tensor

from rhobust.attacks.ascent import Move, Objective, ascend

from rhobust.methods.protocol import squared_distance


def searched(objective: Objective, x: Tensor, *, gamma: float, steps: int, move: Move) -> Tensor:
    """Of the points that an ascent visits, the input first, the one with the most objective less gamma ||point - x||^2.

    A loss within [0, 1] is worth no move beyond 1 / sqrt(gamma), but short of it a gradient says little: a loss that is
    flat at the input may rise further on. So the way leads out whatever the price, and the price chooses where on it
    to stay. Where no point is worth its price the input stays as it is.

    Args:
        objective: The loss of each example under the same noise at every call, or points could not be compared.
        x: Inputs.
        gamma: Price of moving by one unit of squared distance.
        steps: Gradients taken.
        move: The step rule of the way.
    """
    points: list[Tensor] = []
    worth: list[Tensor] = []

    def seen(point: Tensor) -> Tensor:
        values = objective(point)
        points.append(point.detach())
        worth.append(values.detach() - gamma * squared_distance(point.detach(), x))
        return values

    end = ascend(seen, x, steps=steps, move=move)
    with torch.no_grad():
        seen(end)
    best = torch.stack(worth).argmax(0)
    return torch.stack(points)[best, torch.arange(len(x), device=x.device)]
