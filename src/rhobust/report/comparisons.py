"""Networks next to others: attacks crafted on one and predicted by others, and tables of other programs."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from rhobust.formatting import format_distance, format_interval, format_number, format_percent
from rhobust.measurements import ROBUST, SAME_IMAGES, comparison, outcomes
from rhobust.records import Record
from rhobust.report.overview import subjects
from rhobust.report.runs import ATTACKS, PageRecord, PageRun, name_kind
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
            group = groups.setdefault((repr(record.settings.get("attack")), *_images_of(record)), [])
            for target in dict.fromkeys(str(one.detail["target"]) for one in record.found):
                found = tuple(one for one in record.found if one.detail["target"] == target)
                group.append((str(record.settings.get("model_hash")), target, replace(record, found=found)))
    for run in runs:
        for record in _transferred(run):
            names.setdefault(record.crafted_on, str(record.source.get("name")))
            # One by one means on the same images: others make a table of their own.
            images = frozenset(outcomes(record.record, ROBUST, next(iter(record.accuracy))))
            group = groups.setdefault(
                (repr(record.settings.get("attack")), record.norm, images, *_images_of(record)), []
            )
            group.append((record.crafted_on, str(record.settings.get("model_hash")), record))
    own_names = names_by_hash(runs)
    return [
        _transfer_table(group, names | own_names, list(own_names))
        for group in groups.values()
        if len(group) > 1 and any(source != target for source, target, _ in group)
    ]


def _images_of(record: PageRecord) -> tuple[object, object]:
    """What names the images of a record, together with their indices."""
    split, fingerprint = (record.settings.get(key) for key in SAME_IMAGES)
    return split, fingerprint


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
    kind = name_kind(records[0].attack_kind, ATTACKS)
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
        title=f"{kind if radius is None else f'{kind}, radius {format_distance(radius)}'}{records[0].whose}",
        columns=tuple(names.get(target, target) for target in targets),
        rows=tuple(
            (names.get(source, source), tuple(cells.get((source, target)) for target in targets)) for source in sources
        ),
        warnings=tuple(dict.fromkeys(warning for record in records for warning in record.warnings)),
    )


@dataclass(frozen=True)
class PeerRow:
    """One certificate, or one table of another program, at each radius."""

    label: str
    status: str
    """proved, or claimed for a table: it has no counts that could be checked."""
    cells: tuple[tuple[str, str], ...]
    """Certified accuracy and its 95% interval over images, for each radius; empty texts where nothing is known."""
    average: str
    n: int
    apart: str
    """Why it is not compared image by image with the first row, else empty."""


@dataclass(frozen=True)
class PeerTable:
    """The rows, and the radii of their cells."""

    radii: tuple[str, ...]
    rows: tuple[PeerRow, ...]


def peer_table(runs: Sequence[PageRun], tables: Sequence[tuple[str, Record]]) -> PeerTable | None:
    """Certificates of runs and tables of other programs side by side; None where there is no table.

    Runs whose numbers contradict each other are left out.
    """
    if not tables:
        return None
    # One certificate per model, of the first of its rows: the smoothed classifier's if there is one.
    quoted = [(run.label, subjects(run)[0].certificate) for run in runs if not run.contradictions]
    labelled = [(f"{label}{found.whose}", found.record) for label, found in quoted if found is not None] + list(tables)
    compared = comparison([record for _, record in labelled])
    rows = []
    for (label, _), one in zip(labelled, compared["files"], strict=True):
        points = {point["radius"]: point for point in one["certified_accuracy"]}
        cells = [
            (
                f"{format_percent(points[radius]['accuracy'], 'down')}%",
                format_interval(points[radius]["low"], points[radius]["high"], 3),
            )
            if radius in points
            else ("", "")
            for radius in compared["radii"]
        ]
        average = format_number(one["average_certified_radius"], 3, "down")
        rows.append(PeerRow(label, one["status"], tuple(cells), average, one["n"], one.get("not_compared", "")))
    return PeerTable(tuple(map(format_distance, compared["radii"])), tuple(rows))
