"""Balls that attacks move in: their steps, their random points, their distances."""

from typing import Literal

from torch import Tensor

from rhobust.noise import Noise

from rhobust.attacks.ascent import Move, l2_move, linf_move, norms, project_l2, project_linf, unit

Norm = Literal["l2", "linf"]
"""How far an input is moved: by L2 or by L-infinity distance."""
Gradient = Literal["normalised", "raw"]
"""What a step follows: the direction of the gradient (in L-infinity its sign), or the gradient as it is."""


def steps_within(norm: Norm, gradient: Gradient, centre: Tensor, eps: float, size: float) -> Move:
    """Steps along the gradient, within the ball of radius eps around each centre and in [0, 1]."""
    if gradient == "normalised":
        return l2_move(centre, eps, size) if norm == "l2" else linf_move(centre, eps, size)
    project = project_l2 if norm == "l2" else project_linf
    return lambda point, slope, _: project(point + size * slope, centre, eps).clamp(0, 1)


def random_point(x: Tensor, eps: float, norm: Norm, rng: Noise) -> Tensor:
    """A point uniform in the ball of radius eps around each example, clamped to [0, 1]."""
    # Only normal draws are named streams; their distribution function turns them into uniform ones.
    direction, level = rng.normal(x, 2)
    uniform = 0.5 * (1 + (level / 2**0.5).erf())
    if norm == "linf":
        return (x + eps * (2 * uniform - 1)).clamp(0, 1)
    dimension = x[0].numel()
    radius = uniform.flatten(1)[:, 0].view(-1, *[1] * (x.dim() - 1)) ** (1 / dimension)
    return (x + eps * radius * unit(direction)).clamp(0, 1)


def distances(moved: Tensor, x: Tensor, norm: Norm) -> Tensor:
    """How far each example was moved, `(n,)`."""
    return norms(moved - x).flatten() if norm == "l2" else (moved - x).flatten(1).abs().amax(1)
