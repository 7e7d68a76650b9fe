"""What every certification procedure is to the counting of votes: its plan, the votes it takes and what they prove."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from rhobust.bounds.sequential import Whole
from rhobust.bounds.validation import Array

ProcedureName = Literal["fixed", "sequential", "two-stage"]
CHUNK = 128
"""Noise samples of an example that share a stream; part of the noise's name, so it never changes."""

Evidence = Sequence[Sequence[tuple[int, ...]]]
"""For each input, and each radius that is proved of it, the samples and the votes that proved it: those for the class,
and if the test compares classes, those of the runner-up."""


@dataclass(frozen=True)
class ClassVotes:
    """Votes of many inputs so far, one entry per input."""

    top: Whole
    """Votes for the selected class among the samples that selected it."""
    count: Whole
    """Votes for it."""
    runner_up: Whole
    """Votes for the other class that has most of them."""
    draws: Whole
    """Noise samples."""

    def of(self, inputs: Sequence[int]) -> Self:
        """The votes of some of the inputs."""
        return type(self)(*(getattr(self, one.name)[list(inputs)] for one in fields(self)))


@dataclass(frozen=True)
class Claims:
    """What is proved about many inputs, one entry per input."""

    proved: NDArray[np.bool_]
    """Whether a radius is proved; otherwise the procedure abstains."""
    radius: Array
    """Certified radius; 0.0 if nothing is proved."""
    p_lower: Array
    """Lower bound of the probability of the selected class, at the same level; 0.0 if there is none, as where only
    comparisons with each other class proved the radii."""


class Plan(Protocol):
    """A procedure at one sigma and one level, for many inputs at once: arrays have one entry per input."""

    @property
    def compares(self) -> bool:
        """Whether the votes of the runner-up class may prove a radius."""
        ...

    def first_look(self, top: Whole) -> Whole:
        """Noise samples before the first look.

        Args:
            top: Votes for the selected class among the n0 samples that selected it; 0 if those are counted too.
        """
        ...

    def look(self, votes: ClassVotes, reached: Whole) -> tuple[Whole, Whole]:
        """Look at the votes so far.

        Args:
            votes: The votes.
            reached: Number of radii proved at the last look.

        Returns:
            Number of radii proved now, and the samples before the next look: those so far if the test is over.
        """
        ...

    def claims(self, votes: ClassVotes, evidence: Evidence) -> Claims:
        """The certified radii at the end."""
        ...

    def sample_limit(self, wanted: int) -> int:
        """The most samples that may be needed in the end, if `wanted` are needed now."""
        ...

    def likely_end(self, share: Array, votes: ClassVotes, reached: Whole, until: Whole) -> Whole:
        """The samples at which the test would end if votes went on in a proportion; a guess that decides nothing.

        Args:
            share: The proportion of votes for the selected class among those to come.
            votes: The votes.
            reached: Number of radii proved at the last look.
            until: Samples up to which looks are tried; without an end among them it is n.
        """
        ...

    def audit(self, votes: ClassVotes, evidence: Evidence) -> list[str | None]:
        """For each input why its counts cannot come from this plan, in a few words; None if they can.

        Args:
            votes: The votes at the end.
            evidence: What proved each radius.
        """
        ...


def check_samples(n0: int, n: int, *, least: int = 1) -> None:
    """Raise unless n >= n0 >= least, and n >= 1: samples that count votes at most, and those that select the class."""
    if n0 < least or n < max(n0, 1):
        raise ValueError(f"n must be >= n0 >= {least}, got n={n} and n0={n0}")
