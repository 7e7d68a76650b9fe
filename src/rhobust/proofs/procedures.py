"""Certification procedures for one input: fixed sample size, sequential test over radii, two stages.

Guarantee of each: the certified radius is false with probability at most alpha.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol, Self, get_args

import numpy as np
from numpy.typing import NDArray

from rhobust.bounds import certified_radius, clopper_pearson
from rhobust.bounds.confidence import NoiseKind, corrected_alpha
from rhobust.bounds.pairwise import PairwiseTest
from rhobust.bounds.sequential import BoundaryTest, RadiusTest, Whole, draws_for_tolerance, looks
from rhobust.bounds.validation import Array
from rhobust.settings import check_declared, check_level, check_positive, sizes

ProcedureName = Literal["fixed", "sequential", "two-stage"]
Stopping = Literal["pairwise", "boundary", "e-value"]
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
class Sequential:
    """Sequential (anytime-valid) test over radii: at most n samples test them, and select the class at the first look.

    An input is done as soon as every radius is proved or given up; most are after a small part of n. The largest
    claimed radius is false with probability at most alpha, for any number of radii (`PairwiseTest`, `BoundaryTest`,
    `RadiusTest`).
    """

    name: ClassVar[ProcedureName] = "sequential"
    radii: tuple[float, ...]
    """Increasing radii."""
    n0: int = 0
    """Noise samples that select the class and are not counted; 0: the first that are counted select it."""
    n: int = 100_000
    """Noise samples that count its votes, at most."""
    stopping: Stopping = "pairwise"
    """pairwise: exact boundaries, and comparisons with each other class, which certify more; boundary: the boundaries
    alone; e-value: those of an e-value, valid at any sample, which decides almost always as n samples would."""
    futility: float | None = None
    """A radius is given up when the predicted chance of proving it falls below this: for e-values at once, for
    boundaries times sqrt(samples so far / n). Default: 0.4 for boundaries, 0.005 for e-values."""

    def __post_init__(self) -> None:
        if self.futility is None:
            test = TESTS.get(self.stopping)
            object.__setattr__(self, "futility", 0.5 if test is None else test.futility)
        check_procedure(self, least=0)
        self.test(1.0, 0.5)

    def test(self, sigma: float, level: float) -> BoundaryTest | RadiusTest:
        """The test at a noise level, with probability `level` of a false claim."""
        assert self.futility is not None
        test, step = TESTS[self.stopping], {} if self.stopping == "e-value" else {"step": CHUNK}
        return test(self.radii, sigma, level, self.n, **step, futility=self.futility, reused=self.n0 == 0)

    def plan(self, sigma: float, level: float) -> "SequentialPlan":
        return SequentialPlan(self.test(sigma, level))


TESTS: dict[str, type[BoundaryTest] | type[RadiusTest]] = {
    "pairwise": PairwiseTest,
    "boundary": BoundaryTest,
    "e-value": RadiusTest,
}
"""The sequential tests by how they stop."""


@dataclass(frozen=True)
class SequentialPlan:
    """The sequential test and its looks."""

    test: BoundaryTest | RadiusTest

    @property
    def compares(self) -> bool:
        return isinstance(self.test, PairwiseTest)

    @cached_property
    def looks(self) -> Whole:
        return self.test.looks if isinstance(self.test, BoundaryTest) else looks(self.test.n, CHUNK)

    def first_look(self, top: Whole) -> Whole:
        return np.full(len(top), self.looks[0])

    def look(self, votes: ClassVotes, reached: Whole) -> tuple[Whole, Whole]:
        reached, go_on = self._decide(votes, reached)
        later = self.looks[np.minimum(np.searchsorted(self.looks, votes.draws, side="right"), len(self.looks) - 1)]
        return reached, np.where(go_on, later, votes.draws)

    def _decide(self, votes: ClassVotes, reached: Whole) -> tuple[Whole, NDArray[np.bool_]]:
        if isinstance(self.test, PairwiseTest):
            return self.test.decide_pairs(votes.count, votes.draws, reached, votes.runner_up, votes.top)
        return self.test.decide(votes.count, votes.draws, reached)

    def claims(self, votes: ClassVotes, evidence: Evidence) -> Claims:
        reached = np.array([len(steps) for steps in evidence], dtype=np.int64)
        alone, radii, thresholds = reached.copy(), np.array([0.0, *self.test.radii]), [0.0, *self.test.thresholds]
        if isinstance(self.test, PairwiseTest):
            for row, steps in enumerate(evidence):
                draws, count = (np.array([step[side] for step in steps], dtype=np.int64) for side in (0, 1))
                alone[row] = np.argmin([*self.test.holds(count, draws).diagonal(), False])
        return Claims(reached > 0, radii[reached], np.array(thresholds)[alone])

    def sample_limit(self, wanted: int) -> int:
        return self.test.n

    def likely_end(self, share: Array, votes: ClassVotes, reached: Whole, until: Whole) -> Whole:
        ends = np.zeros((len(share), len(self.looks)), dtype=bool)
        if isinstance(self.test, BoundaryTest):  # a guess by e-values would take longer than the samples that it saves
            row, look = np.nonzero((self.looks > votes.draws[:, None]) & (self.looks <= until[:, None]))
            more = np.rint(share[row] * (self.looks[look] - votes.draws[row])).astype(np.int64)
            ends[row, look] = ~self.test.decide(votes.count[row] + more, self.looks[look], reached[row])[1]
        ends[:, -1] = True
        return self.looks[ends.argmax(1)]

    def audit(self, votes: ClassVotes, evidence: Evidence) -> list[str | None]:
        reasons = [self._disorder(votes.of([row]), steps) for row, steps in enumerate(evidence)]
        for step, radius in enumerate(self.test.radii):
            rows = [row for row, steps in enumerate(evidence) if len(steps) > step and reasons[row] is None]
            given = (np.array([evidence[row][step][side] for row in rows], dtype=np.int64) for side in self._sides)
            draws, count, *runner_up = given
            at = ClassVotes(votes.top[rows], count, runner_up[0] if runner_up else draws - count, draws)
            reached, _ = self._decide(at, np.full(len(rows), step))
            for row, proved, one, of in zip(rows, (reached > step).tolist(), count, draws, strict=True):
                if not proved:
                    reasons[row] = f"{one} of {of} votes do not prove the radius {radius:g}"
        rows = [row for row, reason in enumerate(reasons) if reason is None]
        proved = np.array([len(evidence[row]) for row in rows], dtype=np.int64)
        reached, go_on = self._decide(votes.of(rows), proved)
        for row in np.flatnonzero(go_on | (reached != proved)):
            reasons[rows[row]] = f"{votes.count[rows[row]]} of {votes.draws[rows[row]]} votes do not end the test"
        return reasons

    @property
    def _sides(self) -> range:
        """Numbers in a step of the evidence: samples, votes, and those of the runner-up where they may prove it."""
        return range(3 if self.compares else 2)

    def _disorder(self, votes: ClassVotes, evidence: Sequence[tuple[int, ...]]) -> str | None:
        """Why the looks of one input cannot follow each other."""
        [top], [count], [runner_up], [draws] = (getattr(votes, one.name).tolist() for one in fields(votes))
        known = set(self.looks.tolist())
        if draws not in known:
            return f"it must stop at a look, got {draws} samples"
        if len(evidence) > len(self.test.radii):
            return f"it must have at most {len(self.test.radii)} steps, got {len(evidence)}"
        first = (int(self.looks[0]), top, 0) if self.test.reused else (0, 0, 0)
        before, last = first, (draws, count, runner_up if self.compares else 0)
        for step, numbers in enumerate(evidence):
            if len(numbers) != len(self._sides):
                return f"step {step} must have {len(self._sides)} numbers, got {len(numbers)}"
            at = (*numbers, before[2])[:3]
            if at[0] not in known or not self._follows(before, at, first) or not at[0] <= draws:
                return f"step {step} must follow the one before, got {numbers[1]} of {numbers[0]}"
            before = at
        if not self._follows(before, last, first):
            return f"the votes at the end must follow the last step, got {count} of {draws}"
        return None

    @staticmethod
    def _follows(before: tuple[int, ...], after: tuple[int, ...], first: tuple[int, ...]) -> bool:
        """Whether samples, votes and votes of the runner-up can come after others.

        Those of the runner-up among the samples that selected the class are not known.
        """
        draws, count, runner_up = (one - other for one, other in zip(after, before, strict=True))
        unknown = first[0] - first[1] if before == first else 0
        return draws >= 0 and 0 <= count <= draws and 0 <= runner_up <= draws - count + unknown


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
