"""The page's figures: which lines are drawn, how they look, and what the read-out under the pointer says."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rhobust.measurements import (
    SHIFT_ATTACK,
    SHIFT_LOSS,
    UNDER_NOISE,
    WORST_CERTIFIED,
    WORST_ESTIMATE,
    WORST_LOWER,
    Measurement,
    certified,
)
from rhobust.report.chart import Axis, Chart, DrawingSize, Point, Series, draw, read_out, round_above
from rhobust.report.runs import PageRecord, PageRun, records_of

WIDE, NARROW, SMALL = DrawingSize(1040, 430), DrawingSize(360, 330), DrawingSize(360, 230)

CROWD = 4
"""With more runs than this, bands and side lines start switched off: they would cover what matters."""

_STEPS = 120
"""Radii a certified curve is drawn at; fewer than a step in ten pixels would show."""

_DASHES = ("", "8 4", "2 4", "10 3 2 3", "5 2 1 2 1 2", "14 4", "1 3", "6 2 6 6")

_ATTACKS = {
    "eot": "White-box adaptive attack (EOT-PGD)",
    "autoattack": "AutoAttack",
    "blind": "Attack without noise, smoothed prediction",
    "plain": "Attack on a network without noise",
    "base": "Attack on the base network",
    "paper": "The paper’s protocol",
    "transfer": "Transfer attack",
}
"""The kinds of attack lines, in the order of the legend."""


@dataclass(frozen=True)
class LineKind:
    """What some lines of a figure have in common: a name, dashes, and whether they are switched on at first."""

    name: str
    words: str
    dash: str
    on: bool = True


@dataclass(frozen=True)
class ChartFigure:
    """One figure of the page: its drawings, its legend and the numbers behind the read-out."""

    name: str
    title: str
    nav: str
    """Its name in the list of sections."""
    caption: str
    wide: str
    narrow: str
    """A second drawing for a phone, where the wide one would shrink its text; empty where one drawing will do."""
    runs: tuple[int, ...]
    kinds: tuple[LineKind, ...]
    bands: bool
    """Whether any line has a band."""
    crowded: bool
    """Whether bands start switched off."""
    slider: str
    """What a slider reads certified values at, such as "eps"; empty where nothing is certified."""
    document: dict[str, Any]


def figures(runs: Sequence[PageRun]) -> list[ChartFigure]:
    """The figures there are numbers for."""
    found = [
        _over_radius(runs, "l2"),
        _over_radius(runs, "linf"),
        _over_eps(runs),
        *_over_losses(runs),
        *_training(runs),
    ]
    return [figure for figure in found if figure is not None]


def _over_radius(runs: Sequence[PageRun], norm: str) -> ChartFigure | None:
    l2 = norm == "l2"
    attacks = [one for one in records_of(runs, "attack") if one[1].norm == norm]
    certificates = records_of(runs, "certify") if l2 else []
    ends = [radius for _, attack in attacks for radius in attack.accuracy]
    ends += [certificate.largest * 1.04 for _, certificate in certificates]
    if not ends:
        return None
    end = max(ends) or 1.0
    lines = [_certified_line(*certificate, end) for certificate in certificates]
    lines += _something_on([_attack_line(*attack, len(runs)) for attack in attacks])
    chart = _chart(
        name="radius" if l2 else "radius-linf",
        title="Robust accuracy over radius" if l2 else "Robust accuracy over L∞ radius",
        description="Certified accuracy is a proved lower bound, robust accuracy under attack an upper bound.",
        x=Axis("L2 radius (inputs in [0, 1])" if l2 else "L∞ radius (inputs in [0, 1])", 0.0, end),
        y=Axis("accuracy", 0.0, 1.0, percent=True),
        lines=lines,
    )
    caption = "Shaded: 95% Clopper-Pearson intervals of what was measured." if attacks else ""
    if certificates and attacks:
        caption = (
            "The robust accuracy of the smoothed classifier is between its staircase (proved) and the line of an attack"
            f" on it (an upper bound). {caption}"
        )
    elif certificates:
        caption = "The robust accuracy of the smoothed classifier is at least that of its staircase (proved)."
    if len({line.n for line in lines}) > 1:
        caption += " Lines over different images (n) may cross."
    crowded = len(runs) > CROWD
    return _figure(chart, caption, nav="Radius" if l2 else "L∞ radius", at="radius", crowded=crowded)


def _certified_line(run: PageRun, certificate: PageRecord, end: float) -> Series:
    marked = {0.0, *(r for r in certificate.listed if r <= end)}
    marked |= {r for attack in run.of("attack") if attack.norm == "l2" for r in attack.accuracy if r <= end}
    radii = sorted(marked | {round(end * step / _STEPS, 4) for step in range(_STEPS)} | {end})
    points = [
        Point(one.at, one.value, one.low, one.high, marked=one.at in marked and one.value > 0)
        for one in certified(certificate.record, radii)
        if one.at is not None and one.low is not None
    ]
    finer = [one for one in run.of("certify") if not one.on_grid and run.part(one) == run.part(certificate)]
    rough = certificate.on_grid and bool(finer)
    # A grid falls to zero beyond its last radius: next to a certificate that knows every radius it only hides it.
    # Over more images it is the one that the page quotes.
    hidden = rough and max(one.n for one in finer) >= certificate.n
    kind, words = ("certified-grid", "Certified at chosen radii") if rough else ("certified", "Certified")
    words = f"{words} (proved)"
    return _series(run, certificate, "certified", kind, words, points, sign="≥", held=True, on=not hidden)


def _series(
    run: PageRun, record: PageRecord, what: str, kind: str, words: str, points: Sequence[Point], **look: Any
) -> Series:
    """A line about one record of a run, named by what it shows."""
    label, part = f"{run.label}, {what}", run.part(record)
    return Series(label, run.place, kind, words, points, warnings=record.warnings, part=part, n=record.n, **look)


def attack_kind(run: PageRun, attack: PageRecord) -> str:
    """Which kind of line an attack is."""
    if attack.transferred:
        return "transfer"
    if attack.attack_kind == "paper":
        return "paper"
    if attack.predictor == "base":
        return "base" if run.sigmas else "plain"
    return attack.attack_kind if attack.attack_kind in _ATTACKS else "blind"


def _attack_line(run: PageRun, attack: PageRecord, runs: int) -> Series:
    kind = attack_kind(run, attack)
    points = [Point(radius, c.value, c.low, c.high) for radius, c in attack.accuracy.items()]
    on = kind in ("eot", "autoattack", "plain") or (kind == "base" and runs <= CROWD)
    what = f"{attack.attack_name}, {attack.predictor_name}"
    return _series(run, attack, what, kind, _ATTACKS[kind], points, sign="≤", hollow=True, on=on)


def _something_on(lines: Sequence[Series]) -> list[Series]:
    """The lines of attacks; of a run that would show none of its own the first kind of the legend is switched on."""
    shown = {line.run for line in lines if line.on}
    first: dict[int, str] = {}
    for kind in _ATTACKS:
        for line in lines:
            if line.kind == kind and line.run not in shown:
                first.setdefault(line.run, kind)
    return [replace(line, on=True) if first.get(line.run) == line.kind else line for line in lines]


def _over_eps(runs: Sequence[PageRun]) -> ChartFigure | None:
    records, attacks = records_of(runs, "certify-shift"), records_of(runs, "attack-shift")
    sizes = [one.at or 0.0 for _, record in records for shift in record.shifts for one in shift.points]
    sizes += [one.at or 0.0 for _, record in attacks for one in record.curve(SHIFT_ATTACK)]
    end = max(sizes, default=0.0)
    if end == 0.0:
        return None
    lines = [line for one in records for line in _shift_lines(*one)]
    # A curve that another certificate has of its own need not be drawn again from the samples of this one.
    own = {(line.run, line.name) for line in lines if line.on}
    lines = [line for line in lines if line.on or (line.run, line.name) not in own]
    lines.sort(key=lambda line: not line.kind.startswith("shift W2"))
    chart = _chart(
        name="shift",
        title="Certified accuracy under distribution shift",
        description="The accuracy proved for every distribution within a transport distance eps of the data's.",
        x=Axis("transport distance eps of the shift", 0.0, end * 1.04),
        y=Axis("accuracy", 0.0, 1.0, percent=True),
        lines=lines + [_shift_attack_line(*one) for one in attacks],
    )
    caption = (
        "Proved for all shifts up to eps at once; the open marker at 0 was measured under noise alone (an estimate)."
        " Between two computed points the line holds the value of the larger eps, which is proved there too."
    )
    if attacks:
        caption += (
            " The attack spends one W2 budget over the images: no certificate about these images can be above its"
            " markers (an estimate, with 95% intervals; a stronger attack may leave less)."
        )
    return _figure(chart, caption, nav="Shift", at="eps")


def _shift_lines(run: PageRun, record: PageRecord) -> Iterator[Series]:
    for shift in record.shifts:
        points = _points(shift.points)
        if points[0].x > 0:
            # A shift of at most eps includes no shift: the first value holds from 0 on.
            points.insert(0, Point(0.0, points[0].y, marked=False))
        kind, words = f"shift {shift.title}", f"{shift.title} (proved)"
        yield _series(run, record, shift.title, kind, words, points, sign="≥", held=True, on=not shift.baseline)
    words = "One noisy prediction, no shift (estimate)"
    start = [Point(0.0, one.value) for one in record.curve(UNDER_NOISE)]
    yield _series(run, record, "no shift", "noise", words, start, hollow=True)


def _shift_attack_line(run: PageRun, record: PageRecord) -> Series:
    votes = record.settings.get("votes")
    words = f"W2 attack, {'one noisy vote' if votes == 1 else f'{votes} noisy votes'} (upper bound)"
    points = [Point(one.at or 0.0, one.value, one.low, one.high) for one in record.curve(SHIFT_ATTACK)]
    return _series(run, record, words, f"shift-attack {votes}", words, points, sign="≤", hollow=True)


def _points(curve: Sequence[Measurement]) -> list[Point]:
    return [Point(one.at or 0.0, one.value) for one in curve]


def _over_losses(runs: Sequence[PageRun]) -> Iterator[ChartFigure]:
    """One figure for each loss that was bracketed: losses clipped at different bounds are different losses."""
    found: dict[tuple[str, object], list[Series]] = {}
    for run, losses in records_of(runs, "losses"):
        found.setdefault((losses.loss, losses.settings.get("bound")), []).extend(_loss_lines(run, losses))
    for number, ((loss, _), lines) in enumerate(found.items()):
        every = [point for line in lines for point in line.points]
        end = max((point.x for point in every), default=0.0)
        if end == 0.0:
            continue
        chart = _chart(
            name=f"losses-{number}",
            title=f"Worst {loss} under distribution shift",
            description="The worst mean loss of one noisy prediction over all distributions within W2 distance eps.",
            x=Axis("W2 distance eps of the shift", 0.0, end * 1.04),
            y=Axis(f"mean {loss}", 0.0, round_above(max(1e-6, *(point.y for point in every)))),
            lines=lines,
        )
        caption = "Proved from above for all eps at once; between two points the line holds the larger value."
        if any(line.kind == "lower" for line in lines):
            caption = (
                "The truth is between the staircase and the markers of the attack, both proved for all eps at once."
                " The paper’s estimate, γρ + mean φ with φ found by ascent, may be on either side of the truth."
            )
        yield _figure(chart, caption, nav=f"Worst {loss.partition(' ')[0]}", at="eps")


def _loss_lines(run: PageRun, losses: PageRecord) -> Iterator[Series]:
    for kind, words, sign, curve in (
        ("upper", "Certified, from above (proved)", "≤", losses.curve(WORST_CERTIFIED, SHIFT_LOSS)),
        ("lower", "Attack, from below (proved)", "≥", losses.curve(WORST_LOWER)),
        ("guess", "The paper’s estimate (bounds nothing)", "", losses.curve(WORST_ESTIMATE)),
    ):
        if curve:
            held = kind == "upper"
            yield _series(run, losses, words, kind, words, _points(curve), sign=sign, hollow=not held, held=held)


def _training(runs: Sequence[PageRun]) -> list[ChartFigure]:
    found = []
    for key, title, caption in (
        ("loss", "Training loss", "The method’s own objective: not comparable between methods."),
        ("accuracy", "Accuracy in training", "Without noise or attack, on images held out or else on training images."),
        ("distance_rms", "Inner distance", "Root mean square distance of the inner maximisation’s perturbations."),
    ):
        lines = []
        for run in runs:
            values = [(row["epoch"], row.get(key)) for row in run.epochs]
            points = [
                Point(float(epoch), float(value), marked=False)
                for epoch, value in values
                if isinstance(value, int | float) and abs(value) < 1e12
            ]
            # A method without an inner maximisation moves nothing: a line at zero would say nothing.
            if len(points) > 1 and any(point.y for point in points):
                lines.append(Series(run.label, run.place, "training", "Training", points))
        if not lines:
            continue
        every = [point for line in lines for point in line.points]
        high = 1.0 if key == "accuracy" else round_above(max(1e-6, *(point.y for point in every)))
        chart = _chart(
            name=f"training-{key}",
            title=title,
            description=caption,
            x=Axis("epoch", 1.0, max(max(p.x for p in every), 2.0)),
            y=Axis(title.lower(), 0.0, high, percent=key == "accuracy"),
            lines=lines,
        )
        found.append(_figure(chart, caption, nav="Training", at="epoch", size=SMALL, narrow=None))
    return found


def _kinds(lines: Sequence[Series]) -> dict[str, LineKind]:
    """The kinds of a figure's lines in the order they come, each with its own dashes; a kind is on if any line is."""
    order = {name: place for place, name in enumerate(("certified", "certified-grid", *_ATTACKS))}
    found: dict[str, LineKind] = {}
    solid = 0
    for line in sorted(lines, key=lambda line: order.get(line.kind, len(order))):
        if line.kind not in found:
            dash = "" if line.kind == "noise" else _DASHES[solid % len(_DASHES)]
            solid += line.kind != "noise"
            on = any(other.on for other in lines if other.kind == line.kind)
            found[line.kind] = LineKind(line.kind, line.words, dash, on)
    return found


def _chart(name: str, title: str, description: str, x: Axis, y: Axis, lines: Sequence[Series]) -> Chart:
    """The chart of some lines, each with the dashes of its kind and on or off with it."""
    kinds = _kinds(lines)
    series = [replace(line, dash=kinds[line.kind].dash, on=kinds[line.kind].on) for line in lines]
    return Chart(name, title, description, x, y, series)


def _figure(
    chart: Chart,
    caption: str,
    *,
    nav: str,
    at: str,
    size: DrawingSize = WIDE,
    narrow: DrawingSize | None = NARROW,
    crowded: bool = False,
) -> ChartFigure:
    lines = chart.series
    return ChartFigure(
        name=chart.name,
        title=chart.title,
        nav=nav,
        caption=caption,
        wide=draw(chart, size),
        narrow=draw(chart, narrow, keyed=False) if narrow else "",
        runs=tuple(sorted({line.run for line in lines})),
        kinds=tuple(_kinds(lines).values()),
        bands=any(not line.held and len(line.points) > 1 and line.points[0].low is not None for line in lines),
        crowded=crowded,
        slider=at if any(line.held for line in lines) else "",
        document={"at": at, "series": [read_out(line, in_percent=chart.y.percent) for line in lines]},
    )
