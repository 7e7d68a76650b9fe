"""The tables of transfer attacks: crafted on one network, predicted by others."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from rhobust.formatting import format_distance
from rhobust.measurements import ROBUST, outcomes
from rhobust.report.runs import ATTACKS, PageRecord, PageRun
from rhobust.report.tables import names_by_hash, shown_interval, shown_percent, target_names


@dataclass(frozen=True)
class TransferCell:
    """The robust accuracy of one network under attacks crafted on another, or on itself."""

    shown: str
    interval: str
    value: float
    own: bool
    """Whether the attack was crafted on the network itself."""


@dataclass(frozen=True)
class TransferTable:
    """The transfer attacks of one kind at one radius."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[TransferCell | None, ...]], ...]
    warnings: tuple[str, ...]


Crossing = tuple[str, str, PageRecord]
"""The hashes of the network that was attacked and of the one that was tested, and what was measured."""


def transfer_tables(runs: Sequence[PageRun]) -> list[TransferTable]:
    """One table for each attack that several networks were tested with, at the middle of its radii.

    Attacks that several networks were tested with together are apart from those that were transferred one by one.
    """
    groups: dict[Hashable, list[Crossing]] = {}
    names: dict[str, str] = {}
    for run in runs:
        for record in run.of("transfer"):
            names |= target_names(record)
            group = groups.setdefault(repr(record.settings.get("attack")), [])
            for target in dict.fromkeys(str(one.detail["target"]) for one in record.found):
                found = tuple(one for one in record.found if one.detail["target"] == target)
                group.append((str(record.settings.get("model_hash")), target, replace(record, found=found)))
    for run in runs:
        for record in _transferred(run):
            names.setdefault(record.crafted_on, str(record.source.get("name")))
            # One by one means on the same images: others make a table of their own.
            images = frozenset(outcomes(record.record, ROBUST, next(iter(record.accuracy))))
            group = groups.setdefault((repr(record.settings.get("attack")), record.norm, images), [])
            group.append((record.crafted_on, str(record.settings.get("model_hash")), record))
    own_names = names_by_hash(runs)
    return [
        _transfer_table(group, names | own_names, list(own_names))
        for group in groups.values()
        if len(group) > 1 and any(source != target for source, target, _ in group)
    ]


def _transferred(run: PageRun) -> list[PageRecord]:
    """The attacks on a run that were crafted on other networks, and the same attacks crafted on itself."""
    attacks = [attack for attack in run.of("attack") if attack.majority == bool(run.sigmas)]
    settings = [attack.settings.get("attack") for attack in attacks if attack.transferred]
    return [attack for attack in attacks if attack.transferred or attack.settings.get("attack") in settings]


def _transfer_table(group: Sequence[Crossing], names: Mapping[str, str], order: Sequence[str]) -> TransferTable:
    records = [record for *_, record in group]
    shared = set.intersection(*(set(record.accuracy) for record in records))
    positive = sorted(shared - {0.0}) or sorted(shared)
    radius = positive[(len(positive) - 1) // 2] if positive else None
    kind = ATTACKS.get(records[0].attack_kind, records[0].attack_kind.upper())
    cells: dict[tuple[str, str], TransferCell | None] = {}
    for source, target, record in group:
        cells[source, target] = None
        if radius is not None:
            number, own = record.accuracy[radius], source == target
            cells[source, target] = TransferCell(shown_percent(number), shown_interval(number), number.value, own)
    # The page's own networks in its order, then those that only a record names.
    sources, targets = (
        sorted(dict.fromkeys(found), key=lambda found: order.index(found) if found in order else len(order))
        for found in zip(*cells, strict=True)
    )
    return TransferTable(
        title=kind if radius is None else f"{kind}, radius {format_distance(radius)}",
        columns=tuple(names.get(target, target) for target in targets),
        rows=tuple(
            (names.get(source, source), tuple(cells.get((source, target)) for target in targets)) for source in sources
        ),
        warnings=tuple(dict.fromkeys(warning for record in records for warning in record.warnings)),
    )
