"""How far attacks carry: each attacked network a row, each judging network a column."""

from collections.abc import Sequence
from dataclasses import dataclass

from rhobust.report.run import Run, Transfer
from rhobust.report.table import names_by_hash, shown_interval, shown_percent
from rhobust.rounding import plain


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
    """One matrix for each attack that was judged by several networks, at the middle of its radii."""
    groups: dict[str, list[tuple[Run, Transfer]]] = {}
    for run in runs:
        for transfer in run.transfers:
            groups.setdefault(repr(transfer.settings.get("attack")), []).append((run, transfer))
    return [_matrix(group, names_by_hash(runs)) for group in groups.values()]


def _matrix(group: Sequence[tuple[Run, Transfer]], labels: dict[str, str]) -> Matrix:
    hashes = list(dict.fromkeys(target for _, transfer in group for target in transfer.accuracy))
    shared = set.intersection(*(set(curve) for _, transfer in group for curve in transfer.accuracy.values()))
    positive = sorted(shared - {0.0}) or sorted(shared)
    radius = positive[(len(positive) - 1) // 2] if positive else None
    names = {target: name for _, transfer in group for target, name in transfer.names.items()} | labels
    attack = group[0][1].settings.get("attack")
    kind = str(attack.get("kind", "attack")).upper() if isinstance(attack, dict) else "attack"
    return Matrix(
        title=kind if radius is None else f"{kind}, radius {plain(radius)}",
        columns=tuple(names.get(target, target) for target in hashes),
        rows=tuple((run.label, tuple(_cell(transfer, target, radius) for target in hashes)) for run, transfer in group),
        warnings=tuple(dict.fromkeys(warning for _, transfer in group for warning in transfer.warnings)),
    )


def _cell(transfer: Transfer, target: str, radius: float | None) -> Cell | None:
    counted = None if radius is None else transfer.accuracy.get(target, {}).get(radius)
    if counted is None:
        return None
    own = transfer.settings.get("model_hash") == target
    return Cell(shown_percent(counted.value, "upper limit"), shown_interval(counted), counted.value, own)
