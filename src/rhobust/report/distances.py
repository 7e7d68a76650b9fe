"""What distances look like: the user's own images at the radii and shifts that the page quotes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rhobust.formatting import format_distance, format_number, format_percent, format_setting
from rhobust.measurements import AFTER, BASE_AFTER, CERTIFIED_AFTER, CHANGE, Measurement
from rhobust.report.overview import Headline
from rhobust.report.pictures import faithful, shown_attack
from rhobust.report.runs import PageRecord, PageRun, records_of

BUDGET = 250_000
"""Characters that the pictures of corruptions may take; with more, fewer severities are shown."""
LENGTHS = 5
"""Lengths that an attacked image is shown at."""
NEAR = 1.6
"""Two distances whose ratio is below this are about the same."""


@dataclass(frozen=True)
class PerturbedImage:
    """An image after a change."""

    source: str
    title: str
    detail: str
    alt: str


@dataclass(frozen=True)
class PerturbedStrip:
    """One image, changed more and more."""

    data: str
    note: str
    images: tuple[PerturbedImage, ...]


@dataclass(frozen=True)
class AccuracyAfter:
    """What a corruption leaves of one model's accuracy."""

    run: int
    label: str
    shown: str
    """Measured: of one noisy prediction, or of the base network where there is no noise."""
    certified: str
    """What is proved, where that is anything."""


@dataclass(frozen=True)
class CorruptedImage:
    """One corruption at one severity: the picture, the shift of the data, and what accuracy is left."""

    corruption: str
    severity: int
    source: str
    w2: float
    shown_w2: str
    shown_l2: str
    within: bool
    """Whether the page quotes a certificate for shifts of this size."""
    accuracies: tuple[AccuracyAfter, ...]


@dataclass(frozen=True)
class CorruptionTable:
    """The corruptions of one data set, one row each, over severities."""

    data: str
    n: int
    index: int
    original: str
    severities: tuple[int, ...]
    rows: tuple[tuple[str, tuple[CorruptedImage | None, ...]], ...]
    comparison: str
    """The page's shift compared with these, in one sentence."""
    reach: str
    """The largest shift with a certificate on the page; "" if no corruption is that small."""


@dataclass(frozen=True)
class Distances:
    """Everything that shows distances."""

    strips: tuple[PerturbedStrip, ...]
    tables: tuple[CorruptionTable, ...]


def distances(runs: Sequence[PageRun], at: Headline) -> Distances | None:
    """Strips of attacked images and tables of corruptions, one per data set."""
    named = list(dict.fromkeys(record.data for run in runs for record in run.records if record.file in run.kept))
    strips = [strip for data in named if (strip := _attacked_strip(runs, data, at)) is not None]
    tables = [table for data in named if (table := _corruption_table(runs, data, at)) is not None]
    if len(named) == 1:
        # Only where there are several is it worth a word which data these are.
        strips, tables = [replace(one, data="") for one in strips], [replace(one, data="") for one in tables]
    return Distances(tuple(strips), tuple(tables)) if strips or tables else None


def _attacked_strip(runs: Sequence[PageRun], data: str, at: Headline) -> PerturbedStrip | None:
    """One adversarial change, scaled to the page's radii and to its shift, and the same image under noise."""
    found = [
        (run, attack)
        for run in runs
        if (attack := shown_attack(run)) is not None and attack.norm == "l2" and attack.data == data
    ]
    lengths = _lengths(runs, at)
    if not found or not lengths:
        return None
    run, attack = max(found, key=lambda one: one[1].majority)
    kept = run.kept[attack.file]
    place = len(kept["index"]) // 2
    before = kept["before"][place] / 255
    change = kept["after"][place].astype(np.float64) - before
    change /= max(float(np.linalg.norm(change)), 1e-9)
    names = [str(name) for name in kept["classes"].tolist()]
    label, taken = names[kept["label"][place]], names[kept["prediction"][place]]
    images = [PerturbedImage(faithful(kept["before"][place]), "unchanged", label, f"The image unchanged: {label}")]
    for length in lengths:
        roles = [
            word
            for word, value in (("this page’s radius", at.radius), ("this page’s W2 shift", at.eps))
            if value == length
        ]
        shown = format_distance(length)
        images.append(
            PerturbedImage(
                _picture(before + length * change),
                f"L2 {shown}",
                " and ".join(roles),
                f"The image perturbed by {shown}",
            )
        )
    rng = np.random.default_rng(0)
    for sigma in sorted({sigma for one in runs for sigma in one.sigmas})[:2]:
        noise = sigma * rng.standard_normal(before.shape)
        size = format_number(float(np.linalg.norm(noise)), 2, "nearest")
        title = f"noise σ {format_setting(sigma)}"
        images.append(
            PerturbedImage(
                _picture(before + noise), title, f"L2 {size}", f"The image under {title}, perturbed by {size}"
            )
        )
    broken = format_distance(float(kept["radius"][place]))
    note = (
        f"Example {int(kept['index'][place])} and what {attack.attack_name.split(',')[0]} changed of it against"
        f" {run.label}, scaled to each length; the attack itself has it taken for {taken} at radius {broken}. The"
        " noise that a smoothed classifier adds is far longer, but its direction is random; a certificate speaks about"
        " every direction, also the worst one."
    )
    return PerturbedStrip(data, note, tuple(images))


def _lengths(runs: Sequence[PageRun], at: Headline) -> list[float]:
    """The page's radius and eps, and other radii of its records, ascending; at most `LENGTHS`."""
    quoted = {value for value in (at.radius, at.eps) if value}
    listed = {radius for run in runs for record in run.of("certify") for radius in record.listed if radius > 0}
    listed |= {r for run in runs for a in run.of("attack") if a.norm == "l2" for r in a.accuracy if r > 0}
    others = sorted(listed - quoted)
    step = max(1, math.ceil(len(others) / (LENGTHS - len(quoted))))
    return sorted(quoted | set(others[::-step][: LENGTHS - len(quoted)]))


def _picture(image: np.ndarray) -> str:
    return faithful(np.rint(np.clip(image, 0.0, 1.0) * 255).astype(np.uint8))


def _corruption_table(runs: Sequence[PageRun], data: str, at: Headline) -> CorruptionTable | None:
    found = [one for one in records_of(runs, "corruptions") if one[1].data == data]
    shown = next(((run, record) for run, record in found if record.file in run.kept), None)
    if shown is None:
        return None
    run, record = shown
    kept = run.kept[record.file]
    reach = _reach(runs, data)
    sizes = {_cell(one): one for one in record.curve(CHANGE)}
    lengths: dict[tuple[str, int], list[float]] = {}
    for row in record.record.rows:
        lengths.setdefault((row["corruption"], row["severity"]), []).append(row["distance"])
    cells: dict[tuple[str, int], CorruptedImage] = {}
    for place, name in enumerate(zip(kept["corruption"].tolist(), kept["severity"].tolist(), strict=True)):
        if name not in sizes:
            continue
        w2, l2 = sizes[name].value, sum(lengths[name]) / len(lengths[name])
        cells[name] = CorruptedImage(
            *name,
            source=faithful(kept["after"][place]),
            w2=w2,
            shown_w2=_short(w2),
            shown_l2=_short(l2),
            within=reach is not None and w2 <= reach,
            accuracies=tuple(_accuracies(name, found)),
        )
    severities = sorted({severity for _, severity in cells})
    if sum(len(cell.source) for cell in cells.values()) > BUDGET:
        severities = severities[::2]
    return CorruptionTable(
        data=data,
        n=record.n,
        index=int(kept["index"][0]),
        original=faithful(kept["before"][0]),
        severities=tuple(severities),
        rows=tuple(
            (name.replace("-", " "), tuple(cells.get((name, severity)) for severity in severities))
            for name in dict.fromkeys(name for name, _ in cells)
        ),
        comparison="" if at.eps is None else _comparison(at.eps, list(cells.values())),
        reach=format_distance(reach) if reach is not None and any(cell.within for cell in cells.values()) else "",
    )


def _cell(one: Measurement) -> tuple[str, int]:
    return one.detail["corruption"], one.detail["severity"]


def _short(value: float) -> str:
    return format_number(value, 2 if value < 10 else 1, "nearest")


def _reach(runs: Sequence[PageRun], data: str) -> float | None:
    """The largest W2 shift at which any model has something certified."""
    return max(
        (
            eps
            for *_, record in records_of(runs, "certify-shift")
            for shift in record.shifts
            if shift.cost == "w2" and record.data in ("", data)
            for eps, value in shift.values.items()
            if value > 0 and eps > 0
        ),
        default=None,
    )


def _accuracies(name: tuple[str, int], found: Sequence[tuple[PageRun, PageRecord]]) -> list[AccuracyAfter]:
    """What each model's accuracy is after a corruption."""
    lines = []
    for run, record in found:
        numbers = {
            quantity: one
            for quantity in (AFTER, BASE_AFTER, CERTIFIED_AFTER)
            for one in record.curve(quantity)
            if _cell(one) == name
        }
        measured, proved = numbers.get(AFTER, numbers.get(BASE_AFTER)), numbers.get(CERTIFIED_AFTER)
        if measured is None:
            continue
        certified = f"≥ {format_percent(proved.value, 'down')}%" if proved is not None and proved.value > 0 else ""
        lines.append(AccuracyAfter(run.place, run.label, f"{format_percent(measured.value, 'nearest')}%", certified))
    return lines


def _comparison(eps: float, cells: Sequence[CorruptedImage]) -> str:
    """How the page's shift compares with corruptions, in one sentence; the distances are estimates."""
    shifted = [cell for cell in cells if cell.w2 > 0]
    if not shifted:
        return ""
    nearest = min(shifted, key=lambda cell: abs(math.log(cell.w2 / eps)))
    quoted = f"The shift that this page quotes, W2 {format_distance(eps)}, is"
    if eps / NEAR <= nearest.w2 <= NEAR * eps:
        return f"{quoted} about that of {_named(nearest)}."
    below = max((cell for cell in shifted if cell.w2 < eps), key=lambda cell: cell.w2, default=None)
    above = min((cell for cell in shifted if cell.w2 > eps), key=lambda cell: cell.w2, default=None)
    if below is None or above is None:
        side = "smaller" if below is None else "larger"
        return f"{quoted} {side} than all of them; the next is {_named(nearest)}."
    return f"{quoted} between that of {_named(below)} and that of {_named(above)}."


def _named(cell: CorruptedImage) -> str:
    """A corruption in words, with how far it shifts images."""
    return f"{cell.corruption.replace('-', ' ')} at severity {cell.severity} ({cell.shown_w2})"
