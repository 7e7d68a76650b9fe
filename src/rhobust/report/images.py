"""Image by image: how radii and probabilities are distributed, and a gallery of certified images."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rhobust.formatting import format_number, format_percent
from rhobust.records import Row
from rhobust.report.bars import ApartBar, Bin, histogram
from rhobust.report.chart import round_above
from rhobust.report.overview import subjects
from rhobust.report.runs import PageRecord, PageRun
from rhobust.report.thumbnails import small, take_turns

BUDGET = 200_000
"""Characters that the galleries of a page may take together."""
BINS = 20


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


def certified_runs(runs: Sequence[PageRun]) -> list[tuple[int, PageRun, str, PageRecord]]:
    """The quoted certificate of each smoothed classifier, with its run's place and the words for it."""
    return [
        (position, run, subject.who, certificate)
        for position, run in enumerate(runs)
        for subject in subjects(run)
        if subject.sigma is not None and (certificate := subject.certificate) is not None
    ]


def image_summaries(runs: Sequence[PageRun]) -> list[ImageSummary]:
    """Histograms and a gallery for each smoothed classifier with certificates; all histograms have the same axes."""
    found = [one for one in certified_runs(runs) if all("p_lower" in row for row in one[3].record.rows)]
    if not found:
        return []
    end = round_above(max(max(record.largest for *_, record in found), 1e-6))
    tables = [(_radius_bins(record, end), _probability_bins(record)) for *_, record in found]
    tops = [
        round_above(max(share for bars in column for share in bars))
        for column in zip(
            *(
                ([*(one.share for one in radii), *_apart(record)], [one.share for one in probabilities])
                for (radii, probabilities), (*_, record) in zip(tables, found, strict=True)
            ),
            strict=True,
        )
    ]
    waiting = [_images(run.kept.get(record.file), record) for _, run, _, record in found]
    taken = take_turns(waiting, BUDGET)
    summaries = []
    for (position, run, who, record), (radii, probabilities), images in zip(found, tables, taken, strict=True):
        wrong, abstains = _apart(record)
        apart = (ApartBar("wrong", wrong), ApartBar("none", abstains))
        kept = run.kept.get(record.file)
        summaries.append(
            ImageSummary(
                run=position,
                label=run.label,
                who=who,
                n=record.n,
                radii=histogram(
                    radii,
                    run=position,
                    title=f"Certified radii, {run.label}",
                    x="certified radius",
                    top=tops[0],
                    apart=apart,
                ),
                probabilities=histogram(
                    probabilities,
                    run=position,
                    title=f"Lower bounds of p_A, {run.label}",
                    x="lower bound of p_A",
                    top=tops[1],
                ),
                notes=tuple(_notes(record)),
                kept=0 if kept is None else len(kept["index"]),
                images=tuple(sorted(images, key=lambda image: (image.radius, image.index))),
            )
        )
    return summaries


def outcome(row: Row) -> str:
    """How a certificate ended: "right", "wrong" or "abstains"."""
    if row.get("prediction") is None:
        return "abstains"
    return "right" if row["prediction"] == row["label"] else "wrong"


def _apart(record: PageRecord) -> tuple[float, float]:
    """The shares of wrong classes and of abstentions."""
    ends = [outcome(row) for row in record.record.rows]
    return ends.count("wrong") / len(ends), ends.count("abstains") / len(ends)


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
    full = sum(row["count"] == row["n"] and outcome(row) == "right" for row in rows)
    if full and not record.on_grid:
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
