"""What a network of the zoo is, and what is expected of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

SIDE, CLASSES = 4, 3
BOUNDARY = 2040.5
"""The plain network's classes meet where the 16 pixels, as integers from 0 to 255, add up to this."""
COMMANDS = ("train", "attack", "certify", "certify-shift", "curves", "predict", "audit", "transfer", "evaluate")
CERTIFYING = ("certify", "certify-shift", "curves", "predict", "audit", "evaluate")
"""Commands that need a function of one input."""
GRADIENTS = ("train", "attack", "curves", "transfer", "evaluate")
"""Commands that need a gradient."""

Verdict = Literal["works", "refused", "either", "differs"]
"""works: exit code 0. refused: exit code 2 and one line. either: one of them, and no certificate above the truth.
differs: of audit, which runs and finds another network than that of the record, exit code 1."""


Truth = Literal["half-space", "constant", "unknown"]
"""Whose true radii the certificates of a network are held against."""


class Plain(nn.Module):
    """Half-space: class 1 where the mean of the 16 pixels exceeds a half, else class 0, never class 2.

    The normal has length one, so the first two logits are the signed distance to the boundary and its negative.
    """

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            self.linear = nn.Linear(SIDE * SIDE, CLASSES)
        normal = torch.full((SIDE * SIDE,), 0.25)
        offset = BOUNDARY / 255 / 4
        self.linear.weight.data = torch.stack([-normal, normal, 0 * normal])
        self.linear.bias.data = torch.tensor([offset, -offset, -9.0])

    def forward(self, x: Any) -> Any:
        return self.linear(x.flatten(1))

    def plain(self, x: Any) -> Any:
        """What the half-space answers."""
        return self.linear(x.flatten(1))


@dataclass(frozen=True)
class Case:
    """A network and what is expected of it."""

    name: str
    make: Callable[[], Any]
    """The user's factory."""
    verdict: Verdict = "works"
    """What is expected of every command that `verdicts` does not name."""
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    says: str = ""
    """Part of the line by which the network is refused."""
    truth: Truth = "half-space"

    def expected(self, command: str) -> Verdict:
        return self.verdicts.get(command, self.verdict)


ZOO: dict[str, Case] = {}


def add(
    name: str,
    make: Callable[[], Any],
    verdict: Verdict = "works",
    *,
    says: str = "",
    otherwise: Mapping[str | tuple[str, ...], Verdict] | None = None,
    truth: Truth = "half-space",
) -> None:
    """Put a network into the zoo."""
    verdicts: dict[str, Verdict] = {}
    for commands, one in (otherwise or {}).items():
        verdicts |= dict.fromkeys([commands] if isinstance(commands, str) else commands, one)
    ZOO[name] = Case(name, make, verdict, verdicts, says, truth)


def forward(
    verdict: Verdict = "works",
    *,
    says: str = "",
    otherwise: Mapping[str | tuple[str, ...], Verdict] | None = None,
    truth: Truth = "half-space",
    name: str = "",
) -> Callable[[Callable[[Any, Any], Any]], Callable[[Any, Any], Any]]:
    """Put the plain network with another forward pass, a function of the network and its input, into the zoo."""

    def register(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        title = name or function.__name__
        network = type(title.title().replace("_", ""), (Plain,), {"forward": function, "calls": 0})
        add(title, network, verdict, says=says, otherwise=otherwise, truth=truth)
        return function

    return register
