"""Class by class: where the certified accuracy is lowest."""

from collections.abc import Sequence
from dataclasses import dataclass

from rhobust.bounds import clopper_pearson
from rhobust.formatting import format_percent
from rhobust.report.images import certified_runs, outcome
from rhobust.report.overview import Headline
from rhobust.report.runs import PageRun

MOST = 12
"""Classes that are shown."""


@dataclass(frozen=True)
class ClassCell:
    """The certified accuracy of one classifier on one class."""

    value: float
    high: float
    """Upper end of the interval."""
    shown: str
    interval: str
    n: int


@dataclass(frozen=True)
class ClassTable:
    """Certified accuracy by class, the surely lowest first."""

    columns: tuple[tuple[int, str], ...]
    """The place of each run, and its classifier in words."""
    rows: tuple[tuple[str, tuple[ClassCell | None, ...]], ...]
    """The name of a class, and a cell per classifier."""
    classes: int
    """How many there are."""
    radius: float


def class_table(runs: Sequence[PageRun], at: Headline) -> ClassTable | None:
    """The classes with the lowest certified accuracy of any model at the page's radius.

    The intervals of a column are 95% Clopper-Pearson for all its classes at once (Bonferroni): the worst of many
    classes looks worse than it is.
    """
    found = certified_runs(runs)
    radius = at.radius or 0.0
    names: dict[int, str] = {}
    columns: list[dict[int, ClassCell]] = []
    for _, run, _, record in found:
        hits: dict[int, list[bool]] = {}
        for row in record.record.rows:
            hits.setdefault(row["label"], []).append(outcome(row) == "right" and row["radius"] >= radius)
        for kept in (run.kept.get(record.file), *run.kept.values()):
            if kept is not None:
                for number, name in enumerate(kept["classes"].tolist()):
                    names.setdefault(number, str(name))
        columns.append({label: _cell(own, len(hits)) for label, own in hits.items()})
    labels = sorted({label for column in columns for label in column})
    if len(labels) < 2:
        return None
    # By the upper ends: one image of a class that fails says little about the class.
    labels.sort(key=lambda label: min(column[label].high for column in columns if label in column))
    return ClassTable(
        columns=tuple((position, who) for position, _, who, _ in found),
        rows=tuple(
            (names.get(label, str(label)), tuple(column.get(label) for column in columns)) for label in labels[:MOST]
        ),
        classes=len(labels),
        radius=radius,
    )


def _cell(hits: Sequence[bool], classes: int) -> ClassCell:
    k, n = sum(hits), len(hits)
    low, high = (float(clopper_pearson(k, n, 0.025 / classes, side)) for side in ("lower", "upper"))
    interval = f"{format_percent(low, 'down')}–{format_percent(high, 'up')}%"
    return ClassCell(k / n, high, f"{format_percent(k / n, 'down')}%", interval, n)
