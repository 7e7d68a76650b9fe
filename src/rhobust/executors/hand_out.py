"""Blocks to workers, one after the other: who is free gets the next one, and what a dead worker had goes to others."""

from collections import Counter, deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from rhobust.executors.base import Block, WorkerError
from rhobust.records import Row

ATTEMPTS = 4
"""Workers that may die of one block before it is given up."""


@dataclass(frozen=True)
class Event:
    """Something that happened to a worker."""

    what: Literal["ready", "done", "lost"]
    """It takes blocks from now on; it has computed one; it is dead, and so is what it was computing."""
    worker: Hashable
    number: int = -1
    """Which block is done."""
    rows: list[Row] | Exception = field(default_factory=list)
    """Its rows, or what its computation raised."""


class Workers(Protocol):
    """The workers of an executor, and how to reach them."""

    def send(self, worker: Hashable, number: int, block: Block) -> None:
        """Give a block to a worker; a worker that is dead says so by an event."""
        ...

    def events(self) -> Sequence[Event]:
        """What happened since the last call; waits until something did, at least for a while."""
        ...


def hand_out(workers: Workers, blocks: Sequence[Block]) -> Iterator[tuple[Block, list[Row]]]:
    """The blocks with their rows, in the order in which they are done.

    A worker has one block more than it computes as long as there are more blocks than workers, so that it never waits
    for the next one; towards the end it has one, so that none waits behind a slow one.
    """
    waiting = deque(enumerate(blocks))
    given: dict[Hashable, dict[int, Block]] = {}
    free: dict[Hashable, None] = {}
    """Workers that take another block."""
    deaths: Counter[int] = Counter()
    left = len(blocks)
    while left:
        results = []
        for event in workers.events():
            if event.what == "ready":
                given[event.worker] = {}
                free[event.worker] = None
            elif event.what == "lost":
                free.pop(event.worker, None)
                had = given.pop(event.worker, {})
                for number in list(had)[:1]:  # the others had not begun
                    deaths[number] += 1
                    if deaths[number] == ATTEMPTS:
                        raise WorkerError(
                            f"examples {shown(had[number])} must not end their worker, but {ATTEMPTS} workers died of"
                            " them: is memory short?"
                        )
                waiting.extendleft(reversed(had.items()))
            elif event.number in given.get(event.worker, {}):
                block = given[event.worker].pop(event.number)
                free[event.worker] = None
                if isinstance(event.rows, Exception):
                    raise event.rows
                results.append((block, event.rows))
        # Workers go on before the results are written.
        for worker in sorted(free, key=lambda one: len(given[one])) if waiting else ():
            while waiting and len(given[worker]) < (2 if len(waiting) > len(given) else 1):
                number, block = waiting.popleft()
                given[worker][number] = block
                workers.send(worker, number, block)
            if len(given[worker]) == 2 or (given[worker] and len(waiting) <= len(given)):
                del free[worker]
        left -= len(results)
        yield from results


def shown(block: Block) -> str:
    """A block in a message."""
    return f"{block[0]} to {block[-1]}" if len(block) > 1 else str(block[0])
