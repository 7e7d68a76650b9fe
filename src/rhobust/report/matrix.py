"""How far attacks carry: each attacked network a row, each judging network a column."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rhobust.formatting import format_distance
from rhobust.report.run import ATTACKS, Attack, Run
from rhobust.report.table import names_by_hash, shown_interval, shown_percent
from rhobust.stats import Share


@dataclass(frozen=True)
class Crossing:
    """What one network makes of inputs that were attacked on another, or on itself; networks by their hashes."""

    attack: Any
    """The attack's settings, as a record has them."""
    source: str
    target: str
    accuracy: Mapping[float, Share]
    """The share that stands at each radius."""
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Cell:
    """What is left standing, or nothing where this network did not judge."""

    shown: str
    interval: str
    value: float
    own: bool
    """Whether the network judged an attack on itself."""


@dataclass(frozen=True)
class Matrix:
    """The transfer attacks of one kind at one radius."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell | None, ...]], ...]
    warnings: tuple[str, ...]


def matrices(runs: Sequence[Run]) -> list[Matrix]:
    """One matrix for each attack that was judged by several networks, at the middle of its radii.

    Attacks that several networks judged together stand apart from those that were carried over one by one.
    """
    groups: dict[Hashable, list[Crossing]] = {}
    names: dict[str, str] = {}
    for run in runs:
        for transfer in run.transfers:
            attack, source = transfer.settings.get("attack"), str(transfer.settings.get("model_hash"))
            groups.setdefault(repr(attack), []).extend(
                Crossing(attack, source, target, curve, transfer.warnings)
                for target, curve in transfer.accuracy.items()
            )
            names |= transfer.names
    for run in runs:
        for attack in _carried_over(run):
            names.setdefault(attack.crafted_on, str(attack.source.get("name")))
            # One by one means on the same images: others make a matrix of their own.
            group = groups.setdefault((repr(attack.settings.get("attack")), attack.norm, attack.examples), [])
            own = str(attack.settings.get("model_hash"))
            group.append(
                Crossing(attack.settings.get("attack"), attack.crafted_on, own, attack.accuracy, attack.warnings)
            )
    own_names = names_by_hash(runs)
    return [
        _matrix(group, names | own_names, list(own_names))
        for group in groups.values()
        if len(group) > 1 and any(crossing.source != crossing.target for crossing in group)
    ]


def _carried_over(run: Run) -> list[Attack]:
    """The attacks on a run that were crafted on other networks, and the same on itself, as its classifier judges."""
    judged = [attack for attack in run.attacks if attack.majority == bool(run.sigmas)]
    moved = [attack for attack in judged if attack.transferred]
    settings = [attack.settings.get("attack") for attack in moved]
    return [attack for attack in judged if attack.transferred or attack.settings.get("attack") in settings]


def _matrix(group: Sequence[Crossing], names: Mapping[str, str], order: Sequence[str]) -> Matrix:
    attack = group[0].attack
    shared = set.intersection(*(set(crossing.accuracy) for crossing in group))
    positive = sorted(shared - {0.0}) or sorted(shared)
    radius = positive[(len(positive) - 1) // 2] if positive else None
    name = str(attack.get("kind", "attack")) if isinstance(attack, dict) else "attack"
    kind = ATTACKS.get(name, name.upper())
    cells = {(crossing.source, crossing.target): _cell(crossing, radius) for crossing in group}
    # The page's own networks in its order, then those that only a record names.
    sources, targets = (
        sorted(dict.fromkeys(found), key=lambda found: order.index(found) if found in order else len(order))
        for found in zip(*cells, strict=True)
    )
    return Matrix(
        title=kind if radius is None else f"{kind}, radius {format_distance(radius)}",
        columns=tuple(names.get(target, target) for target in targets),
        rows=tuple(
            (names.get(source, source), tuple(cells.get((source, target)) for target in targets)) for source in sources
        ),
        warnings=tuple(dict.fromkeys(warning for crossing in group for warning in crossing.warnings)),
    )


def _cell(crossing: Crossing, radius: float | None) -> Cell | None:
    if radius is None:
        return None
    counted = crossing.accuracy[radius]
    own = crossing.source == crossing.target
    return Cell(shown_percent(counted.value, "upper limit"), shown_interval(counted), counted.value, own)
