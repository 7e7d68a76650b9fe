"""Image by image and class by class: histograms of radii and probabilities, certified images, the lowest classes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rhobust.bounds import clopper_pearson
from rhobust.formatting import format_distance, format_number, format_percent
from rhobust.records import Row
from rhobust.report.chart import colour, escape, round_above, ticks
from rhobust.report.overview import Headline, named_subjects
from rhobust.report.pictures import small, take_turns
from rhobust.report.runs import PageRecord, PageRun

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 360, 200, 42, 8, 10, 38
_APART = 34
"""Width of a bar before the axis, with its gap."""
BUDGET = 200_000
"""Characters that the galleries of a page may take together."""
BINS = 20
MOST = 12
"""Classes that are shown."""


@dataclass(frozen=True)
class Bin:
    """The share of images in a bin, and the share of all that belongs to its lighter part at the bottom."""

    low: float
    high: float
    share: float
    lighter: float = 0.0


@dataclass(frozen=True)
class ApartBar:
    """A bar before the axis, for what has no place on it."""

    name: str
    share: float


def histogram(bins: Sequence[Bin], *, run: int, title: str, x: str, top: float, apart: Sequence[ApartBar] = ()) -> str:
    """A histogram as one `<svg>` element; its description has every number.

    Args:
        bins: Bins next to each other, ascending.
        run: The run, which has a colour.
        title: What is counted.
        x: Title of the axis.
        top: The share at the upper end; that of several histograms is the same, so that they can be compared.
        apart: Bars before the first bin.
    """
    left, right, bottom = _LEFT + _APART * len(apart), _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    low, high = bins[0].low, bins[-1].high
    unit = (right - left) / (high - low)

    def y(share: float) -> float:
        return round(bottom - share / top * (bottom - _TOP), 1)

    def bar(start: float, width: float, below: float, above: float, style: str) -> str:
        if above <= below:
            return ""
        height = max(1.0, y(below) - y(above))
        return f'<rect x="{start:.1f}" y="{y(below) - height:.1f}" width="{width:.1f}" height="{height:.1f}" {style}/>'

    parts = ['<g style="stroke:var(--line,#dfe3e8);fill:var(--muted,#5b6470)">']
    for value in ticks(0.0, top, 4):
        parts.append(f'<path d="M{_LEFT} {y(value)}H{right}"/>')
        parts.append(_text(_LEFT - 6, y(value), f"{value * 100:.6g}%", 'text-anchor="end" dy=".35em"'))
    for value in ticks(low, high, 5):
        at = left + (value - low) * unit
        parts.append(f'<path d="M{at:.1f} {bottom}v4"/>')
        parts.append(_text(at, bottom + 16, f"{value:.6g}", 'text-anchor="middle"'))
    parts.append(_text((left + right) / 2, _HEIGHT - 5, x, 'text-anchor="middle" style="fill:var(--ink,#1c2127)"'))
    for place, one in enumerate(apart):
        parts.append(
            _text(_LEFT + _APART * (place + 0.42), bottom + 16, one.name, 'text-anchor="middle" font-size="10"')
        )
    parts.append("</g>")
    for place, one in enumerate(apart):
        start = _LEFT + _APART * place + 4
        parts.append(bar(start, _APART - 14, 0.0, one.share, 'style="fill:var(--muted,#5b6470)"'))
    parts.append(f'<g style="fill:{colour(run)}">')
    for one in bins:
        start, width = left + (one.low - low) * unit + 0.7, (one.high - one.low) * unit - 1.4
        parts.append(bar(start, width, 0.0, one.lighter, 'fill-opacity=".4"'))
        parts.append(bar(start, width, one.lighter, one.share, ""))
    parts.append("</g>")
    said = [f"{one.name} {one.share:.1%}" for one in apart]
    said += [f"{one.low:.3g} to {one.high:.3g}: {one.share:.1%}" for one in bins if one.share > 0]
    return (
        f'<svg class="histogram" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" font-size="12"'
        ' font-family="system-ui,-apple-system,Segoe UI,Roboto,sans-serif"'
        f' aria-label="{escape(f"{title}. {x}: " + ", ".join(said))}">{"".join(parts)}</svg>'
    )


def _text(x: float, y: float, text: str, more: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" stroke="none" {more}>{escape(text)}</text>'


@dataclass(frozen=True)
class CertifiedImage:
    """One image with its certificate."""

    index: int
    label: str
    outcome: str
    """"right", "wrong" or "abstains"."""
    selected: str
    """The class that got the most votes."""
    radius: float
    shown_radius: str
    votes: int
    of: int
    runner_up: str
    """The class with the most votes besides; "" in records that do not say."""
    runner_up_votes: int
    source: str

    @property
    def size(self) -> int:
        """Characters the picture takes."""
        return len(self.source)


@dataclass(frozen=True)
class ImageSummary:
    """What the certificates of one smoothed classifier look like, image by image."""

    run: int
    label: str
    who: str
    n: int
    radii: str
    """Histogram of the certified radii."""
    probabilities: str
    """Histogram of the lower bounds of the probability of the selected class."""
    notes: tuple[str, ...]
    kept: int
    """Images that are in the folder."""
    images: tuple[CertifiedImage, ...]


def certified_runs(runs: Sequence[PageRun]) -> list[tuple[PageRun, str, PageRecord]]:
    """The quoted certificate of each smoothed classifier, with its run and the words for it."""
    return [
        (run, who, certificate)
        for run, own in zip(runs, named_subjects(runs), strict=True)
        for subject, who in own
        if subject.sigma is not None and (certificate := subject.certificate) is not None
    ]


def image_summaries(runs: Sequence[PageRun]) -> list[ImageSummary]:
    """Histograms and a gallery for each smoothed classifier with certificates; all histograms have the same axes."""
    found = [one for one in certified_runs(runs) if all("p_lower" in row for row in one[2].record.rows)]
    if not found:
        return []
    end = round_above(max(record.largest for *_, record in found) or 1.0)
    radii = [_radius_bins(record, end) for *_, record in found]
    bounds = [_probability_bins(record) for *_, record in found]
    apart = [_apart(record) for *_, record in found]
    top = round_above(max(bar.share for bars in (*radii, *apart) for bar in bars))
    top_bound = round_above(max(one.share for bins in bounds for one in bins))
    taken = take_turns([_images(run.kept.get(record.file), record) for run, _, record in found], BUDGET)
    summaries = []
    for place, (run, who, record) in enumerate(found):
        kept = run.kept.get(record.file)
        summaries.append(
            ImageSummary(
                run=run.place,
                label=run.label,
                who=who,
                n=record.n,
                radii=histogram(
                    radii[place],
                    run=run.place,
                    title=f"Certified radii, {run.label}",
                    x="certified radius",
                    top=top,
                    apart=apart[place],
                ),
                probabilities=histogram(
                    bounds[place],
                    run=run.place,
                    title=f"Lower bounds of p_A, {run.label}",
                    x="lower bound of p_A",
                    top=top_bound,
                ),
                notes=tuple(_notes(record)),
                kept=0 if kept is None else len(kept["index"]),
                images=tuple(sorted(taken[place], key=lambda image: (image.radius, image.index))),
            )
        )
    return summaries


def outcome(row: Row) -> str:
    """How a certificate ended: "right", "wrong" or "abstains"."""
    if row.get("prediction") is None:
        return "abstains"
    return "right" if row["prediction"] == row["label"] else "wrong"


def _apart(record: PageRecord) -> tuple[ApartBar, ...]:
    """The shares of wrong classes and of abstentions."""
    ends = [outcome(row) for row in record.record.rows]
    return tuple(
        ApartBar(name, ends.count(end) / len(ends)) for name, end in (("wrong", "wrong"), ("none", "abstains"))
    )


def _radius_bins(record: PageRecord, end: float) -> list[Bin]:
    rows = record.record.rows
    radii = [row["radius"] for row in rows if outcome(row) == "right"]
    counts, edges = np.histogram(radii, bins=BINS, range=(0.0, end))
    sides = pairwise(edges.tolist())
    return [Bin(low, high, count / len(rows)) for (low, high), count in zip(sides, counts.tolist(), strict=True)]


def _probability_bins(record: PageRecord) -> list[Bin]:
    """Bins of the lower bounds; the lighter part are images whose selected class is wrong."""
    rows = record.record.rows
    bounds = [min(max(float(row["p_lower"]), 0.0), 1.0) for row in rows]
    wrong = [bound for bound, row in zip(bounds, rows, strict=True) if row.get("selected") != row["label"]]
    (counts, edges), (lighter, _) = (np.histogram(found, bins=BINS, range=(0.0, 1.0)) for found in (bounds, wrong))
    return [
        Bin(low, high, count / len(rows), below / len(rows))
        for (low, high), count, below in zip(pairwise(edges.tolist()), counts.tolist(), lighter.tolist(), strict=True)
    ]


def _notes(record: PageRecord) -> Iterator[str]:
    """What an average radius hides."""
    rows = record.record.rows
    radii = sorted((row["radius"] if outcome(row) == "right" else 0.0 for row in rows), reverse=True)
    average = sum(radii) / len(radii)
    if average > 0:
        few = next(count for count, total in enumerate(np.cumsum(radii).tolist(), start=1) if total >= sum(radii) / 2)
        yield (
            f"Average certified radius {format_number(average, 3, 'down')}; half of it comes from the"
            f" {format_percent(few / len(radii), 'nearest')}% of images with the largest radii."
        )
    if record.on_grid:
        tested = ", ".join(map(format_distance, record.listed))
        yield f"Only the radii {tested} were tested: what would hold between and beyond them is not counted."
        return
    full = sum(row["count"] == row["n"] and outcome(row) == "right" for row in rows)
    if full:
        yield (
            f"{format_percent(full / len(rows), 'nearest')}% of images got every vote: the number of noise samples"
            " limits their radii, not the network."
        )


def _images(kept: Row | None, record: PageRecord) -> Iterator[CertifiedImage]:
    """The kept images, from both ends and the middle alternately, so that a budget cuts evenly."""
    if kept is None:
        return
    classes = [str(name) for name in kept["classes"].tolist()]
    rows = {row["index"]: row for row in record.record.rows}
    places = list(range(len(kept["index"])))
    order = [place for step in (4, 2, 1) for place in places if place % step == 0 and (step == 4 or place % (2 * step))]
    for place in order:
        row = rows[int(kept["index"][place])]
        runner_up = row.get("runner_up")
        yield CertifiedImage(
            index=row["index"],
            label=_name(classes, row["label"]),
            outcome=outcome(row),
            selected=_name(classes, row["selected"]),
            radius=row["radius"],
            shown_radius=format_number(row["radius"], 3, "down"),
            votes=row["count"],
            of=row["n"],
            runner_up="" if runner_up is None else _name(classes, runner_up),
            runner_up_votes=row.get("runner_up_votes", 0),
            source=small(kept["image"][place]),
        )


def _name(classes: Sequence[str], number: int) -> str:
    return classes[number] if 0 <= number < len(classes) else str(number)


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
    """The classes with the lowest certified accuracy of any model at the page's radius; None where none has any there.

    The intervals of a column are 95% Clopper-Pearson for all its classes at once (Bonferroni): the worst of many
    classes looks worse than it is.
    """
    radius = at.radius or 0.0
    found = [one for one in certified_runs(runs) if one[2].decides(radius)]
    if all(record.largest < radius for *_, record in found):
        return None
    names: dict[int, str] = {}
    columns: list[dict[int, ClassCell]] = []
    for run, _, record in found:
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
        columns=tuple((run.place, who) for run, who, _ in found),
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
