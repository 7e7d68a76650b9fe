"""What the page knows of a run: its records with their measurements, and the words for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rhobust.formatting import format_distance, format_setting, name_split
from rhobust.measurements import (
    AVERAGE_RADIUS,
    BASE_BEFORE,
    BEFORE,
    CERTIFIED,
    ROBUST,
    SHIFT,
    Measurement,
    certified,
    contradictions,
    outcomes,
)
from rhobust.measurements.quantities import about_images
from rhobust.records import Record, Row

COSTS = {"w1": "W1", "w2": "W2", "winf": "W∞"}
"""Names of the transport distances."""
ATTACKS = {"eot": "EOT-PGD", "pgd": "PGD", "autoattack": "AutoAttack", "paper": "Paper’s attack"}
"""Names of the attacks; others by their kinds in capitals."""


def name_kind(kind: str, names: Mapping[str, str]) -> str:
    """The name of a method or an attack: as papers write it, else in capitals; a user's own class by its name."""
    module, _, name = kind.rpartition(":")
    return names.get(kind, name if module else name.upper())


@dataclass(frozen=True)
class ShiftCurve:
    """One certified curve over the size of the shift."""

    title: str
    """What sets it apart from others of the same run, such as "W2, one noisy prediction"."""
    cost: str
    classifier: str
    baseline: bool
    """Whether it is a baseline, computed from the noise samples of another certificate."""
    sampled: bool
    """Whether the claim is about the test points themselves and not about the population."""
    points: tuple[Measurement, ...]

    @property
    def values(self) -> dict[float, float]:
        """What is certified at each size of the shift."""
        return {one.at: one.value for one in self.points if one.at is not None}


@dataclass(frozen=True)
class PageRecord:
    """One record with its measurements, and the words for it."""

    record: Record
    found: tuple[Measurement, ...]

    @property
    def kind(self) -> str:
        """The record's kind; "losses" where a loss is bounded, with an attack or without."""
        kind = self.record.kind
        bounded = kind == "curves" or (kind == "certify-shift" and self.settings.get("loss", "0-1") != "0-1")
        return "losses" if bounded else kind

    @property
    def file(self) -> str:
        """Name of the record's file."""
        return self.record.path.name

    @property
    def settings(self) -> Row:
        """The record's settings."""
        return self.record.settings

    @property
    def summary(self) -> Row:
        """The record's summary; empty while it is unfinished."""
        return self.record.summary or {}

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Reasons not to trust the numbers."""
        if self.record.summary is None:
            probed = ", and the attack was not probed" if self.kind == "attack" else ""
            return (f"unfinished: {self.found[0].n} examples so far{probed}",)
        return tuple(strings(self.summary.get("warnings", [])))

    @property
    def clean_warnings(self) -> tuple[str, ...]:
        """Those about the accuracy on unchanged images: how an attack went says nothing of it."""
        if self.kind != "attack":
            return self.warnings
        if self.record.summary is None:
            return (f"unfinished: {self.found[0].n} examples so far",)
        return tuple(filter(about_images, self.warnings))

    @property
    def statement(self) -> str:
        """The claim in words, where there is one: as the rows prove it, at the middle eps."""
        said = [one.detail["statement"] for one in self.found if "statement" in one.detail]
        return said[len(said) // 2] if said else ""

    @property
    def alpha(self) -> float | None:
        """The probability with which a certificate, or a whole curve, may be false."""
        alpha = self.settings.get("alpha")
        return alpha if isinstance(alpha, float) and 0 < alpha < 1 else None

    @property
    def data(self) -> str:
        """The data that were evaluated, with the split where it is not the test data; "" in records that do not say."""
        data, split = (self.settings.get(key) for key in ("data", "split"))
        named = "" if data is None else str(data)
        return f"{named} ({split})" if named and split not in (None, "test") else named

    @property
    def whose(self) -> str:
        """What the names of its numbers end with where the images are no test images; they would be taken for such."""
        images = name_split(self.settings.get("split"))
        return "" if images == "test" else f", {images} images"

    @property
    def n(self) -> int:
        """Images behind the numbers."""
        return self.found[0].n

    @property
    def points(self) -> int:
        """Labelled images behind a claim; of pairs there may be another number."""
        return next((one.n for one in self.found if one.quantity in (BEFORE, BASE_BEFORE)), self.n)

    def curve(self, *quantities: str) -> list[Measurement]:
        """The measurements of a quantity, or of the first of several that there is."""
        for quantity in quantities:
            if points := [one for one in self.found if one.quantity == quantity]:
                return points
        return []

    def value(self, quantity: str) -> Measurement | None:
        """The one measurement of a quantity."""
        return next(iter(self.curve(quantity)), None)

    # Attacks.

    @cached_property
    def accuracy(self) -> dict[float, Measurement]:
        """The robust accuracy at each radius, ascending."""
        return {one.at or 0.0: one for one in self.found if one.quantity == ROBUST}

    @property
    def predictor(self) -> str:
        """Which classifier was attacked: "base" or "smoothed"."""
        return str(self.settings.get("scored", "base"))

    @property
    def norm(self) -> str:
        """The norm that the radius is measured in: "l2" or "linf"."""
        return str(self.settings.get("norm", "l2"))

    @property
    def attack(self) -> Row:
        """The attack's settings."""
        return _object(self.settings, "attack")

    @property
    def attack_kind(self) -> str:
        """The attack's name in its settings, such as "eot"."""
        return str(self.attack.get("kind", "attack"))

    @property
    def transferred(self) -> bool:
        """Whether the adversarial examples were crafted on another network."""
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
        """Whether the smoothed classifier predicts, by a vote; a single noisy prediction says nothing of it."""
        return self.predictor == "smoothed" and self.settings.get("votes") != 1

    @property
    def attack_name(self) -> str:
        """The attack in a few words, such as "EOT-PGD, 20 steps"."""
        parts = [name_kind(self.attack_kind, ATTACKS)]
        shown = {"steps": "step", "draws": "noise sample", "restarts": "restart"}
        if self.attack.get("version") == "standard":
            del shown["draws"]
        parts += [f"{n} {word}{'s' if n != 1 else ''}" for key, word in shown.items() if (n := self.attack.get(key))]
        if "sees" in self.attack:
            parts.append(f"{self.attack.get('gradient')} gradient of the {self.attack['sees']}")
        if self.transferred:
            parts.append(f"crafted on {self.source.get('name', 'another network')}")
        return ", ".join(parts)

    @property
    def predictor_name(self) -> str:
        """Who predicts, in a few words."""
        if self.predictor == "base":
            return "base network"
        return "smoothed classifier" if self.majority else "one noisy prediction"

    # Certificates for inputs.

    @property
    def listed(self) -> tuple[float, ...]:
        """The radii at which certified accuracy was asked for."""
        return tuple(one.at for one in self.found if one.quantity == CERTIFIED and one.at is not None)

    @property
    def on_grid(self) -> bool:
        """Whether the procedure decided some radii, and none between or beyond them."""
        return self.settings.get("way") == "grid"

    @property
    def most_samples(self) -> int:
        """How many noise samples a certificate needs at most; 0 where that is not known."""
        n = self.settings.get("n")
        return n if isinstance(n, int) else 0

    @cached_property
    def largest(self) -> float:
        """The largest certified radius."""
        return max(outcomes(self.record, AVERAGE_RADIUS).values())

    def decides(self, radius: float) -> bool:
        """Whether the certificates say what holds at a radius: chosen radii say nothing beyond the largest of them."""
        return not self.on_grid or radius <= max(self.listed, default=0.0)

    def certified(self, radius: float, quantity: str = CERTIFIED) -> Measurement | None:
        """The certified accuracy at a radius, or that of all examples at once, where alpha is known."""
        return next((one for one in certified(self.record, [radius]) if one.quantity == quantity), None)

    # Certificates for distributions.

    @cached_property
    def shifts(self) -> list[ShiftCurve]:
        """The certified curves, our own first."""
        groups: dict[tuple[Any, ...], list[Measurement]] = {}
        for one in self.curve(SHIFT) if self.kind == "certify-shift" else []:
            key = tuple(str(one.detail.get(name)) for name in ("cost", "classifier", "baseline"))
            groups.setdefault(key, []).append(one)
        return [self._shift(points) for points in groups.values()]

    def _shift(self, points: Sequence[Measurement]) -> ShiftCurve:
        detail = points[0].detail
        cost, way = str(detail.get("cost")), detail.get("way")
        classifier = {
            "k-vote": f"majority of {self.settings.get('votes')} noisy predictions",
            "majority": "class most probable under noise",
        }.get(str(detail.get("classifier")), ONE)
        parts = [COSTS.get(cost, cost), classifier]
        if way in ("intervals", "sample"):
            parts.append("these points only" if way == "sample" else "from intervals")
        baseline = detail.get("baseline")
        if baseline not in (None, "ours"):
            parts.append(f"bound of {baseline.capitalize()}")
        return ShiftCurve(", ".join(parts), cost, classifier, baseline is not None, way == "sample", tuple(points))

    @property
    def loss(self) -> str:
        """Which loss, in a few words."""
        if self.settings.get("loss") == "0-1":
            return "error"
        return f"cross-entropy clipped at {format_distance(float(self.settings['bound']))}"


ONE = "one noisy prediction"
"""The randomized classifier, in a few words."""


@dataclass(frozen=True)
class PageRun:
    """One model and everything measured about it."""

    folder: str
    label: str
    config: Row
    environment: Row
    place: int = 0
    """Its place on the page, which decides its colour and its marker."""
    epochs: tuple[Row, ...] = ()
    records: tuple[PageRecord, ...] = ()
    """All evaluations, in the order of their files."""
    notes: tuple[str, ...] = ()
    """What is missing, unfinished or damaged, one line each."""
    left_out: tuple[str, ...] = ()
    """Of these the records and pictures that are in the folder and could not be shown."""
    diagnosis: tuple[str, ...] = ()
    """What explains low numbers, one line each."""
    kept: Mapping[str, Row] = field(default_factory=dict)
    """Images that were kept, as arrays, by the file name of their record."""

    def of(self, kind: str) -> list[PageRecord]:
        """The records of a kind: "attack", "certify", "certify-shift", "losses", "measure-shift" or "transfer"."""
        return [record for record in self.records if record.kind == kind]

    @property
    def method(self) -> Row:
        """The training method's settings."""
        return _object(self.config, "method")

    @property
    def sigmas(self) -> tuple[float, ...]:
        """The noise levels this network is smoothed with: the one it was trained for, and those of its records."""
        smoothed = [record for record in self.records if record.settings.get("scored", "smoothed") == "smoothed"]
        found = [self.method.get("sigma"), *(record.settings.get("sigma") for record in smoothed)]
        return tuple(sorted({sigma for sigma in found if isinstance(sigma, int | float) and sigma > 0}))

    def part(self, record: PageRecord) -> str:
        """Which of several noise levels a record is about, and which images if they are no test images."""
        sigma, parts = record.settings.get("sigma"), []
        if len(self.sigmas) > 1 and isinstance(sigma, int | float):
            parts.append(f"σ {format_setting(sigma)}")
        if record.whose:
            parts.append(record.whose.removeprefix(", "))
        return ", ".join(parts)

    @cached_property
    def contradictions(self) -> list[str]:
        """One sentence for each pair of numbers that cannot both be right; what the evaluations found comes first."""
        noted = [line for record in self.records for line in strings(record.summary.get("contradictions", []))]
        found = contradictions([one.record for one in self.records], [one.found for one in self.records])
        return [f"{self.label}: {line}." for line in dict.fromkeys([*noted, *found])]


def records_of(runs: Sequence[PageRun], kind: str) -> list[tuple[PageRun, PageRecord]]:
    """The records of a kind, as of `PageRun.of`, each with its run."""
    return [(run, record) for run in runs for record in run.of(kind)]


def strings(value: Any) -> list[str]:
    """A list of lines, whatever a summary holds in its place."""
    return [str(line) for line in value] if isinstance(value, list) else [str(value)]


def _object(document: Row, key: str) -> Row:
    value = document.get(key)
    return value if isinstance(value, dict) else {}
