"""Certification procedures for one input: fixed sample size, sequential test over radii, two stages.

Guarantee of each: the certified radius is false with probability at most alpha.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, get_args

import numpy as np

from rhobust.bounds import certified_radius, clopper_pearson
from rhobust.bounds.confidence import NoiseKind, corrected_alpha
from rhobust.bounds.pairwise import PairwiseTest
from rhobust.bounds.sequential import RadiusTest, Whole, draws_for_tolerance
from rhobust.bounds.validation import Array
from rhobust.proofs.plan import Claims, ClassVotes, Evidence, ProcedureName, check_samples
from rhobust.proofs.sequential import Sequential, SequentialPlan, Stopping
from rhobust.settings import check_declared, check_level, check_positive, sizes


@dataclass(frozen=True)
class Fixed:
    """Cohen et al.: select the class with n0 noise samples, count its votes in n fresh ones.

    The radius is sigma Phi^{-1}(p_lower) with the Clopper-Pearson bound p_lower of the count. The bound is false with
    probability at most alpha, and so is the radius.
    """

    name: ClassVar[ProcedureName] = "fixed"
    n0: int = 100
    """Noise samples that select the class."""
    n: int = 100_000
    """Noise samples that count its votes."""

    def __post_init__(self) -> None:
        check_declared(self)
        check_samples(self.n0, self.n)

    def plan(self, sigma: float, level: float) -> "FixedPlan":
        return FixedPlan(sigma, level, self.n)


@dataclass(frozen=True)
class FixedPlan:
    """One look, after a number of samples that does not depend on their votes."""

    sigma: float
    level: float
    n: int

    @property
    def compares(self) -> bool:
        return False

    def first_look(self, top: Whole) -> Whole:
        return np.full(len(top), self.n, dtype=np.int64)

    def look(self, votes: ClassVotes, reached: Whole) -> tuple[Whole, Whole]:
        return reached, votes.draws

    def claims(self, votes: ClassVotes, evidence: Evidence) -> Claims:
        lower = np.atleast_1d(clopper_pearson(votes.count, votes.draws, self.level, "lower"))
        radius = np.atleast_1d(certified_radius(lower, self.sigma))
        return Claims(radius > 0, radius, lower)

    def sample_limit(self, wanted: int) -> int:
        return wanted

    def likely_end(self, share: Array, votes: ClassVotes, reached: Whole, until: Whole) -> Whole:
        return np.full(len(share), self.n, dtype=np.int64)

    def audit(self, votes: ClassVotes, evidence: Evidence) -> list[str | None]:
        return [
            f"it must use {planned} samples, got {got}"
            if got != planned
            else "it must have no steps"
            if steps
            else None
            for planned, got, steps in zip(
                self.first_look(votes.top).tolist(), votes.draws.tolist(), evidence, strict=True
            )
        ]


@dataclass(frozen=True)
class TwoStage:
    """Two stages: n0 samples select the class and the sample size, at most n fresh samples count the votes.

    Only the number of fresh samples depends on the first stage, so the Clopper-Pearson bound holds at the whole alpha.
    The radius is expected, but not guaranteed, to be within the tolerance of the radius with n samples.
    """

    name: ClassVar[ProcedureName] = "two-stage"
    n0: int = 500
    """Noise samples that select the class and the sample size."""
    n: int = 100_000
    """Noise samples that count its votes, at most."""
    tolerance: float = 0.05
    """Expected loss of radius against n samples that is accepted."""

    def __post_init__(self) -> None:
        check_declared(self)
        check_samples(self.n0, self.n)
        check_positive(self, "tolerance")

    def plan(self, sigma: float, level: float) -> "TwoStagePlan":
        return TwoStagePlan(sigma, level, self.n, self.n0, self.tolerance)


@dataclass(frozen=True)
class TwoStagePlan(FixedPlan):
    """One look, after a number of samples chosen by the first stage."""

    n0: int
    tolerance: float

    def first_look(self, top: Whole) -> Whole:
        return draws_for_tolerance(top, self.n0, sigma=self.sigma, tolerance=self.tolerance, alpha=self.level, n=self.n)


AnyProcedure = Fixed | Sequential | TwoStage
PROCEDURE_ON_DISK: dict[ProcedureName, str] = {"fixed": "cohen", "sequential": "grid", "two-stage": "two-stage"}
"""Certification procedures and what record files call them, in the header and in the file's name."""
NAMES_ON_DISK: dict[str, ProcedureName] = {on_disk: name for name, on_disk in PROCEDURE_ON_DISK.items()}
"""The procedures by what record files call them."""
PROCEDURES: dict[str, type[AnyProcedure]] = {procedure.name: procedure for procedure in get_args(AnyProcedure)}


def choose_procedure(
    procedure: ProcedureName | None = None,
    *,
    radii: Sequence[float] | None = None,
    tolerance: float | None = None,
    n0: int | None = None,
    n: int | None = None,
    stopping: Stopping | None = None,
    futility: float | None = None,
) -> AnyProcedure:
    """The procedure of a name. Default: two-stage with a tolerance, sequential with radii, otherwise fixed.

    Settings that are None take the procedure's default.
    """
    if procedure is None:
        procedure = "two-stage" if tolerance is not None else "fixed" if radii is None else "sequential"
    if procedure not in PROCEDURES:
        raise ValueError(f"procedure must be one of {', '.join(PROCEDURES)}, got {procedure!r}")
    for name, value in (("stopping", stopping), ("futility", futility)):
        if value is not None and procedure != "sequential":
            raise ValueError(f"{name} must come with the procedure sequential, got the procedure {procedure}")
    if tolerance is not None and procedure != "two-stage":
        raise ValueError(f"tolerance must come with the procedure two-stage, got the procedure {procedure}")
    draws = {key: value for key, value in (("n0", n0), ("n", n)) if value is not None}
    if procedure == "fixed":
        return Fixed(**draws)
    if procedure == "two-stage":
        return TwoStage(**draws) if tolerance is None else TwoStage(**draws, tolerance=tolerance)
    if radii is None:
        raise ValueError("radii must be given for the procedure sequential, got none")
    return Sequential(sizes("radii", radii), **draws, stopping=stopping or Sequential.stopping, futility=futility)


def procedure_settings(procedure: AnyProcedure) -> dict[str, Any]:
    """What a record says of a procedure; how a sequential test stops was not said before there were two ways."""
    found = asdict(procedure)
    if isinstance(procedure, Sequential):
        test = procedure.test(1.0, 0.5)
        found |= {"early": test.early} if isinstance(test, RadiusTest) else {"first": test.first, "last": test.last}
        found |= {"share": test.share} if isinstance(test, PairwiseTest) else {}
        if procedure.stopping == "e-value":
            del found["stopping"]
    return found


def corrected_plan(
    procedure: AnyProcedure, *, sigma: float, noise: NoiseKind, dimension: int, alpha: float
) -> FixedPlan | SequentialPlan:
    """The procedure at alpha after the sampler's correction for the n samples that carry the proof."""
    check_level(alpha)
    level = corrected_alpha(alpha, sigma=sigma, dimension=dimension, draws=procedure.n, noise=noise)
    return procedure.plan(sigma, level)
