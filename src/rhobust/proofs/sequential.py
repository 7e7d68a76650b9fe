"""The sequential test over radii as a certification procedure: its looks, its claims, and the audit of its counts."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from rhobust.bounds.boundary import BoundaryTest
from rhobust.bounds.pairwise import PairwiseTest
from rhobust.bounds.sequential import RadiusTest, Whole, looks
from rhobust.bounds.validation import Array
from rhobust.proofs.plan import CHUNK, Claims, ClassVotes, Evidence, ProcedureName, check_samples
from rhobust.settings import check_declared

Stopping = Literal["pairwise", "boundary", "e-value"]


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
        check_declared(self)
        check_samples(self.n0, self.n, least=0)
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
        unknown = min(first[1], first[0] - first[1]) if before == first else 0
        return draws >= 0 and 0 <= count <= draws and 0 <= runner_up <= draws - count + unknown
