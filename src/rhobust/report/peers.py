"""Tables of other programs next to the certificates of the page's runs."""

from collections.abc import Sequence
from dataclasses import dataclass

from rhobust.formatting import format_distance, format_interval, format_number, format_percent
from rhobust.measurements import comparison
from rhobust.records import Record
from rhobust.report.overview import subjects
from rhobust.report.runs import PageRun


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

    Args:
        runs: The page's runs; those whose numbers contradict each other are left out.
        tables: Tables of Cohen et al. with their labels.
    """
    if not tables:
        return None
    # One certificate per model, of the first of its rows: the smoothed classifier's if there is one.
    quoted = [(run.label, subjects(run)[0].certificate) for run in runs if not run.contradictions]
    labelled = [(label, found.record) for label, found in quoted if found is not None] + list(tables)
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
