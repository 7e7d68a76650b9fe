"""A grid of radii: draw until every radius is proved or given up."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from rhobust.bounds.sequential import RadiusTest, Whole, looks
from rhobust.certificates.votes import CHUNK

from rhobust.certificates.ways.protocol import Claims, check_way


@dataclass(frozen=True)
class Grid:
    """Select the class with n0 draws, then test the radii while drawing fresh ones, n at most.

    An input is done as soon as every radius is proved or given up; most are after a small part of n. The largest
    radius claimed is false with probability at most alpha, whatever the number of radii (`RadiusTest`).
    """

    name: ClassVar[str] = "grid"
    radii: tuple[float, ...]
    """Increasing radii."""
    n0: int = 100
    """Draws that select the class."""
    n: int = 100_000
    """Draws that count it, at most."""
    early: float = 0.2
    """Share of alpha that stopping early may spend."""
    futility: float = 0.005
    """The chance that a radius is still proved below which it is given up."""

    def __post_init__(self) -> None:
        check_way(self)
        self.test(1.0, 0.5)

    def test(self, sigma: float, level: float) -> RadiusTest:
        """The test at a noise level, with probability `level` of a false claim."""
        return RadiusTest(self.radii, sigma, level, self.n, self.early, self.futility)

    def plan(self, sigma: float, level: float) -> "GridPlan":
        return GridPlan(self.test(sigma, level))


@dataclass(frozen=True)
class GridPlan:
    """The test of the radii, with its looks."""

    test: RadiusTest

    @cached_property
    def looks(self) -> Whole:
        return looks(self.test.n, CHUNK)

    def first(self, top: Whole) -> Whole:
        return np.full(len(top), self.looks[0])

    def look(self, count: Whole, draws: Whole, reached: Whole) -> tuple[Whole, Whole]:
        reached, go_on = self.test.judge(count, draws, reached)
        later = self.looks[np.minimum(np.searchsorted(self.looks, draws, side="right"), len(self.looks) - 1)]
        return reached, np.where(go_on, later, draws)

    def claims(self, count: Whole, draws: Whole, reached: Whole) -> Claims:
        proved = reached > 0
        largest = np.maximum(reached - 1, 0)
        radius = np.where(proved, np.asarray(self.test.radii)[largest], 0.0)
        return Claims(proved, radius, np.where(proved, self.test.thresholds[largest], 0.0))

    def speculate(self, wanted: int) -> int:
        return self.test.n

    def audit(self, top: int, count: int, draws: int, evidence: list[tuple[int, int]]) -> str | None:
        if draws not in self.looks:
            return f"it must stop at a look, got {draws} draws"
        if len(evidence) > len(self.test.radii):
            return f"it must have at most {len(self.test.radii)} steps, got {len(evidence)}"
        before = (0, 0)
        for step, (at, votes) in enumerate(evidence):
            if at not in self.looks or not before[0] <= at <= draws or not 0 <= votes - before[1] <= at - before[0]:
                return f"step {step} must follow the one before, got {votes} of {at}"
            reached, _ = self.test.judge(np.array([votes]), np.array([at]), np.array([step]))
            if reached[0] <= step:
                return f"{votes} of {at} votes do not prove the radius {self.test.radii[step]:g}"
            before = at, votes
        if not 0 <= count - before[1] <= draws - before[0]:
            return f"the votes at the end must follow the last step, got {count} of {draws}"
        reached, go_on = self.test.judge(np.array([count]), np.array([draws]), np.array([len(evidence)]))
        if go_on[0] or reached[0] != len(evidence):
            return f"{count} of {draws} votes do not end the test"
        return None
