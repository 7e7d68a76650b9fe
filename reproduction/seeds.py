"""The table of one recipe over seeds: certified accuracy of each training, their mean, and a baseline image by image.

Trainings were certified on different numbers of test images: a mean or a difference is over the images that all have.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev, variance

from reproduction.render import csv_table, markdown_table, write_table
from rhobust.archives import ENDING, opened
from rhobust.files import read_json
from rhobust.formatting import format_interval, format_number
from rhobust.measurements import AVERAGE_RADIUS, CERTIFIED, outcomes, read_finished
from rhobust.records import Record, record_paths
from rhobust.stats import Z, mean_difference, share, share_difference

DISTILLED, TAUGHT = "cifar10-nal-distilled-0.25", "cifar10-nal-taught-0.25"
"""The pretrained models whose other seeds and whose baseline are in the archive, and the first one's teacher."""
ARCHIVE = f"cifar10-certified{ENDING}"
RADII = (0.0, 0.25, 0.5, 0.75)
METHODS = {"nal": "NAL", "smoothadv": "SmoothAdv"}
Outcomes = Mapping[float, Mapping[int, float]]
"""By radius and image 1 where it is certified to be right, else 0."""


@dataclass(frozen=True)
class Cell:
    """A number, the ends of its interval or its deviation over seeds if it has them, and over how many images it is."""

    value: float
    n: int
    low: float | None = None
    high: float | None = None
    deviation: float | None = None

    @property
    def shown(self) -> str:
        """The number with what is known of it; a share is never rounded up, a difference is rounded to nearest."""
        negative = self.low is not None and self.low < 0
        text = format_number(self.value, 4, "nearest" if negative else "down")
        if self.deviation is not None:
            return f"{text} ± {self.deviation:.4f}"
        if self.low is None or self.high is None:
            return text
        return f"{text} ({format_interval(self.low, self.high, 4)})"


Line = dict[str, Cell]
"""Cells by their column."""


def write_seeds(results: Path) -> list[Path]:
    """Write the table of the distilled network's recipe: seeds, their mean, its teacher and SmoothAdv."""
    pretrained = results / "pretrained"
    with opened([results / "records" / ARCHIVE]) as here:
        records = by_name([pretrained / DISTILLED, *here.paths])
        records["its teacher"] = decided_record(pretrained / TAUGHT)
        lines = _lines({name: certified_outcomes(record) for name, record in records.items()})
        first = records["NAL, seed 0"]
    measured = measured_record(pretrained / DISTILLED)
    lines["NAL, seed 0, average certified radius"] = {"ACR": average_radius(first, measured)}
    return write_lines(results / "tables" / "table-seeds.csv", TITLE, NOTE, lines)


def by_name(runs: Sequence[Path]) -> dict[str, Record]:
    """The records of some runs by method and seed, which no two of them may share."""
    found: dict[str, Record] = {}
    for run in runs:
        if (name := _name(run)) in found:
            raise ValueError(
                f"runs of this table must have one recipe each, but two are {name}, one of them {run.name}"
            )
        found[name] = decided_record(run)
    return found


def decided_record(run: Path) -> Record:
    """The one record of a run that decides given radii on test images."""
    found = [read_finished(path) for path in record_paths(run, "certify-grid")]
    (record,) = [one for one in found if one.settings["split"] == "test"]
    return record


def measured_record(run: Path) -> Record:
    """The one record of a run that has a radius for each of a few test images."""
    (record,) = map(read_finished, record_paths(run, "certify-two-stage"))
    return record


def average_radius(decided: Record, measured: Record) -> Cell:
    """The average certified radius of all decided images, estimated from the radii of a few of them."""
    return stratified_mean(decided, outcomes(measured, AVERAGE_RADIUS))


def stratified_mean(decided: Record, values: Mapping[int, float]) -> Cell:
    """The mean over all decided images of something that is known of a few of them.

    The few are weighted so that each decided radius has its share among all (post-stratification). An estimate; its
    95% interval, by the normal approximation, is over both choices of images.

    Args:
        decided: A sequential certificate of many images: which of a few radii hold.
        values: By image; at least two images of each decided radius.
    """
    curve = certified_outcomes(decided)
    strata = {index: sum(held[index] for held in curve.values()) for index in curve[0.0]}
    n = len(strata)
    shares = {one: sum(stratum == one for stratum in strata.values()) / n for one in set(strata.values())}
    groups = {one: [value for index, value in values.items() if strata[index] == one] for one in shares}
    mean = math.fsum(weight * fmean(groups[one]) for one, weight in shares.items())
    within = math.fsum(weight**2 * variance(groups[one]) / len(groups[one]) for one, weight in shares.items())
    between = math.fsum(weight * (fmean(groups[one]) - mean) ** 2 for one, weight in shares.items()) / n
    half = Z * math.sqrt(within + between)
    return Cell(mean, n, mean - half, mean + half)


def _name(run: Path) -> str:
    config = read_json(run / "config.json")
    return f"{METHODS[config['method']['kind']]}, seed {config['seed']}"


def certified_outcomes(record: Record) -> Outcomes:
    """By decided radius and image whether it is certified to be right."""
    return {radius: outcomes(record, CERTIFIED, radius) for radius in record.settings["radii"]}


def _lines(found: Mapping[str, Outcomes]) -> dict[str, Line]:
    """The lines of the table but the last."""
    seeds = [name for name in found if name.startswith("NAL")]
    whole = [name for name in seeds if len(found[name][0.0]) == max(len(found[one][0.0]) for one in seeds)]
    lines = {name: shares(found[name]) for name in seeds}
    lines["NAL, mean of all seeds"] = means([found[name] for name in seeds])
    lines[f"NAL, mean of {' and '.join(name.removeprefix('NAL, ') for name in whole)}"] = means(
        [found[name] for name in whole]
    )
    for baseline in (name for name in found if name not in seeds):
        lines[baseline] = shares(found[baseline])
        lines |= {f"{name}, minus {baseline}": differences([found[name]], [found[baseline]]) for name in seeds}
        lines[f"NAL, mean of all seeds, minus {baseline}"] = differences(
            [found[name] for name in seeds], [found[baseline]]
        )
    return lines


def shares(curve: Outcomes) -> Line:
    """The share of certified images by radius, each with its 95% interval over images."""
    cells = {}
    for radius, images in curve.items():
        one = share(round(sum(images.values())), len(images))
        cells[f"{radius:g}"] = Cell(one.value, one.n, one.low, one.high)
    return cells


def means(curves: Sequence[Outcomes]) -> Line:
    """Mean and deviation over trainings, on the images that all of them have."""
    cells = {}
    for radius, images in _shared(curves).items():
        values = [fmean(curve[radius][index] for index in images) for curve in curves]
        cells[f"{radius:g}"] = Cell(fmean(values), len(images), deviation=stdev(values))
    return cells


def _shared(curves: Sequence[Outcomes]) -> dict[float, list[int]]:
    """The images that all have, by the radii that all have."""
    radii = [radius for radius in curves[0] if all(radius in curve for curve in curves)]
    images = {radius: sorted(set.intersection(*(set(curve[radius]) for curve in curves))) for radius in radii}
    return {radius: found for radius, found in images.items() if found}


def differences(ours: Sequence[Outcomes], theirs: Sequence[Outcomes]) -> Line:
    """The mean of ours minus that of theirs, on the images that all have, with its 95% interval over images."""
    cells = {}
    for radius, images in _shared((*ours, *theirs)).items():
        here, there = ([fmean(curve[radius][index] for curve in side) for index in images] for side in (ours, theirs))
        one = (
            mean_difference(here, there)
            if len(ours) > 1 or len(theirs) > 1
            else share_difference([bool(value) for value in here], [bool(value) for value in there])
        )
        cells[f"{radius:g}"] = Cell(one.value, one.n, one.low, one.high)
    return cells


TITLE = "One recipe over seeds, its teacher and SmoothAdv: certified accuracy on CIFAR-10, sigma 0.25"
NOTE = (
    "NAL: three trainings, with the settings of cifar10-nal-distilled-0.25. In brackets: the 95% interval over the"
    " choice of images; ±: standard deviation over trainings. Differences are on the images that both have. The average"
    " certified radius is an estimate for all images from 250 of them."
)


def write_lines(path: Path, title: str, note: str, lines: Mapping[str, Line]) -> list[Path]:
    """Write a table of one line per network: Markdown with intervals, CSV with one number per row."""
    columns = dict.fromkeys(column for cells in lines.values() for column in cells)
    rows: list[tuple[str, ...]] = [("network", *columns, "n")]
    for name, cells in lines.items():
        texts = (cells[column].shown if column in cells else "" for column in columns)
        rows.append((name, *texts, str(next(iter(cells.values())).n)))
    numbers = [
        (name, column, cell.value, cell.low, cell.high, cell.deviation, cell.n)
        for name, cells in lines.items()
        for column, cell in cells.items()
    ]
    heads = ("name", "column", "value", "low", "high", "deviation", "n")
    return write_table(path, f"# {title}\n\n{markdown_table(rows, 1)}\n{note}\n", csv_table([heads, *numbers]))
