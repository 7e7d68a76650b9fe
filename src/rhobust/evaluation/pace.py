"""How fast an evaluation goes: noise samples per second, and the time that is left."""

import time
from collections import deque
from collections.abc import Sequence

from rhobust.evaluation.base import Evaluation
from rhobust.formatting import format_duration
from rhobust.records import Row

WINDOW = 60.0
"""Seconds over which the speed is measured."""


class Pace:
    """Counts what was computed, and says how fast; arguments: the evaluation, all its examples, those done before."""

    def __init__(self, evaluation: Evaluation, total: int, done: int) -> None:
        self.evaluation, self.total, self.done, self.note = evaluation, total, done, ""
        self.recent = deque([(time.monotonic(), 0, done)])
        self.samples = 0

    def add(self, rows: Sequence[Row], examples: int, workers: int | None) -> None:
        """Count rows that were written.

        Args:
            rows: The rows.
            examples: How many examples they are of.
            workers: Workers that are ready; None where this process computes.
        """
        now = time.monotonic()
        self.done += examples
        self.samples += sum(map(self.evaluation.samples, rows))
        self.recent.append((now, self.samples, self.done))
        while len(self.recent) > 2 and now - self.recent[1][0] > WINDOW:
            self.recent.popleft()
        if workers is None:
            return
        before, samples, done = self.recent[0]
        seconds = max(now - before, 1e-6)
        speed = (self.samples - samples) / seconds
        left = (self.total - self.done) * seconds / max(self.done - done, 1)
        crew = "1 worker" if workers == 1 else f"{workers:,} workers"
        self.note = f"{crew}, {speed:,.0f} samples/s, {format_duration(left)} left"
