"""A faster copy of a network: for ascents, and for the votes that judge what they find."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from rhobust.evaluation.target import Target
from rhobust.models.fused import EvalCopy
from rhobust.models.inference import WithEvalCopy

DTYPE = torch.bfloat16
"""Has float32's range, so that small gradients do not vanish, and three digits, which a direction needs no more of."""


def with_fast_climbs(target: Target, copy: "FastCopy") -> Target:
    """The same target, whose ascents climb a copy of its network."""
    return replace(target, climbed=WithEvalCopy(target.model, lambda: copy))


class FastCopy(nn.Module):
    """A network's evaluation mode in bf16, without gradients in the weights; inputs and logits are float32."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.network = EvalCopy(model, DTYPE).network

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, DTYPE):
            return self.network(x).float()
