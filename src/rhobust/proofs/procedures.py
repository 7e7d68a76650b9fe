"""Certification procedures for one input: fixed sample size, sequential test over radii, two stages.

Guarantee of each: the certified radius is false with probability at most alpha.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from rhobust.bounds import certified_radius, clopper_pearson
from rhobust.bounds.confidence import NoiseKind, corrected_alpha
from rhobust.bounds.sequential import BoundaryTest, RadiusTest, Whole, draws_for_tolerance, looks
from rhobust.bounds.validation import Array
from rhobust.settings import check_declared, check_level, check_positive, sizes

ProcedureName = Literal["fixed", "sequential", "two-stage"]
Stopping = Literal["boundary", "e-value"]
CHUNK = 128
"""Noise samples of an example that share a stream; part of the noise's name, so it never changes."""


Evidence = Sequence[Sequence[tuple[int, int]]]
"""For each input, and each radius that is proved of it, the samples and the votes that proved it."""


@dataclass(frozen=True)
class Claims:
    """What is proved about many inputs, one entry per input."""

    proved: NDArray[np.bool_]
    """Whether a radius is proved; otherwise the procedure abstains."""
    radius: Array
    """Certified radius; 0.0 if nothing is proved."""
    p_lower: Array
    """Lower bound of the probability of the selected class, at the same level; 0.0 if there is none."""


class Plan(Protocol):
    """A procedure at one sigma and one level, for many inputs at once: arrays have one entry per input."""

    def first_look(self, top: Whole) -> Whole:
        """Noise samples before the first look.

        Args:
            top: Votes for the selected class among the n0 samples that selected it; 0 if those are counted too.
        """
        ...

    def look(self, count: Whole, draws: Whole, reached: Whole) -> tuple[Whole, Whole]:
        """Look at the votes so far.

        Args:
            count: Votes for the selected class.
            draws: Noise samples so far.
            reached: Number of radii proved at the last look.

        Returns:
            Number of radii proved now, and the samples before the next look: those so far if the test is over.
        """
        ...

    def claims(self, count: Whole, draws: Whole, reached: Whole) -> Claims:
        """The certified radii at the end."""
        ...

    def sample_limit(self, wanted: int) -> int:
        """The most samples that may be needed in the end, if `wanted` are needed now."""
        ...

    def likely_end(self, share: Array, count: Whole, draws: Whole, reached: Whole, until: Whole) -> Whole:
        """The samples at which the test would end if votes went on in a proportion; a guess that decides nothing.

        Args:
            share: The proportion of votes for the selected class among those to come.
            count: Votes for it.
            draws: Noise samples so far.
            reached: Number of radii proved at the last look.
            until: Samples up to which looks are tried; without an end among them it is n.
        """
        ...

    def audit(self, top: Whole, count: Whole, draws: Whole, evidence: Evidence) -> list[str | None]:
        """For each input why its counts cannot come from this plan, in a few words; None if they can.

        Args:
            top: Votes for the selected class among the samples that selected it.
            count: Votes for it at the end.
            draws: Noise samples at the end.
            evidence: For each proved radius, the samples and the votes that proved it.
        """
        ...


def check_procedure(procedure: "AnyProcedure", *, least: int = 1) -> None:
    """Raise unless n >= n0 >= least, and n >= 1."""
    check_declared(procedure)
    if procedure.n0 < least or procedure.n < max(procedure.n0, 1):
        raise ValueError(f"n must be >= n0 >= {least}, got n={procedure.n} and n0={procedure.n0}")


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
        check_procedure(self)

    def plan(self, sigma: float, level: float) -> "FixedPlan":
        return FixedPlan(sigma, level, self.n)


@dataclass(frozen=True)
class FixedPlan:
    """One look, after a number of samples that does not depend on their votes."""

    sigma: float
    level: float
    n: int

    def first_look(self, top: Whole) -> Whole:
        return np.full(len(top), self.n, dtype=np.int64)

    def look(self, count: Whole, draws: Whole, reached: Whole) -> tuple[Whole, Whole]:
        return reached, draws

    def claims(self, count: Whole, draws: Whole, reached: Whole) -> Claims:
        lower = np.atleast_1d(clopper_pearson(count, draws, self.level, "lower"))
        radius = np.atleast_1d(certified_radius(lower, self.sigma))
        return Claims(radius > 0, radius, lower)

    def sample_limit(self, wanted: int) -> int:
        return wanted

    def likely_end(self, share: Array, count: Whole, draws: Whole, reached: Whole, until: Whole) -> Whole:
        return np.full(len(draws), self.n, dtype=np.int64)

    def audit(self, top: Whole, count: Whole, draws: Whole, evidence: Evidence) -> list[str | None]:
        return [
            f"it must use {planned} samples, got {got}"
            if got != planned
            else "it must have no steps"
            if steps
            else None
            for planned, got, steps in zip(self.first_look(top).tolist(), draws.tolist(), evidence, strict=True)
        ]


@dataclass(frozen=True)
class Sequential:
    """Sequential (anytime-valid) test over radii: at most n samples test them, and select the class at the first look.

    An input is done as soon as every radius is proved or given up; most are after a small part of n. The largest
    claimed radius is false with probability at most alpha, for any number of radii (`BoundaryTest`, `RadiusTest`).
    """

    name: ClassVar[ProcedureName] = "sequential"
    radii: tuple[float, ...]
    """Increasing radii."""
    n0: int = 0
    """Noise samples that select the class and are not counted; 0: the first that are counted select it."""
    n: int = 100_000
    """Noise samples that count its votes, at most."""
    stopping: Stopping = "boundary"
    """boundary: exact boundaries, with fewest samples; e-value: those of an e-value, valid at any sample, which decides
    almost always as n samples would."""
    futility: float | None = None
    """A radius is given up when the predicted chance of proving it falls below this: for e-values at once, for
    boundaries times sqrt(samples so far / n). Default: 0.4 for boundaries, 0.005 for e-values."""

    def __post_init__(self) -> None:
        if self.futility is None:
            tests = {"boundary": BoundaryTest, "e-value": RadiusTest}
            object.__setattr__(self, "futility", tests[self.stopping].futility if self.stopping in tests else 0.5)
        check_procedure(self, least=0)
        self.test(1.0, 0.5)

    def test(self, sigma: float, level: float) -> BoundaryTest | RadiusTest:
        """The test at a noise level, with probability `level` of a false claim."""
        assert self.futility is not None
        reused = self.n0 == 0
        if self.stopping == "boundary":
            return BoundaryTest(self.radii, sigma, level, self.n, CHUNK, futility=self.futility, reused=reused)
        return RadiusTest(self.radii, sigma, level, self.n, futility=self.futility, reused=reused)

    def plan(self, sigma: float, level: float) -> "SequentialPlan":
        return SequentialPlan(self.test(sigma, level))


@dataclass(frozen=True)
class SequentialPlan:
    """The sequential test and its looks."""

    test: BoundaryTest | RadiusTest

    @cached_property
    def looks(self) -> Whole:
        return self.test.looks if isinstance(self.test, BoundaryTest) else looks(self.test.n, CHUNK)

    def first_look(self, top: Whole) -> Whole:
        return np.full(len(top), self.looks[0])

    def look(self, count: Whole, draws: Whole, reached: Whole) -> tuple[Whole, Whole]:
        reached, go_on = self.test.decide(count, draws, reached)
        later = self.looks[np.minimum(np.searchsorted(self.looks, draws, side="right"), len(self.looks) - 1)]
        return reached, np.where(go_on, later, draws)

    def claims(self, count: Whole, draws: Whole, reached: Whole) -> Claims:
        proved = reached > 0
        largest = np.maximum(reached - 1, 0)
        radius = np.where(proved, np.asarray(self.test.radii)[largest], 0.0)
        return Claims(proved, radius, np.where(proved, self.test.thresholds[largest], 0.0))

    def sample_limit(self, wanted: int) -> int:
        return self.test.n

    def likely_end(self, share: Array, count: Whole, draws: Whole, reached: Whole, until: Whole) -> Whole:
        ends = np.zeros((len(draws), len(self.looks)), dtype=bool)
        if isinstance(self.test, BoundaryTest):  # a guess by e-values would take longer than the samples that it saves
            row, look = np.nonzero((self.looks > draws[:, None]) & (self.looks <= until[:, None]))
            expected = count[row] + np.rint(share[row] * (self.looks[look] - draws[row])).astype(np.int64)
            ends[row, look] = ~self.test.decide(expected, self.looks[look], reached[row])[1]
        ends[:, -1] = True
        return self.looks[ends.argmax(1)]

    def audit(self, top: Whole, count: Whole, draws: Whole, evidence: Evidence) -> list[str | None]:
        known = set(self.looks.tolist())
        starts = [(int(self.looks[0]), one) if self.test.reused else (0, 0) for one in top.tolist()]
        courses = zip(starts, count.tolist(), draws.tolist(), evidence, strict=True)
        reasons = [self._disorder(known, *one) for one in courses]
        for step, radius in enumerate(self.test.radii):
            rows = [row for row, steps in enumerate(evidence) if len(steps) > step and reasons[row] is None]
            at, votes = (np.array([evidence[row][step][side] for row in rows], dtype=np.int64) for side in (0, 1))
            reached, _ = self.test.decide(votes, at, np.full(len(rows), step))
            for row in np.flatnonzero(reached <= step):
                reasons[rows[row]] = f"{votes[row]} of {at[row]} votes do not prove the radius {radius:g}"
        rows = [row for row, reason in enumerate(reasons) if reason is None]
        proved = np.array([len(evidence[row]) for row in rows], dtype=np.int64)
        reached, go_on = self.test.decide(count[rows], draws[rows], proved)
        for row in np.flatnonzero(go_on | (reached != proved)):
            reasons[rows[row]] = f"{count[rows[row]]} of {draws[rows[row]]} votes do not end the test"
        return reasons

    def _disorder(
        self, known: set[int], start: tuple[int, int], count: int, draws: int, evidence: Sequence[tuple[int, int]]
    ) -> str | None:
        """Why the looks of one input cannot follow each other; `start` are the samples and votes before them."""
        if draws not in known:
            return f"it must stop at a look, got {draws} samples"
        if len(evidence) > len(self.test.radii):
            return f"it must have at most {len(self.test.radii)} steps, got {len(evidence)}"
        before = start
        for step, (at, votes) in enumerate(evidence):
            if at not in known or not before[0] <= at <= draws or not 0 <= votes - before[1] <= at - before[0]:
                return f"step {step} must follow the one before, got {votes} of {at}"
            before = at, votes
        if not 0 <= count - before[1] <= draws - before[0]:
            return f"the votes at the end must follow the last step, got {count} of {draws}"
        return None


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
        check_procedure(self)
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
    return Sequential(sizes("radii", radii), **draws, stopping=stopping or "boundary", futility=futility)


def procedure_settings(procedure: AnyProcedure) -> dict[str, Any]:
    """What a record says of a procedure; how a sequential test stops was not said before there were two ways."""
    found = asdict(procedure)
    if isinstance(procedure, Sequential):
        test = procedure.test(1.0, 0.5)
        found |= {"early": test.early} if isinstance(test, RadiusTest) else {"first": test.first, "last": test.last}
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
