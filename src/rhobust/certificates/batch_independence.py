"""Whether a network answers each input alone: a certificate speaks of a function of one input."""

import torch
from torch import Tensor, nn

from rhobust.certificates.sampling import Lot, VoteCounter
from rhobust.certificates.spec import Smoothing, arithmetic
from rhobust.models.inference import frozen

TOLERANCE = {"float32": 1e-4, "tf32": 1e-2, "float16": 2e-2, "bfloat16": 1e-1}
"""Change of a logit, over the largest one, that rounding can explain in each arithmetic."""

IMAGES = 16
"""Images that are asked."""


def check_network(model: nn.Module, images: Tensor, smoothing: Smoothing) -> None:
    """Refuse a network that is no function of one input: its votes in a batch say nothing of a vote alone.

    Args:
        model: The base network, from inputs in [0, 1] to logits.
        images: uint8 or float images, on the network's device; a few of them are asked.
        smoothing: The noise and the arithmetic.
    """
    check_alone(VoteCounter(model, images[:IMAGES], smoothing))


def check_alone(counter: VoteCounter) -> list[str]:
    """Ask a few noisy inputs in other company and in other places of the batch, and compare the logits.

    Returns:
        A warning where the answers differ by no more than rounding can explain; none where they do not differ.

    Raises:
        ValueError: They differ by more, so that the network is not a function of one input.
    """
    lots = [Lot(position, position, "alone", 0, 0, 1, 1) for position in range(min(IMAGES, len(counter.real)))]
    with torch.no_grad(), frozen(counter.model), arithmetic(counter.smoothing.dtype, counter.device):
        batch = counter.fill(lots)
        batch = batch[torch.arange(counter.rows) % len(lots)]
        usual = counter.logits(batch.clone()).float()
        scale = usual.abs().max().clamp_min(1e-6)
        moved = counter.logits(batch.flip(0)).float().flip(0)
        company = batch.clone()
        company[1::2] = 0
        other = counter.logits(company).float()[::2]
    gap = max(_largest(other - usual[::2]), _largest(moved - usual)) / float(scale)
    if gap > TOLERANCE[counter.smoothing.dtype]:
        raise ValueError(
            "the network must answer each input alone, but its logits depend on the other inputs of the batch, or on"
            f" chance (by {gap:.2g} of the largest)"
        )
    if gap == 0:
        return []
    return [
        f"the network's logits depend on an input's place in the batch by up to {gap:.1g} of the largest, which is"
        " rounding: a vote this close to a tie may differ from batch to batch"
    ]


def _largest(difference: Tensor) -> float:
    return float(difference.abs().max())
