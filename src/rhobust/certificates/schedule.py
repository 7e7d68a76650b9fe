"""Which noise samples come next: the same number for every example, or as many as each certificate needs.

Inputs that are decided leave and others join, so that batches stay full.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from rhobust.certificates.blocks import JoinedVotes, PendingVotes, SampleBlock, next_block
from rhobust.certificates.independence import Repeats
from rhobust.certificates.sampling import VoteCounter
from rhobust.certificates.spec import Smoothing
from rhobust.cores import watched_cores
from rhobust.memory import kept_memory
from rhobust.proofs.plan import CHUNK, ClassVotes, Plan
from rhobust.settings import check_count

AHEAD = {"cpu": 0, "cuda": 2}
"""Forward passes that may be running before the votes of the first one are read."""
FARTHER = 3
"""The likely end of an input is searched among so many times its share of the free rows: others may leave it theirs."""


class SamplingSchedule(Protocol):
    """Decides which samples are taken next from the votes so far."""

    def next_blocks(self, room: int) -> list[SampleBlock]:
        """The next blocks, with at most `room` samples; none while it waits for votes, or when it is done."""
        ...

    def add_votes(self, blocks: Sequence[SampleBlock], votes: np.ndarray) -> None:
        """Take the votes of blocks, in the order in which `next_blocks` returned them."""
        ...


def run_schedule(counter: VoteCounter, schedule: SamplingSchedule) -> Iterator[None]:
    """Count votes until the schedule is done; yields after each batch of votes that the schedule has taken."""
    ahead = AHEAD[counter.device.type]
    running: deque[tuple[list[SampleBlock], PendingVotes | JoinedVotes]] = deque()
    with kept_memory, watched_cores:
        while True:
            blocks = schedule.next_blocks(counter.room)
            if blocks:
                running.append((blocks, counter.count(blocks)))
            elif not running:
                return
            if not blocks or len(running) > ahead:
                counted, votes = running.popleft()
                schedule.add_votes(counted, votes.result())
                yield


class UniformSchedule:
    """The same number of samples for every example, one example after the other.

    Args:
        indices: The examples' names in their data set.
        draws: Noise samples per example.
        purpose: What the samples are for.
        num_classes: Number of classes.
    """

    def __init__(self, indices: Sequence[int], draws: int, purpose: str, num_classes: int) -> None:
        self.indices, self.draws, self.purpose = indices, draws, purpose
        self.votes = np.zeros((len(indices), num_classes), dtype=np.int64)
        self.position, self.issued = 0, 0

    def next_blocks(self, room: int) -> list[SampleBlock]:
        found = []
        while room and self.position < len(self.indices):
            name = int(self.indices[self.position])
            block = next_block(self.position, name, self.purpose, start=self.issued, stop=self.draws, room=room)
            found.append(block)
            room, self.issued = room - len(block), self.issued + len(block)
            if self.issued == self.draws:
                self.position, self.issued = self.position + 1, 0
        return found

    def add_votes(self, blocks: Sequence[SampleBlock], votes: np.ndarray) -> None:
        np.add.at(self.votes, [block.position for block in blocks], votes)


def count_votes(
    model: nn.Module,
    images: Tensor,
    smoothing: Smoothing,
    *,
    indices: Sequence[int],
    draws: int,
    purpose: str,
    repeats: Repeats | None = None,
) -> Tensor:
    """Votes of the base network for each class under noise, int64 `(n, num_classes)`, on the images' device.

    Args:
        model: The base network, from inputs in [0, 1] to logits.
        images: uint8 or float images, `(n, channels, height, width)`, on the network's device.
        smoothing: The noise and the arithmetic.
        indices: The examples' names in their data set, one per row.
        draws: Noise samples per example.
        purpose: What the samples are for; samples of different purposes are independent.
        repeats: Inputs to evaluate again, so that a network that is no function of one input is found; default: none.

    Raises:
        ValueError: The network's logits are not numbers, or of the wrong shape.
        BatchDependenceError: Inputs that were evaluated again have other logits.
    """
    check_count("draws", draws)
    check_names(indices, images)
    schedule = UniformSchedule(indices, draws, purpose, smoothing.num_classes)
    for _ in run_schedule(VoteCounter(model, images, smoothing, repeats), schedule):
        pass
    return torch.from_numpy(schedule.votes).to(images.device)


def check_names(indices: Sequence[int], images: Tensor) -> None:
    """Refuse indices that are not one per image: they name the noise."""
    if len(indices) != len(images):
        raise ValueError(f"indices must name every image ({len(images)}), got {len(indices)}")


@dataclass
class InputState:
    """One input during certification."""

    position: int
    index: int
    wanted: int
    """Samples of this stage before the next look."""
    limit: int
    """Samples of this stage that may be wanted later."""
    purpose: str = "select"
    issued: int = 0
    """Samples that were handed out."""
    known: int = 0
    """Samples whose votes were added."""
    votes: np.ndarray | None = None
    """Their votes for each class."""
    chosen: int = -1
    top: int = 0
    """Votes for the chosen class in the selection."""
    reached: int = 0
    evidence: list[tuple[int, ...]] = field(default_factory=list)
    """For each proved radius, the samples and the votes that proved it."""
    waiting: list[tuple[int, np.ndarray]] = field(default_factory=list)
    """Votes of samples beyond the next look."""
    done: bool = False

    @property
    def count(self) -> int:
        """Votes for the chosen class."""
        return 0 if self.votes is None else int(self.votes[self.chosen])

    @property
    def runner_up(self) -> tuple[int, int]:
        """The class with the most votes besides the chosen one, and its votes; -1 and 0 before any vote."""
        if self.votes is None:
            return -1, 0
        others = self.votes.copy()
        others[self.chosen] = -1
        return int(others.argmax()), int(others.max())

    def choose(self) -> None:
        """Choose the class with the most votes so far."""
        assert self.votes is not None
        self.chosen = int(self.votes.argmax())
        self.top = self.count

    def at_look(self) -> bool:
        """Add the waiting votes up to the next look, and say whether it is reached."""
        while self.waiting and self.known < self.wanted:
            size, votes = self.waiting.pop(0)
            self.known += size
            self.votes = votes if self.votes is None else self.votes + votes
        return self.known == self.wanted


def vote_counts(states: Sequence[InputState]) -> ClassVotes:
    """The votes of inputs of which some are counted."""
    rows = [(state.top, state.count, state.runner_up[1], state.known) for state in states]
    return ClassVotes(*np.array(rows, dtype=np.int64).reshape(-1, 4).T)


class AdaptiveSchedule:
    """As many samples for each input as its certificate needs.

    Votes are looked at only after the numbers of samples that the plan names, in their order, so the certificates do
    not depend on how samples were batched. Room that no input needs is filled with samples that may be wanted later: of
    inputs that will need them if their votes go on as before, and only then of others.

    Args:
        inputs: Position and name of each input.
        plan: How many samples to take, and when to look.
        n0: Samples that select the class and are not counted; 0: the plan's first look selects it.
    """

    def __init__(self, inputs: Iterable[tuple[int, int]], plan: Plan, n0: int) -> None:
        self.plan, self.n0 = plan, n0
        self.queue: Iterator[tuple[int, int]] = iter(inputs)
        self.active: dict[int, InputState] = {}
        """Inputs in progress, and finished ones that wait for an earlier one, by position in the order they came."""

    def next_blocks(self, room: int) -> list[SampleBlock]:
        found: list[SampleBlock] = []

        def take(state: InputState, stop: int) -> None:
            nonlocal room
            block = next_block(state.position, state.index, state.purpose, start=state.issued, stop=stop, room=room)
            state.issued += len(block)
            room -= len(block)
            found.append(block)

        unfinished = [state for state in self.active.values() if not state.done]
        for state in unfinished:
            while room and state.issued < state.wanted:
                take(state, state.limit)
        while room and (following := next(self.queue, None)) is not None:
            state = self.active[following[0]] = self._start(*following)
            while room and state.issued < state.wanted:
                take(state, state.limit)
        likely = self._likely_ends(unfinished, room) if found and room else {}
        while found and room and (speculative := [state for state in unfinished if state.issued < state.limit]):
            needed = [state for state in speculative if state.issued < likely.get(state.position, 0)]
            for state in (needed or speculative)[: -(-room // CHUNK)]:
                take(state, state.limit)
        return found

    def _start(self, position: int, index: int) -> InputState:
        if self.n0:
            return InputState(position, index, wanted=self.n0, limit=self.n0)
        first = int(self.plan.first_look(np.zeros(1, dtype=np.int64))[0])
        return InputState(position, index, first, self.plan.sample_limit(first), purpose="count")

    def _likely_ends(self, states: list[InputState], room: int) -> dict[int, int]:
        """The samples that each input will need if its votes go on as before, by position; the limit if many more.

        An input whose class is not selected yet has none.
        """
        going = [state for state in states if state.issued < state.limit and state.chosen >= 0]
        if not going:
            return {}
        votes = vote_counts(going)
        reached, issued = (np.array([getattr(state, name) for state in going]) for name in ("reached", "issued"))
        until = issued + FARTHER * -(-room // len(going))
        share = (votes.top + votes.count) / (self.n0 + votes.draws) if self.n0 else votes.count / votes.draws
        ends = self.plan.likely_end(share, votes, reached, until)
        return {state.position: end for state, end in zip(going, ends.tolist(), strict=True)}

    def add_votes(self, blocks: Sequence[SampleBlock], votes: np.ndarray) -> None:
        touched: dict[int, InputState] = {}
        for block, counted in zip(blocks, votes, strict=True):
            state = self.active.get(block.position)
            if state is not None and not state.done:
                state.waiting.append((len(block), counted))
                touched[block.position] = state
        ready = [state for state in touched.values() if state.at_look()]
        while ready:
            self._select([state for state in ready if state.purpose == "select"])
            self._look([state for state in ready if state.purpose == "count" and state.known])
            ready = [state for state in ready if not state.done and state.at_look()]

    def finished(self) -> Iterator[InputState]:
        """The inputs that are decided, in the order in which they came."""
        while self.active:
            first = next(iter(self.active.values()))
            if not first.done:
                return
            yield self.active.pop(first.position)

    def _select(self, states: list[InputState]) -> None:
        if not states:
            return
        for state in states:
            state.choose()
        first = self.plan.first_look(np.array([state.top for state in states]))
        for state, wanted in zip(states, first.tolist(), strict=True):
            state.purpose, state.issued, state.known, state.votes = "count", 0, 0, None
            state.wanted, state.limit = wanted, self.plan.sample_limit(wanted)

    def _look(self, states: list[InputState]) -> None:
        if not states:
            return
        for state in states:
            if state.chosen < 0:
                state.choose()
        votes = vote_counts(states)
        reached, wanted = self.plan.look(votes, np.array([state.reached for state in states]))
        for state, runner_up, steps, later in zip(
            states, votes.runner_up.tolist(), reached.tolist(), wanted.tolist(), strict=True
        ):
            step = (state.known, state.count, runner_up) if self.plan.compares else (state.known, state.count)
            state.evidence += [step] * (steps - state.reached)
            state.reached, state.wanted, state.done = steps, later, later == state.known
