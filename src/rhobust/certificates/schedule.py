"""Which draws come next: inputs leave when they are decided and others join, so that the batches stay full."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from rhobust.certificates.procedures import Plan
from rhobust.certificates.sampling import CHUNK, Lot, next_lot


@dataclass
class Case:
    """One input on its way to a certificate."""

    position: int
    index: int
    wanted: int
    """Draws of this stage before the next look."""
    limit: int
    """Draws of this stage that may be wanted later."""
    purpose: str = "select"
    issued: int = 0
    """Draws that were handed out."""
    known: int = 0
    """Draws whose votes were counted in."""
    votes: np.ndarray | None = None
    """Their votes for each class."""
    chosen: int = -1
    top: int = 0
    """Votes for the chosen class in the selection."""
    reached: int = 0
    evidence: list[tuple[int, int]] = field(default_factory=list)
    """For each proved step the draws and the votes that proved it."""
    waiting: list[tuple[int, np.ndarray]] = field(default_factory=list)
    """Votes that lie beyond the next look."""
    done: bool = False

    @property
    def count(self) -> int:
        """Votes for the chosen class."""
        return 0 if self.votes is None else int(self.votes[self.chosen])

    def at_look(self) -> bool:
        """Count in what is there up to the next look, and say whether it has come."""
        while self.waiting and self.known < self.wanted:
            size, votes = self.waiting.pop(0)
            self.known += size
            self.votes = votes if self.votes is None else self.votes + votes
        return self.known == self.wanted


class Schedule:
    """The source of draws for certificates of many inputs.

    Votes are looked at only after the draws that the plan names, in their order, so the certificates do not depend on
    how the draws were batched. Room that no input needs is filled with draws that may be wanted later.

    Args:
        inputs: Position and name of each input.
        plan: What to draw and when to look.
        n0: Draws that select the class.
    """

    def __init__(self, inputs: Iterable[tuple[int, int]], plan: Plan, n0: int) -> None:
        self.plan, self.n0 = plan, n0
        self.queue: Iterator[tuple[int, int]] = iter(inputs)
        self.cases: dict[int, Case] = {}
        """Those under way, and those done that wait for an earlier one, by position in the order they came."""

    def lots(self, room: int) -> list[Lot]:
        found: list[Lot] = []

        def draw(case: Case, stop: int) -> None:
            nonlocal room
            lot = next_lot(case.position, case.index, case.purpose, start=case.issued, stop=stop, room=room)
            case.issued += len(lot)
            room -= len(lot)
            found.append(lot)

        active = [case for case in self.cases.values() if not case.done]
        for case in active:
            while room and case.issued < case.wanted:
                draw(case, case.limit)
        while room and (following := next(self.queue, None)) is not None:
            case = self.cases[following[0]] = Case(*following, wanted=self.n0, limit=self.n0)
            while room and case.issued < case.wanted:
                draw(case, case.limit)
        while found and room and (hopeful := [case for case in active if case.issued < case.limit]):
            for case in hopeful[: -(-room // CHUNK)]:
                draw(case, case.limit)
        return found

    def take(self, lots: Sequence[Lot], votes: np.ndarray) -> None:
        touched: dict[int, Case] = {}
        for lot, counted in zip(lots, votes, strict=True):
            case = self.cases.get(lot.position)
            if case is not None and not case.done:
                case.waiting.append((len(lot), counted))
                touched[lot.position] = case
        ready = [case for case in touched.values() if case.at_look()]
        while ready:
            self._select([case for case in ready if case.purpose == "select"])
            self._look([case for case in ready if case.purpose == "count" and case.known])
            ready = [case for case in ready if not case.done and case.at_look()]

    def finished(self) -> Iterator[Case]:
        """The inputs that are decided, in the order in which they came."""
        while self.cases:
            first = next(iter(self.cases.values()))
            if not first.done:
                return
            yield self.cases.pop(first.position)

    def _select(self, cases: list[Case]) -> None:
        if not cases:
            return
        for case in cases:
            assert case.votes is not None
            case.chosen = int(case.votes.argmax())
            case.top = case.count
        first = self.plan.first(np.array([case.top for case in cases]))
        for case, wanted in zip(cases, first.tolist(), strict=True):
            case.purpose, case.issued, case.known, case.votes = "count", 0, 0, None
            case.wanted, case.limit = wanted, self.plan.speculate(wanted)

    def _look(self, cases: list[Case]) -> None:
        if not cases:
            return
        count, draws, before = (
            np.array([getattr(case, name) for case in cases]) for name in ("count", "known", "reached")
        )
        reached, wanted = self.plan.look(count, draws, before)
        for case, steps, later in zip(cases, reached.tolist(), wanted.tolist(), strict=True):
            case.evidence += [(case.known, case.count)] * (steps - case.reached)
            case.reached, case.wanted, case.done = steps, later, later == case.known
