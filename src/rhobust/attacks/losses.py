"""What an attack climbs: one value an example, of the base network or of the smoothed classifier."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rhobust.noise import Noise

from rhobust.attacks.ascent import label_losses
from rhobust.attacks.smoothed import smoothed_logits

LossKind = Literal["cross-entropy", "margin"]
"""Minus the label's log-probability, or the best other class's log-probability minus the label's."""

OTHER: dict[LossKind, LossKind] = {"cross-entropy": "margin", "margin": "cross-entropy"}


def base_loss(model: nn.Module, x: Tensor, y: Tensor, *, kind: LossKind = "cross-entropy") -> Tensor:
    """The loss of the base network at each input."""
    return label_losses(model, x, y) if kind == "cross-entropy" else _loss(model(x), y, kind)


def smoothed_loss(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    sigma: float,
    draws: int,
    rng: Noise,
    kind: LossKind = "cross-entropy",
) -> Tensor:
    """The loss of the mean softmax over noise draws at each input; its cross-entropy is -log of the label's mean."""
    return _loss(smoothed_logits(model, x, sigma=sigma, draws=draws, rng=rng), y, kind)


def _loss(scores: Tensor, y: Tensor, kind: LossKind) -> Tensor:
    if kind == "cross-entropy":
        return F.cross_entropy(scores, y, reduction="none")
    return scores.scatter(1, y[:, None], -torch.inf).amax(1) - scores.gather(1, y[:, None]).squeeze(1)
