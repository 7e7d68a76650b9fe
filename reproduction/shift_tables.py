"""Tables of what is certified about distributions for the pretrained networks: corruptions, subpopulations, sets.

Every number is proved or counted again from the records next to the weights (`rhobust.measurements`).
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from reproduction.render import markdown_table
from rhobust.files import write_whole
from rhobust.formatting import format_interval, format_number, format_percent
from rhobust.measurements import (
    AFTER,
    BEFORE,
    CERTIFIED_AFTER,
    CHANGE,
    COVERAGE,
    RECENTRED,
    SET_COVERAGE,
    SET_SIZE,
    SHIFT,
    SUBPOPULATION,
    Measurement,
    measurements,
    read_finished,
)
from rhobust.records import Record, record_paths

Cells = dict[str, str]


def write_shift_tables(results: Path) -> list[Path]:
    """Write the tables that have records in `pretrained` of a folder of results into its `shift`."""
    folder, written = results / "shift", []
    for name, (title, kind, lines, note) in TABLES.items():
        records = [read_finished(path) for run in _networks(results) for path in record_paths(run, kind)]
        found = {record.path: list(lines(record)) for record in records}
        records = [record for record in records if found[record.path]]
        table = [{"network": record.path.parent.name, **line} for record in records for line in found[record.path]]
        if not table:
            continue
        shown = markdown_table([list(table[0]), *([*line.values()] for line in table)], 2)
        write_whole(folder / f"{name}.md", f"# {title}\n\n{shown}\n{note} {_images(records)}\n")
        written.append(folder / f"{name}.md")
    return written


def _images(records: Sequence[Record]) -> str:
    """How many test images are behind the numbers of each network, and how many noise samples of each."""
    said = {
        f"{record.path.parent.name} {len({row['index'] for row in record.rows}):,} with {record.settings['draws']}"
        f" noise samples each ({record.settings['dtype']})": None
        for record in records
    }
    return f"Test images: {', '.join(said)}."


def _networks(results: Path) -> list[Path]:
    return sorted(path.parent for path in results.glob("pretrained/*/config.json"))


def corruptions(record: Record) -> Iterator[Cells]:
    """A line per corruption and severity: its size, the accuracy after it, and both certified floors."""
    found = list(measurements(record))
    (clean,) = [one for one in found if one.quantity == BEFORE]
    yield {"change": "none", "W2 / sigma": "0", "accuracy": _interval(clean), "certified": "", "by distances alone": ""}
    sigma = record.settings["sigma"]
    for change in (one for one in found if one.quantity == CHANGE):
        after, proved, far = (
            next(one for one in found if one.quantity == quantity and one.detail == change.detail)
            for quantity in (AFTER, RECENTRED, CERTIFIED_AFTER)
        )
        yield {
            "change": f"{change.detail['corruption']} {change.detail['severity']}",
            "W2 / sigma": f"{change.value / sigma:.1f}",
            "accuracy": _interval(after),
            "certified": _shown(proved),
            "by distances alone": _shown(far),
        }


def subpopulations(record: Record) -> Iterator[Cells]:
    """A line per size of the shift: certified accuracy of all data, and of every subpopulation of a share."""
    if "gamma" not in record.settings:
        return
    found = list(measurements(record))
    ours = [one for one in found if one.quantity == SHIFT and not one.detail.get("baseline")]
    for whole in ours:
        parts = [one for one in found if one.quantity == SUBPOPULATION and one.at == whole.at]
        yield {
            "eps / sigma": _in_sigmas(whole, record),
            "all data": _shown(whole),
            **{f"share of 1/{one.detail['gamma']:g}": _shown(one) for one in parts if one.detail["gamma"] > 1},
        }


def prediction_sets(record: Record) -> Iterator[Cells]:
    """A line per record: certified coverage, and the measured coverage and size without a shift."""
    found = {one.quantity: one for one in measurements(record)}
    proved = found[COVERAGE]
    yield {
        "certified coverage": f"{format_percent(proved.value, 'down')}%",
        "eps / sigma": _in_sigmas(proved, record),
        "coverage without a shift": _interval(found[SET_COVERAGE]),
        "mean size": f"{found[SET_SIZE].value:.2f}",
        "score": proved.detail["score"],
    }


def _shown(one: Measurement) -> str:
    return format_number(one.value, 3, one.direction)


def _interval(one: Measurement) -> str:
    assert one.low is not None
    assert one.high is not None
    return f"{one.value:.3f} ({format_interval(one.low, one.high, 3)})"


def _in_sigmas(one: Measurement, record: Record) -> str:
    assert one.at is not None
    return f"{one.at / record.settings['sigma']:g}"


TABLES: dict[str, tuple[str, str, Callable[[Record], Iterator[Cells]], str]] = {
    "table-corruptions": (
        "Accuracy after common corruptions: measured and certified",
        "corruptions",
        corruptions,
        "One noisy vote, sigma 0.25. In brackets: 95% intervals. The floors of a column hold together at alpha 0.001.",
    ),
    "table-subpopulations": (
        "Certified accuracy under shift, of all data and of every subpopulation",
        "certify-shift",
        subpopulations,
        "One noisy vote, sigma 0.25. All floors of a network hold together at alpha 0.001.",
    ),
    "table-sets": (
        "Prediction sets with certified coverage under shift",
        "conform",
        prediction_sets,
        "One noisy pass per set, sigma 0.25. Each line holds at alpha 0.001.",
    ),
}
"""Of each table its title, the kind of its records, its lines and what is said below it."""
