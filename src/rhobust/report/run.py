"""What a run has to show: frozen pieces that hold counts, and the numbers the counts give."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from rhobust.records import Row
from rhobust.rounding import Share, share


@dataclass(frozen=True)
class Attack:
    """What an attack left standing at each radius: an upper limit on the true robust accuracy."""

    file: str
    settings: Row
    examples: frozenset[int]
    broken: Mapping[float, frozenset[int]]
    """For each radius the examples that are wrong there."""
    warnings: tuple[str, ...]

    @property
    def scored(self) -> str:
        """Which classifier had to answer: "base" or "smoothed"."""
        return str(self.settings.get("scored", "base"))

    @property
    def name(self) -> str:
        """The attack in a few words, such as "EOT, 20 steps"."""
        attack = self.settings.get("attack")
        attack = attack if isinstance(attack, dict) else {}
        steps = f", {attack['steps']} steps" if "steps" in attack else ""
        reading = f", {attack['gradient']} gradient of the {attack['sees']}" if "sees" in attack else ""
        source = self.settings.get("source")
        crafted = f", crafted on {source['name']}" if isinstance(source, dict) else ""
        return f"{str(attack.get('kind', 'attack')).upper()}{steps}{reading}{crafted}"

    @cached_property
    def accuracy(self) -> dict[float, Share]:
        """The share of examples not broken, for each radius in ascending order."""
        n = len(self.examples)
        return {radius: share(n - len(broken), n) for radius, broken in sorted(self.broken.items())}


@dataclass(frozen=True)
class Certificate:
    """Per-input certificates of the smoothed classifier: a lower limit on its robust accuracy."""

    file: str
    settings: Row
    examples: frozenset[int]
    correct: Mapping[int, float]
    """The certified radius of every example whose certified class is its label."""
    abstained: int
    listed: tuple[float, ...]
    """The radii the evaluation itself sums up at."""
    warnings: tuple[str, ...]

    @property
    def alpha(self) -> float | None:
        """The probability with which a single certificate may be wrong."""
        return _alpha(self.settings)

    @property
    def draws(self) -> int:
        """How many noise draws a certificate rests on; 0 where that is not a fixed number."""
        n = self.settings.get("n")
        return n if isinstance(n, int) else 0

    @cached_property
    def _ascending(self) -> np.ndarray:
        return np.sort(np.fromiter(self.correct.values(), dtype=np.float64))

    def certified(self, radius: float) -> int:
        """How many examples are right and certified at a radius; at 0 any positive radius will do."""
        side = "right" if radius == 0 else "left"
        return len(self._ascending) - int(np.searchsorted(self._ascending, radius, side=side))

    def accuracy(self, radius: float) -> Share:
        """The certified accuracy at a radius."""
        return share(self.certified(radius), len(self.examples))

    @property
    def largest(self) -> float:
        """The largest certified radius."""
        return float(self._ascending[-1]) if len(self._ascending) else 0.0

    @property
    def average(self) -> float:
        """The average certified radius, where a wrong or missing answer counts as 0."""
        return math.fsum(self.correct.values()) / len(self.examples)


@dataclass(frozen=True)
class Shift:
    """Accuracy proved for every distribution within a transport distance eps of the data's."""

    file: str
    settings: Row
    points: int
    under_noise: float
    """Accuracy of one noisy vote on the data as it is: an estimate."""
    curve: tuple[tuple[float, float], ...]
    """(eps, certified accuracy), eps ascending."""
    statement: str
    warnings: tuple[str, ...]

    @property
    def alpha(self) -> float | None:
        """The probability with which the whole curve may be wrong."""
        return _alpha(self.settings)

    @property
    def cost(self) -> str:
        """The distance that eps is measured in: "w1", "w2" or "winf"."""
        return str(self.settings.get("cost", "w2"))


@dataclass(frozen=True)
class Run:
    """One trained model and everything measured about it."""

    folder: str
    label: str
    config: Row
    environment: Row
    epochs: tuple[Row, ...] = ()
    attacks: tuple[Attack, ...] = ()
    certificates: tuple[Certificate, ...] = ()
    shifts: tuple[Shift, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    """How long each finished evaluation took, by file name."""
    notes: tuple[str, ...] = ()
    """What is missing, unfinished or damaged, one line each."""

    @property
    def method(self) -> Row:
        """The training method's settings."""
        method = self.config.get("method")
        return method if isinstance(method, dict) else {}

    @property
    def sigmas(self) -> tuple[float, ...]:
        """The noise levels this network is smoothed with: the one it was trained for, and those of its records."""
        pieces = (*self.certificates, *self.shifts, *(a for a in self.attacks if a.scored == "smoothed"))
        found = [self.method.get("sigma"), *(piece.settings.get("sigma") for piece in pieces)]
        return tuple(sorted({sigma for sigma in found if isinstance(sigma, int | float) and sigma > 0}))


def _alpha(settings: Row) -> float | None:
    alpha = settings.get("alpha")
    return alpha if isinstance(alpha, float) and 0 < alpha < 1 else None
