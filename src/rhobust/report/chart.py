"""Line charts as static SVG, drawn by hand: they show without a script and follow the page's theme.

Every colour is a CSS variable with the light theme's value as fallback, so a chart saved on its own keeps its colours.
"""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rhobust.formatting import Direction, format_number, format_percent

COLOURS = ("#0072b2", "#d55e00", "#008a64", "#b3508a", "#a87400", "#3d8fc4", "#4a4a4a", "#7d7200", "#6a51a3", "#8c4a2f")
"""Okabe and Ito's palette, the pale ones darkened until a line on white has a contrast of 3."""

_MARKERS = (
    "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "m-3.6-3.6h7.2v7.2h-7.2z",
    "m0-4.8l4.6 8.2h-9.2z",
    "m0-5.2l5.2 5.2l-5.2 5.2l-5.2-5.2z",
    "m0 4.8l4.6-8.2h-9.2z",
    "m-1.6-4.8h3.2v3.2h3.2v3.2h-3.2v3.2h-3.2v-3.2h-3.2v-3.2h3.2z",
    "m0-5l4.8 3.5l-1.8 5.6h-6l-1.8-5.6z",
)
"""Outlines relative to the marker's place, so that all markers of a line are one path."""


@dataclass(frozen=True)
class Point:
    """One value of a series, with its interval where it has one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    marked: bool = True
    """Whether a marker is drawn here."""


@dataclass(frozen=True)
class Series:
    """One line: the colour and the marker say whose it is, the dashes say what it is."""

    label: str
    run: int
    kind: str
    words: str
    """What the kind is called in the legend."""
    points: Sequence[Point]
    sign: str = ""
    """Which side of the truth its values are on: "≤" for an upper bound, "≥" for a lower bound, else nothing."""
    dash: str = ""
    hollow: bool = False
    held: bool = False
    """Whether a point's value holds back to the point before it: the line is a staircase that never overstates.

    What is proved is drawn so; what was measured is a plain line, and its intervals are shaded.
    """
    on: bool = True
    """Whether it is switched on at first."""
    warnings: tuple[str, ...] = ()
    part: str = ""
    """Which of the run's noise levels it is about, and which images if they are no test images; or nothing."""
    n: int = 0
    """Images behind it; 0 where it is about none."""

    @property
    def name(self) -> str:
        """The label, with what it is about."""
        return f"{self.label}, {self.part}" if self.part else self.label


@dataclass(frozen=True)
class Axis:
    """One axis: its range, its title, and whether it shows shares as percentages."""

    title: str
    low: float
    high: float
    percent: bool = False


@dataclass(frozen=True)
class Chart:
    """What is drawn; the size is given when drawing, since a phone gets its own drawing."""

    name: str
    title: str
    description: str
    x: Axis
    y: Axis
    series: Sequence[Series]


@dataclass(frozen=True)
class DrawingSize:
    """Width and height of a drawing in CSS pixels."""

    width: int
    height: int


def colour(run: int) -> str:
    """The colour of a run: a variable of the page's theme, or the light value where there is no page."""
    number = run % len(COLOURS)
    return f"var(--series-{number},{COLOURS[number]})"


def markers(run: int, places: Sequence[tuple[str, str]], *, hollow: bool = False) -> str:
    """The run's marker at each place, as one path in the current colour."""
    shape = _MARKERS[run % len(_MARKERS)]
    outline = "".join(f"M{x} {y}{shape}" for x, y in places)
    fill = "var(--surface,#fff)" if hollow else "currentColor"
    return f'<path d="{outline}" style="fill:{fill}" stroke="currentColor" stroke-width="1.5"/>'


def ticks(low: float, high: float, count: int) -> list[float]:
    """At most `count` + 1 round numbers from low to high, evenly spaced by 1, 2, 2.5 or 5 times a power of ten."""
    if not high > low:
        return [low]
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def round_above(value: float) -> float:
    """A round number at or above a positive value, for the end of an axis."""
    step = ticks(0.0, value, 4)[1]
    return step * math.ceil(value / step - 1e-9)


def draw(chart: Chart, size: DrawingSize, *, keyed: bool = True) -> str:
    """The chart as one `<svg>` element, well-formed XML.

    The legend is below the visible box: the page has its own, and a saved figure widens the box to show it. A drawing
    that is never saved needs none.
    """
    frame = _Frame(chart, size)
    legend, legend_height = _legend(chart, frame) if keyed else ("", 0)
    box = f"0 0 {size.width} {size.height}"
    whole = f"0 0 {size.width} {size.height + legend_height}"
    label = f"{chart.title}. {chart.description}"
    kinds = [(series.run, series.kind) for series in chart.series if series.held]
    return "".join(
        (
            f'<svg class="chart" viewBox="{box}" data-whole="{whole}" role="img" tabindex="0"',
            f' aria-label="{escape(label)}" data-chart="{escape(chart.name)}" data-left="{frame.left}"',
            f' data-right="{frame.right}" data-low="{chart.x.low!r}" data-high="{chart.x.high!r}"',
            ' font-family="system-ui,-apple-system,Segoe UI,Roboto,sans-serif" font-size="13">',
            f"<title>{escape(chart.title)}</title>",
            f'<rect width="{size.width}" height="{size.height + legend_height}" style="fill:var(--surface,#fff)"/>',
            _grid(chart, frame),
            "".join(
                _line(series, frame, marked=series.held and kinds.count((series.run, series.kind)) > 1)
                for series in chart.series
            ),
            f'<line class="guide" y1="{frame.top}" y2="{frame.bottom}" visibility="hidden"'
            ' style="stroke:var(--muted,#5b6470)" stroke-dasharray="2 3"/>',
            legend,
            "</svg>",
        )
    )


def read_out(line: Series, *, in_percent: bool) -> dict[str, Any]:
    """The line as the read-out under the pointer shows it: already rounded, so that the script never rounds."""
    direction: Direction = "nearest"
    if line.sign == "≥" or line.held:
        direction = "down" if line.sign == "≥" else "up"
    # Robust accuracy falls with the radius: a lower bound further out and an upper bound further in both hold here. A
    # worst loss rises, and it is the other way round.
    rule = "next" if line.held else "last" if line.sign else "exact"

    def shown(point: Point) -> list[Any]:
        if not in_percent:
            return [point.x, format_number(point.y, 4, direction)]
        text = f"{format_percent(point.y, direction)}%"
        if point.low is None or point.high is None:
            return [point.x, text]
        return [point.x, text, f"{format_percent(point.low, 'down')}–{format_percent(point.high, 'up')}"]

    points = [shown(point) for point in line.points]
    if rule == "next":
        # Where the next step says the same, it says it here too.
        points = [here for here, after in pairwise([*points, [None]]) if here[1:] != after[1:]]
    return {
        "label": line.name,
        "part": line.part,
        "n": line.n,
        "run": line.run,
        "kind": line.kind,
        "sign": line.sign,
        "rule": rule,
        "warned": bool(line.warnings),
        "points": points,
    }


def escape(text: str) -> str:
    """Text for an element or an attribute; characters XML cannot hold become a replacement mark."""
    return html.escape("".join(c if c.isprintable() else "�" for c in text))


class _Frame:
    """Where data coordinates are in the drawing."""

    def __init__(self, chart: Chart, size: DrawingSize) -> None:
        self.left, self.right = 58, size.width - 14
        self.top, self.bottom = 14, size.height - 50
        self.width = size.width
        self.height = size.height
        self._x, self._y = chart.x, chart.y

    def x(self, value: float) -> str:
        share = (value - self._x.low) / ((self._x.high - self._x.low) or 1)
        return _short(self.left + share * (self.right - self.left))

    def y(self, value: float) -> str:
        share = (value - self._y.low) / ((self._y.high - self._y.low) or 1)
        # A wild loss would draw over the page's text: the frame's edge is where it stops.
        return _short(self.bottom - min(max(share, 0.0), 1.0) * (self.bottom - self.top))


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _tick(value: float, *, percent: bool) -> str:
    return f"{value * 100:.6g}%" if percent else f"{value:.6g}"


def _grid(chart: Chart, frame: _Frame) -> str:
    parts = ['<g class="grid" style="stroke:var(--line,#dfe3e8);fill:var(--muted,#5b6470)">']
    for value in ticks(chart.y.low, chart.y.high, max(2, (frame.bottom - frame.top) // 55)):
        y = frame.y(value)
        parts.append(f'<path d="M{frame.left} {y}H{frame.right}"/>')
        parts.append(
            f'<text x="{frame.left - 8}" y="{y}" dy=".35em" text-anchor="end" stroke="none">'
            f"{_tick(value, percent=chart.y.percent)}</text>"
        )
    for value in ticks(chart.x.low, chart.x.high, max(2, (frame.right - frame.left) // 62)):
        x = frame.x(value)
        parts.append(f'<path d="M{x} {frame.bottom}v5"/>')
        parts.append(
            f'<text x="{x}" y="{frame.bottom + 19}" text-anchor="middle" stroke="none">'
            f"{_tick(value, percent=chart.x.percent)}</text>"
        )
    middle, half = (frame.left + frame.right) / 2, (frame.top + frame.bottom) / 2
    titles = 'text-anchor="middle" stroke="none" style="fill:var(--ink,#1c2127)"'
    parts.append(f'<text x="{_short(middle)}" y="{frame.height - 8}" {titles}>{escape(chart.x.title)}</text>')
    parts.append(f'<text transform="translate(12 {_short(half)})rotate(-90)" {titles}>{escape(chart.y.title)}</text>')
    parts.append("</g>")
    return "".join(parts)


def _line(series: Series, frame: _Frame, *, marked: bool) -> str:
    """One series; marked where another one has its colour and its dashes, with what it is about at its end."""
    points = list(series.points)
    if not points:
        return ""
    dash = f' stroke-dasharray="{series.dash}"' if series.dash else ""
    parts = [
        f'<g class="series{"" if series.on else " off"}" data-run="{series.run}" data-kind="{escape(series.kind)}"'
        f' style="color:{colour(series.run)}">'
    ]
    lows = [(p.x, p.low) for p in points if p.low is not None]
    highs = [(p.x, p.high) for p in points if p.high is not None]
    if not series.held and len(lows) > 1 and len(highs) > 1:
        upper, lower = _path(highs, frame, held=False), _path(lows[::-1], frame, held=False)
        parts.append(f'<path class="band" d="M{upper}L{lower}Z" fill="currentColor" fill-opacity=".1"/>')
    line = _path([(p.x, p.y) for p in points], frame, held=series.held)
    parts.append(
        f'<path class="line" d="M{line}" fill="none" stroke="currentColor" stroke-width="2"'
        f' stroke-linejoin="round"{dash}/>'
    )
    places = [(frame.x(p.x), frame.y(p.y)) for p in points if p.marked]
    if places:
        parts.append(markers(series.run, places, hollow=series.hollow))
        if series.part and marked:
            x, y = places[-1]
            side = 'dx="6"' if float(x) < frame.width / 2 else 'dx="-6" text-anchor="end"'
            parts.append(
                f'<text x="{x}" y="{y}" {side} dy="-7" font-size="12" fill="currentColor">{escape(series.part)}</text>'
            )
    parts.append("</g>")
    return "".join(parts)


def _path(points: Sequence[tuple[float, float]], frame: _Frame, *, held: bool) -> str:
    """The commands from point to point; a staircase drops first and then runs, and equal steps become one."""
    x, y = frame.x(points[0][0]), frame.y(points[0][1])
    parts = [f"{x} {y}"]
    for position, (next_x, next_y) in enumerate(points[1:], start=1):
        to_x, to_y = frame.x(next_x), frame.y(next_y)
        if held:
            if to_y != y:
                parts.append(f"V{to_y}")
            last = position == len(points) - 1
            if last or frame.y(points[position + 1][1]) != to_y:
                parts.append(f"H{to_x}")
        else:
            parts.append(f"L{to_x} {to_y}")
        y = to_y
    return "".join(parts)


def _legend(chart: Chart, frame: _Frame) -> tuple[str, int]:
    # Two columns where there is room; the labels are the user's, so their width is only guessed.
    columns = 2 if frame.width > 560 else 1
    rows = math.ceil(len(chart.series) / columns)
    parts = ['<g class="legend" style="fill:var(--ink,#1c2127)">']
    for position, series in enumerate(chart.series):
        x = frame.left + (position // rows) * (frame.right - frame.left) // columns if rows else frame.left
        y = frame.height + 14 + 20 * (position % rows)
        dash = f' stroke-dasharray="{series.dash}"' if series.dash else ""
        parts.append(
            f'<g class="key{"" if series.on else " off"}" data-run="{series.run}" data-kind="{escape(series.kind)}"'
            f' transform="translate({x} {y})"><g style="color:{colour(series.run)}">'
            f'<path d="M0 0h30" stroke="currentColor" stroke-width="2"{dash}/>'
            f"{markers(series.run, [('15', '0')], hollow=series.hollow)}</g>"
            f'<text x="38" dy=".35em">{escape(series.name)}</text></g>'
        )
    parts.append("</g>")
    return "".join(parts), 20 * rows + 14
