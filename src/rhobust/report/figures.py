"""The page's figures: which lines are drawn, how they look, and what the read-out under the pointer says."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rhobust.report.chart import Axis, Chart, Point, Series, Size, draw, round_above
from rhobust.report.run import Attack, Certificate, Losses, Run, Shift
from rhobust.report.table import COSTS
from rhobust.rounding import Way, percent, rounded

WIDE, NARROW, SMALL = Size(1040, 430), Size(360, 330), Size(360, 230)

_STEPS = 120
"""Radii a certified curve is drawn at; fewer than a step in ten pixels would show."""

KINDS = {
    "certified": ("Certified (proved)", ""),
    "eot": ("EOT attack", "8 4"),
    "transfer": ("Attack on the base network, scored on the smoothed one", "10 3 2 3"),
    "base": ("Attack on the base network", "2 4"),
    "w2": ("W2, certified (proved)", ""),
    "w1": ("W1, certified (proved)", "8 4"),
    "winf": ("W∞, certified (proved)", "2 4"),
    "kumar": ("W1, Kumar et al. (proved)", "10 3 2 3"),
    "cohen": ("W∞, Cohen’s certified accuracy (proved)", "1 3"),
    "upper": ("Certified, from above (proved)", ""),
    "lower": ("Attack, from below (proved)", "8 4"),
    "guess": ("The paper’s estimate (bounds nothing)", "2 4"),
    "noise": ("One noisy vote, no shift (estimate)", ""),
    "training": ("Training", ""),
}
"""What a line is, in words, and its dashes."""


@dataclass(frozen=True)
class Figure:
    """One figure of the page: its drawings, its legend and the numbers behind the read-out."""

    name: str
    title: str
    caption: str
    wide: str
    narrow: str
    """A second drawing for a phone, where the wide one would shrink its text; empty where one drawing will do."""
    runs: tuple[int, ...]
    kinds: tuple[str, ...]
    document: dict[str, Any]


def figures(runs: Sequence[Run]) -> list[Figure]:
    """The figures there are numbers for."""
    found = [_over_radius(runs), _over_eps(runs), *_over_losses(runs), *_training(runs)]
    return [figure for figure in found if figure is not None]


def _over_radius(runs: Sequence[Run]) -> Figure | None:
    scored = [radius for run in runs for attack in run.attacks for radius in attack.accuracy]
    reached = [certificate.largest for run in runs for certificate in run.certificates]
    if not scored and not reached:
        return None
    end = max([*scored, *(r * 1.04 for r in reached)]) or 1.0
    series: list[Series] = []
    for position, run in enumerate(runs):
        series += [_certified_line(position, run, piece, end) for piece in run.certificates]
        series += [_attack_line(position, run, attack) for attack in run.attacks]
    chart = Chart(
        name="radius",
        title="Robust accuracy over radius",
        description="Certified accuracy is a proved lower limit, accuracy under attack an upper limit.",
        x=Axis("L2 radius (inputs in [0, 1])", 0.0, end),
        y=Axis("accuracy", 0.0, 1.0, percent=True),
        series=series,
    )
    caption = (
        "The truth for the smoothed classifier lies between its solid line (proved) and its dashed line"
        " (what the attack could not break). Shaded: their 95% Clopper-Pearson intervals."
    )
    return _figure(chart, caption)


def _certified_line(position: int, run: Run, certificate: Certificate, end: float) -> Series:
    marked = {0.0, *(r for r in certificate.listed if r <= end)}
    marked |= {radius for attack in run.attacks for radius in attack.accuracy if radius <= end}
    radii = sorted(marked | {round(end * step / _STEPS, 4) for step in range(_STEPS)} | {end})
    points = []
    for radius in radii:
        counted = certificate.accuracy(radius)
        points.append(Point(radius, counted.value, counted.low, counted.high, marked=radius in marked))
    return Series(f"{run.label}, certified", position, "certified", points, held=True)


def _attack_line(position: int, run: Run, attack: Attack) -> Series:
    on_smoothed = "eot" if attack.name.startswith("EOT") else "transfer"
    kind = on_smoothed if attack.scored == "smoothed" else "base"
    points = [Point(radius, c.value, c.low, c.high) for radius, c in attack.accuracy.items()]
    label = f"{run.label}, {attack.name}{'' if kind == 'eot' else f', {attack.scored}'}"
    # The base network's bands would cover those of the classifier the certificate is about.
    return Series(label, position, kind, points, dash=KINDS[kind][1], hollow=True, banded=kind != "base")


def _over_eps(runs: Sequence[Run]) -> Figure | None:
    shifts = [(position, run, shift) for position, run in enumerate(runs) for shift in run.shifts]
    end = max((eps for _, _, shift in shifts for eps, _ in shift.curve), default=0.0)
    if end == 0.0:
        return None
    series: list[Series] = []
    for position, run, shift in shifts:
        series += _shift_lines(position, run, shift)
    chart = Chart(
        name="shift",
        title="Certified accuracy under distribution shift",
        description="The accuracy proved for every distribution within a transport distance eps of the data's.",
        x=Axis("transport distance eps of the shift", 0.0, end * 1.04),
        y=Axis("accuracy", 0.0, 1.0, percent=True),
        series=series,
    )
    caption = (
        "Proved for all shifts up to eps at once; the open marker at 0 is the accuracy measured under noise alone"
        " (an estimate). Between two computed points the line holds the value of the larger eps, which is proved"
        " there too."
    )
    return _figure(chart, caption)


def _shift_lines(position: int, run: Run, shift: Shift) -> list[Series]:
    kind = shift.cost if shift.cost in COSTS else "w2"
    points = [Point(eps, value) for eps, value in shift.curve]
    if points[0].x > 0:
        # A shift of at most eps includes no shift: the first value holds from 0 on.
        points.insert(0, Point(0.0, points[0].y, marked=False))
    name = COSTS.get(shift.cost, shift.cost)
    whose = "" if shift.about_one_vote else f", {shift.classifier}"
    lines = [Series(f"{run.label}, {name} certified{whose}", position, kind, points, dash=KINDS[kind][1], held=True)]
    for other in shift.beside:
        kind = other.cost if other.name == "ours" else other.name
        if kind in KINDS:
            beside = [Point(eps, value) for eps, value in other.curve]
            label = f"{run.label}, {KINDS[kind][0]}"
            lines.append(Series(label, position, kind, beside, dash=KINDS[kind][1], held=True))
    lines.append(Series(f"{run.label}, no shift", position, "noise", [Point(0.0, shift.under_noise)], hollow=True))
    return lines


def _over_losses(runs: Sequence[Run]) -> list[Figure]:
    """One figure for each loss that was bracketed: losses clipped at different bounds are different losses."""
    found: dict[str, list[tuple[int, Run, Losses]]] = {}
    for position, run in enumerate(runs):
        for losses in run.losses:
            found.setdefault(losses.loss, []).append((position, run, losses))
    drawn = []
    for number, (loss, pieces) in enumerate(found.items()):
        series = [line for position, run, losses in pieces for line in _loss_lines(position, run, losses)]
        every = [point for line in series for point in line.points]
        end = max(point.x for point in every)
        if end == 0.0:
            continue
        chart = Chart(
            name=f"losses-{number}",
            title=f"Worst {loss} under distribution shift",
            description="The worst mean loss of one noisy answer over all distributions within W2 distance eps.",
            x=Axis("W2 distance eps of the shift", 0.0, end * 1.04),
            y=Axis(f"mean {loss}", 0.0, round_above(max(point.y for point in every))),
            series=series,
        )
        caption = (
            "The truth lies between the solid line and the dashed markers, both proved for all eps at once. The dotted"
            " line is the paper’s γρ + mean φ with φ found by ascent; it may lie on either side of the truth."
        )
        drawn.append(_figure(chart, caption))
    return drawn


def _loss_lines(position: int, run: Run, losses: Losses) -> list[Series]:
    parts = (("upper", losses.certified), ("lower", losses.lower), ("guess", losses.estimate))
    return [
        Series(
            f"{run.label}, {KINDS[kind][0]}",
            position,
            kind,
            [Point(eps, value) for eps, value in curve],
            dash=KINDS[kind][1],
            hollow=kind != "upper",
            held=kind == "upper",
        )
        for kind, curve in parts
        if curve
    ]


def _training(runs: Sequence[Run]) -> list[Figure]:
    found = []
    for key, title, caption in (
        ("loss", "Training loss", "The method’s own objective: not comparable between methods."),
        ("accuracy", "Accuracy in training", "Without noise or attack, on images held out or else on training images."),
        ("distance_rms", "Inner distance", "Root mean square distance the inner maximisation moved an input."),
    ):
        series = []
        for position, run in enumerate(runs):
            values = [(row["epoch"], row.get(key)) for row in run.epochs]
            points = [
                Point(float(epoch), float(value), marked=False)
                for epoch, value in values
                if isinstance(value, int | float) and abs(value) < 1e12
            ]
            # A method without an inner maximisation moves nothing: a line at zero would say nothing.
            if any(point.y for point in points):
                series.append(Series(run.label, position, "training", points))
        if not series:
            continue
        every = [point for line in series for point in line.points]
        high = 1.0 if key == "accuracy" else round_above(max(1e-6, *(point.y for point in every)))
        last = max(max(p.x for p in every), 2.0)
        chart = Chart(
            name=f"training-{key}",
            title=title,
            description=caption,
            x=Axis("epoch", 1.0, last),
            y=Axis(title.lower(), 0.0, high, percent=key == "accuracy"),
            series=series,
        )
        found.append(_figure(chart, caption, size=SMALL, narrow=None))
    return found


def _figure(chart: Chart, caption: str, size: Size = WIDE, narrow: Size | None = NARROW) -> Figure:
    return Figure(
        name=chart.name,
        title=chart.title,
        caption=caption,
        wide=draw(chart, size),
        narrow=draw(chart, narrow) if narrow else "",
        runs=tuple(sorted({series.run for series in chart.series})),
        kinds=tuple(kind for kind in KINDS if any(series.kind == kind for series in chart.series)),
        document={
            "x": chart.x.title,
            "percent": chart.y.percent,
            "series": [_read_out(series, percent_axis=chart.y.percent) for series in chart.series],
        },
    )


def _standing(series: Series) -> tuple[str, Way]:
    """Which side of the truth a line's values are on, and the safe way to round them."""
    if series.kind == "upper":
        return "≤", "up"
    if series.kind == "lower" or series.held:
        return "≥", "down"
    return "≤" if series.kind in ("eot", "transfer", "base") else "", "nearest"


def _read_out(series: Series, *, percent_axis: bool) -> dict[str, Any]:
    """The series as the read-out shows it: already rounded, so that the script never rounds."""
    sign, way = _standing(series)
    # Robust accuracy falls with the radius: a lower limit further out and an upper limit further in both hold here. A
    # worst loss rises, and it is the other way round.
    rule = "next" if series.held else "last" if sign else "exact"

    def shown(point: Point) -> list[Any]:
        if not percent_axis:
            return [point.x, rounded(point.y, 4, way)]
        text = f"{percent(point.y, way)}%"
        if point.low is None or point.high is None:
            return [point.x, text]
        return [point.x, text, f"{percent(point.low, 'down')}–{percent(point.high, 'up')}"]

    return {
        "label": series.label,
        "run": series.run,
        "kind": series.kind,
        "sign": sign,
        "rule": rule,
        "points": [shown(point) for point in series.points],
    }
