"""Estimating the radius to a tolerance: a pilot chooses the number of draws, fresh draws prove the radius."""

from dataclasses import dataclass
from typing import ClassVar

from rhobust.bounds.sequential import Whole
from rhobust.bounds.tolerance import draws_for_tolerance

from rhobust.certificates.ways.cohen import FixedPlan
from rhobust.certificates.ways.protocol import check_way


@dataclass(frozen=True)
class TwoStage:
    """Select the class and choose the number of draws with n0, then count in fresh draws, n at most.

    The count's draws do not depend on the pilot except in their number, so the Clopper-Pearson bound holds at its
    whole alpha. The radius is expected, but not certain, to lie within the tolerance of that with n draws.
    """

    name: ClassVar[str] = "two-stage"
    n0: int = 500
    """Draws that select the class and choose the number of the others."""
    n: int = 100_000
    """Draws that count the class, at most."""
    tolerance: float = 0.05
    """How much smaller the radius may be expected to be than with n draws."""

    def __post_init__(self) -> None:
        check_way(self)
        if not self.tolerance > 0:
            raise ValueError(f"tolerance must be > 0, got {self.tolerance}")

    def plan(self, sigma: float, level: float) -> "TwoStagePlan":
        return TwoStagePlan(sigma, level, self.n, self.n0, self.tolerance)


@dataclass(frozen=True)
class TwoStagePlan(FixedPlan):
    """A number of draws that the pilot chose."""

    n0: int
    tolerance: float

    def first(self, top: Whole) -> Whole:
        return draws_for_tolerance(top, self.n0, sigma=self.sigma, tolerance=self.tolerance, alpha=self.level, n=self.n)
