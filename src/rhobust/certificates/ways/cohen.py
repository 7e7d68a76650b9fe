"""Cohen et al.'s test: a fixed number of draws for every input."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rhobust.bounds import certified_radius, clopper_pearson
from rhobust.bounds.sequential import Whole

from rhobust.certificates.ways.protocol import Claims, check_way


@dataclass(frozen=True)
class Cohen:
    """Select the class with n0 draws, count it in n fresh ones; the radius is sigma Phi^{-1}(p_lower).

    The Clopper-Pearson bound of the count is false with probability at most alpha, and so is the radius.
    """

    name: ClassVar[str] = "cohen"
    n0: int = 100
    """Draws that select the class."""
    n: int = 100_000
    """Draws that count it."""

    def __post_init__(self) -> None:
        check_way(self)

    def plan(self, sigma: float, level: float) -> "FixedPlan":
        return FixedPlan(sigma, level, self.n)


@dataclass(frozen=True)
class FixedPlan:
    """One look, after a number of draws that does not depend on their votes."""

    sigma: float
    level: float
    n: int

    def first(self, top: Whole) -> Whole:
        return np.full(len(top), self.n, dtype=np.int64)

    def look(self, count: Whole, draws: Whole, reached: Whole) -> tuple[Whole, Whole]:
        return reached, draws

    def claims(self, count: Whole, draws: Whole, reached: Whole) -> Claims:
        lower = np.atleast_1d(clopper_pearson(count, draws, self.level, "lower"))
        radius = np.atleast_1d(certified_radius(lower, self.sigma))
        return Claims(radius > 0, radius, lower)

    def speculate(self, wanted: int) -> int:
        return wanted

    def audit(self, top: int, count: int, draws: int, evidence: list[tuple[int, int]]) -> str | None:
        planned = int(self.first(np.array([top]))[0])
        if draws != planned:
            return f"it must rest on {planned} draws, got {draws}"
        return "it must have no steps" if evidence else None
