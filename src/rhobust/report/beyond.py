"""Tables of what is certified beyond one curve: subpopulations, groups, changed data, prediction sets, abstention."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rhobust.formatting import format_distance, format_number, format_percent
from rhobust.measurements import (
    AFTER,
    CERTIFIED_AFTER,
    COVERAGE,
    GROUP,
    MIXTURE,
    RECENTRED,
    SET_COVERAGE,
    SET_SIZE,
    SUBPOPULATION,
    WRONG_ANSWERS,
    Measurement,
)
from rhobust.report.runs import PageRecord, PageRun
from rhobust.report.tables import shown_percent


@dataclass(frozen=True)
class BeyondCell:
    """One number of a table: as it is shown, and the share that shades its cell."""

    shown: str
    value: float


@dataclass(frozen=True)
class BeyondTable:
    """One table: a surface over eps, or a few numbers with their names."""

    title: str
    corner: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[BeyondCell | None, ...]], ...]
    sentences: tuple[str, ...]
    """The claims in words; each names the data's side, the classifier, the threat and the confidence."""


def beyond_tables(runs: Sequence[PageRun]) -> list[BeyondTable]:
    """The tables of all runs, in their order."""
    return [table for run in runs for record in run.records for table in _of_record(run, record)]


def _of_record(run: PageRun, record: PageRecord) -> Iterator[BeyondTable]:
    of = f"{run.label}: "
    if record.kind == "certify-shift":
        outliers = record.settings.get("outliers")
        less = f", {format_percent(outliers, 'down')}% outliers" if outliers else ""
        for quantity, key, title, corner in (
            (SUBPOPULATION, "gamma", f"every subpopulation, W2 shift{less}", "reweighted by up to"),
            (GROUP, "group", "every group", "group"),
            (MIXTURE, "tv", "changed shares of groups", "shares within"),
        ):
            if points := record.curve(quantity):
                yield _surface(f"{of}{title}", corner, points, key, _worst_sentence(record, key))
        if points := record.curve(WRONG_ANSWERS):
            title = f"{of}wrong answers if it abstains unless {record.settings.get('agree')} votes agree"
            yield _line(title, "wrong answers at most", points, _sentence(record.summary.get("abstaining")))
    elif record.kind == "measure-shift" and (points := record.curve(RECENTRED)):
        pairs = str(record.settings.get("pairs", "a measured change"))
        said = [one.detail["statement"] for one in record.found if "statement" in one.detail]
        # The first and the last are the changed data themselves and every other change of its size.
        sentences = tuple(dict.fromkeys((*said[:1], *said[-1:])))
        yield _line(f"{of}around the changed data ({pairs})", "certified accuracy", points, sentences)
    elif record.kind == "corruptions" and record.curve(RECENTRED):
        yield _corruptions(f"{of}common corruptions, certified without labels of changed images", record)
    elif record.kind == "conform":
        yield _sets(of, record)


def _surface(
    title: str, corner: str, points: Sequence[Measurement], key: str, sentences: tuple[str, ...]
) -> BeyondTable:
    sizes = list(dict.fromkeys(one.at for one in points))
    found = {(one.detail[key], one.at): one for one in points}
    names = list(dict.fromkeys(one.detail[key] for one in points))
    rows = tuple(
        (name if key == "group" else format_distance(name), tuple(_cell(found[name, eps]) for eps in sizes))
        for name in names
    )
    return BeyondTable(title, corner, tuple(f"eps {format_distance(eps or 0.0)}" for eps in sizes), rows, sentences)


def _line(title: str, name: str, points: Sequence[Measurement], sentences: tuple[str, ...]) -> BeyondTable:
    columns = tuple(f"eps {format_distance(one.at or 0.0)}" for one in points)
    return BeyondTable(title, "", columns, ((name, tuple(_cell(one) for one in points)),), sentences)


def _corruptions(title: str, record: PageRecord) -> BeyondTable:
    """One row per corruption and severity: what was measured, and the two floors."""
    columns = ("measured", "certified, no labels", "certified, any change of its size")
    quantities = (AFTER, RECENTRED, CERTIFIED_AFTER)
    found: dict[tuple[str, int], dict[str, Measurement]] = {}
    for one in record.found:
        if one.quantity in quantities and "corruption" in one.detail:
            place = str(one.detail["corruption"]), int(one.detail["severity"])
            found.setdefault(place, {})[one.quantity] = one
    rows = tuple(
        (
            f"{name} {severity}",
            tuple(_cell(cells[quantity]) if quantity in cells else None for quantity in quantities),
        )
        for (name, severity), cells in found.items()
    )
    return BeyondTable(title, "corruption, severity", columns, rows, ())


def _sets(of: str, record: PageRecord) -> BeyondTable:
    certified, covered, size = (record.value(quantity) for quantity in (COVERAGE, SET_COVERAGE, SET_SIZE))
    cells = tuple(None if one is None else _cell(one) for one in (certified, covered))
    classes = None if size is None else BeyondCell(format_number(size.value, 2, "nearest"), 0.0)
    columns = ("coverage, certified", "coverage without a shift", "classes per set")
    eps = format_distance((certified.at if certified else None) or 0.0)
    return BeyondTable(f"{of}prediction sets", "", columns, ((f"eps {eps}", (*cells, classes)),), (record.statement,))


def _cell(one: Measurement) -> BeyondCell:
    return BeyondCell(shown_percent(one), one.value)


def _worst_sentence(record: PageRecord, key: str) -> tuple[str, ...]:
    part = {"gamma": "surface", "group": "groups", "tv": "mixtures"}[key]
    return _sentence(record.summary.get(part))


def _sentence(points: object) -> tuple[str, ...]:
    """The sentence of the last point of a part of a summary, which was checked against the rows."""
    if not isinstance(points, list) or not points or not isinstance(points[-1], dict):
        return ()
    return (str(points[-1].get("statement", "")),)
