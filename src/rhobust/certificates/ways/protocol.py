"""What a way to certify is: how many draws it takes, and what they prove."""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from rhobust.bounds.arguments import Array
from rhobust.bounds.sequential import Whole
from rhobust.declared import check_declared


@dataclass(frozen=True)
class Claims:
    """What is proved of many inputs, one entry an input."""

    proved: NDArray[np.bool_]
    """Whether anything is; where not, the test abstains."""
    radius: Array
    """The certified radius; 0.0 where nothing is proved."""
    p_lower: Array
    """A lower bound of the probability of the selected class, at the same level; 0.0 where there is none."""


class Plan(Protocol):
    """A way at one sigma and one level; it speaks of many inputs at once, one entry an input."""

    def first(self, top: Whole) -> Whole:
        """Draws before the first look.

        Args:
            top: Votes for the selected class among the draws that selected it.
        """
        ...

    def look(self, count: Whole, draws: Whole, reached: Whole) -> tuple[Whole, Whole]:
        """Look at the votes so far.

        Args:
            count: Votes for the selected class.
            draws: Draws so far.
            reached: How many steps were proved at the last look.

        Returns:
            How many are proved now, and the draws before the next look: those so far where the test is over.
        """
        ...

    def claims(self, count: Whole, draws: Whole, reached: Whole) -> Claims:
        """What is proved at the end."""
        ...

    def speculate(self, wanted: int) -> int:
        """Up to which draw an input's votes may be wanted, when they are wanted up to here now."""
        ...

    def audit(self, top: int, count: int, draws: int, evidence: list[tuple[int, int]]) -> str | None:
        """Why these counts cannot come from this plan, in a few words; None where they can.

        Args:
            top: Votes for the selected class among the draws that selected it.
            count: Votes for it at the end.
            draws: Draws at the end.
            evidence: For each proved step the draws and the votes that proved it.
        """
        ...


class Way(Protocol):
    """How to certify: a frozen dataclass of its settings."""

    name: ClassVar[str]
    """What records and the command line call it."""

    @property
    def n0(self) -> int:
        """Draws that select the class."""
        ...

    @property
    def n(self) -> int:
        """Draws that count it, at most."""
        ...

    def plan(self, sigma: float, level: float) -> Plan:
        """The test at a noise level, with probability `level` of a false claim."""
        ...


def check_way(way: Any) -> None:
    """Refuse a counting stage that is smaller than the selection: its radius could only be worse than worthless."""
    check_declared(way)
    if way.n0 < 1 or way.n < way.n0:
        raise ValueError(f"n must be >= n0 >= 1, got n={way.n} and n0={way.n0}")
