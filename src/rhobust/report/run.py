"""What a run has to show: frozen pieces that hold counts, and the numbers the counts give."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from rhobust.bounds import failure_quantile
from rhobust.formatting import format_setting
from rhobust.records import Row
from rhobust.stats import Share, share

COSTS = {"w1": "W1", "w2": "W2", "winf": "W∞"}
"""The transport distances, as they are written."""

Curve = tuple[tuple[float, float], ...]

ATTACKS = {"eot": "EOT", "pgd": "PGD", "autoattack": "AutoAttack", "paper": "Paper’s attack"}
"""Attacks as they are written; others by their names in capitals."""


@dataclass(frozen=True)
class CloseVotes:
    """Votes too close to tell the label from its rival, and the accuracy if all went against the label, or for it."""

    count: int
    least: float
    most: float


@dataclass(frozen=True)
class Attack:
    """What an attack left standing at each radius: an upper limit on the true robust accuracy."""

    file: str
    settings: Row
    examples: frozenset[int]
    broken: Mapping[float, frozenset[int]]
    """For each radius the examples that are wrong there."""
    clean_votes: Mapping[int, int]
    """For each example how many votes its label got before the attack, where that was counted."""
    close: Mapping[float, CloseVotes]
    """For each radius the votes that were too close, where there were any."""
    doubtless: Mapping[int, float]
    """For each example that is broken beyond doubt how far the nearest point is that breaks it so."""
    warnings: tuple[str, ...]

    @property
    def scored(self) -> str:
        """Which classifier had to answer: "base" or "smoothed"."""
        return str(self.settings.get("scored", "base"))

    @property
    def norm(self) -> str:
        """The norm that the radius is measured in: "l2" or "linf"."""
        return str(self.settings.get("norm", "l2"))

    @property
    def kind(self) -> str:
        """The attack's name in its settings, such as "eot"."""
        return str(_object(self.settings, "attack").get("kind", "attack"))

    @property
    def transferred(self) -> bool:
        """Whether another network was attacked in this one's place."""
        return self.settings.get("source") is not None

    @property
    def source(self) -> Row:
        """What the record says of that other network."""
        return _object(self.settings, "source")

    @property
    def crafted_on(self) -> str:
        """The hash of the network that was attacked: the other one, or the run's own."""
        return str((self.source if self.transferred else self.settings).get("model_hash"))

    @property
    def majority(self) -> bool:
        """Whether a vote of several draws was judged: only that says something of the smoothed classifier."""
        return self.scored == "smoothed" and self.settings.get("votes") != 1

    @property
    def votings(self) -> int:
        """How often an example was judged at most: at each radius once, and once again after each restart."""
        restarts = _object(self.settings, "attack").get("restarts")
        return len(self.broken) * (1 + (restarts if isinstance(restarts, int) and restarts > 0 else 0))

    @property
    def name(self) -> str:
        """The attack in a few words, such as "EOT, 20 steps"."""
        attack = _object(self.settings, "attack")
        parts = [ATTACKS.get(self.kind, self.kind.upper())]
        shown = ("steps", "restarts") if attack.get("version") == "standard" else ("steps", "draws", "restarts")
        parts += [f"{n} {key if n != 1 else key.removesuffix('s')}" for key in shown if (n := attack.get(key))]
        if "sees" in attack:
            parts.append(f"{attack.get('gradient')} gradient of the {attack['sees']}")
        if self.transferred:
            parts.append(f"crafted on {self.source.get('name', 'another network')}")
        return ", ".join(parts)

    @property
    def judge(self) -> str:
        """Who answered, in a few words."""
        if self.scored == "base":
            return "base network"
        return "smoothed classifier" if self.majority else "one noisy answer"

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
        """How many noise draws a certificate rests on at most; 0 where that is not known."""
        n = self.settings.get("n")
        return n if isinstance(n, int) else 0

    @property
    def on_grid(self) -> bool:
        """Whether radii of a grid were decided, and none between or behind them."""
        return self.settings.get("way") == "grid"

    @property
    def sigma(self) -> float | None:
        """The noise of the smoothed classifier."""
        return self.settings.get("sigma")

    @cached_property
    def _ascending(self) -> np.ndarray:
        return np.sort(np.fromiter(self.correct.values(), dtype=np.float64))

    def certified(self, radius: float) -> int:
        """How many examples are right and certified at a radius; at 0, right and certified at all."""
        return len(self._ascending) - int(np.searchsorted(self._ascending, radius, side="left"))

    def covers(self, example: int, radius: float) -> bool:
        """Whether an example is right and certified at a radius."""
        reach = self.correct.get(example)
        return reach is not None and reach >= radius

    def accuracy(self, radius: float) -> Share:
        """The certified accuracy at a radius."""
        return share(self.certified(radius), len(self.examples))

    @cached_property
    def false_at_most(self) -> int | None:
        """With confidence 1 - alpha, no more certificates than these are false; None where alpha is not known."""
        return None if self.alpha is None else failure_quantile(len(self.examples), self.alpha, self.alpha)

    def at_least(self, radius: float) -> float | None:
        """A lower bound, with confidence 1 - alpha, of the share of these examples that truly is right there."""
        if self.false_at_most is None:
            return None
        return max(0, self.certified(radius) - self.false_at_most) / len(self.examples)

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
    curve: Curve
    """(eps, certified accuracy), eps ascending."""
    statement: str
    warnings: tuple[str, ...]
    name: str = ""
    """Whose bound it is, where it is not ours."""
    beside: bool = False
    """Whether it was computed from the draws of another certificate, to be compared with it."""

    @property
    def alpha(self) -> float | None:
        """The probability with which the whole curve may be wrong."""
        return _alpha(self.settings)

    @property
    def cost(self) -> str:
        """The distance that eps is measured in: "w1", "w2" or "winf"."""
        return str(self.settings.get("cost", "w2"))

    @property
    def loss(self) -> bool:
        """Whether an upper bound of a loss is proved, and not a lower bound of an accuracy."""
        return self.settings.get("loss", "0-1") != "0-1"

    @property
    def classifier(self) -> str:
        """Who answers, in a few words."""
        name = self.settings.get("classifier", "randomised")
        if name == "k-vote":
            return f"majority of {self.settings.get('votes')} noisy votes"
        return "class most probable under noise" if name == "majority" else "one noisy vote"

    @property
    def sampled(self) -> bool:
        """Whether the claim is about the test points themselves and not about the population."""
        return self.settings.get("way") == "sample"

    @property
    def title(self) -> str:
        """What sets this curve apart from others of the same run, such as "W2, one noisy vote"."""
        parts = [COSTS.get(self.cost, self.cost), self.classifier]
        if self.settings.get("way") in ("intervals", "sample"):
            parts.append("these points only" if self.sampled else "from intervals")
        return ", ".join([*parts, f"bound of {self.name}"] if self.name else parts)


@dataclass(frozen=True)
class Losses:
    """The worst mean loss under shift: proved from above, and where it was attacked from below too."""

    file: str
    settings: Row
    points: int
    under_noise: float
    """Mean loss of one noisy answer on the data as it is: an estimate."""
    certified: Curve
    """(eps, upper bound), eps ascending."""
    lower: Curve
    """(eps, lower bound): a loss that a shift was found to reach."""
    estimate: Curve
    """(eps, the paper's estimate), which bounds nothing."""
    statement: str
    warnings: tuple[str, ...]

    @property
    def alpha(self) -> float | None:
        """The probability with which the certified curve may be wrong, and the lower one."""
        return _alpha(self.settings)

    @property
    def loss(self) -> str:
        """Which loss, in a few words."""
        if self.settings.get("loss") == "0-1":
            return "error"
        return f"cross-entropy clipped at {format_setting(float(self.settings.get('bound', 0.0)))}"


@dataclass(frozen=True)
class Measured:
    """Accuracy proved after a change of the images whose distances were measured."""

    file: str
    settings: Row
    pairs: int
    points: int
    eps: float
    """Root mean square distance of the pairs."""
    certified: float
    """Certified accuracy of one noisy vote after the change."""
    after: float | None
    """Accuracy of one noisy vote that was measured after the change: an estimate; None without labels."""
    statement: str
    warnings: tuple[str, ...]

    @property
    def alpha(self) -> float | None:
        """The probability with which the certified accuracy may be wrong."""
        return _alpha(self.settings)


@dataclass(frozen=True)
class Transfer:
    """What several networks make of inputs that were attacked on one: how far its attacks carry."""

    file: str
    settings: Row
    accuracy: Mapping[str, Mapping[float, Share]]
    """For each judged network, by the hash of its weights, the share that stands at each radius."""
    warnings: tuple[str, ...]

    @property
    def names(self) -> dict[str, str]:
        """What the record calls the judged networks, by the hash of their weights."""
        targets = self.settings.get("targets")
        listed = [target for target in targets if isinstance(target, dict)] if isinstance(targets, list) else []
        return {str(target.get("model_hash")): str(target.get("name")) for target in listed}


Piece = Attack | Certificate | Shift | Losses | Measured | Transfer


@dataclass(frozen=True)
class Run:
    """One trained model and everything measured about it."""

    folder: str
    label: str
    config: Row
    environment: Row
    epochs: tuple[Row, ...] = ()
    pieces: tuple[Piece, ...] = ()
    """All evaluations, in the order of their files."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """How long each finished evaluation took, by file name."""
    contradictions: tuple[str, ...] = ()
    """What the evaluations themselves found that cannot be."""
    notes: tuple[str, ...] = ()
    """What is missing, unfinished or damaged, one line each."""
    examples: Mapping[str, Row] = field(default_factory=dict)
    """Attacked inputs that were kept, as arrays, by the file name of their attack."""

    @property
    def attacks(self) -> list[Attack]:
        """The attacks."""
        return [piece for piece in self.pieces if isinstance(piece, Attack)]

    @property
    def certificates(self) -> list[Certificate]:
        """The certificates for inputs."""
        return [piece for piece in self.pieces if isinstance(piece, Certificate)]

    @property
    def shifts(self) -> list[Shift]:
        """The certificates for distributions."""
        return [piece for piece in self.pieces if isinstance(piece, Shift)]

    @property
    def losses(self) -> list[Losses]:
        """The losses under shift."""
        return [piece for piece in self.pieces if isinstance(piece, Losses)]

    @property
    def measured(self) -> list[Measured]:
        """The certificates for measured changes."""
        return [piece for piece in self.pieces if isinstance(piece, Measured)]

    @property
    def transfers(self) -> list[Transfer]:
        """The attacks that were judged by several networks."""
        return [piece for piece in self.pieces if isinstance(piece, Transfer)]

    @property
    def method(self) -> Row:
        """The training method's settings."""
        return _object(self.config, "method")

    @property
    def sigmas(self) -> tuple[float, ...]:
        """The noise levels this network is smoothed with: the one it was trained for, and those of its records."""
        smoothed = [piece for piece in self.pieces if getattr(piece, "scored", "smoothed") == "smoothed"]
        found = [self.method.get("sigma"), *(piece.settings.get("sigma") for piece in smoothed)]
        return tuple(sorted({sigma for sigma in found if isinstance(sigma, int | float) and sigma > 0}))


def _alpha(settings: Row) -> float | None:
    alpha = settings.get("alpha")
    return alpha if isinstance(alpha, float) and 0 < alpha < 1 else None


def _object(document: Row, key: str) -> Row:
    value = document.get(key)
    return value if isinstance(value, dict) else {}
