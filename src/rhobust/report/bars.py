"""Histograms as static SVG: shares of images in bins, in the colours of the page's theme."""

from collections.abc import Sequence
from dataclasses import dataclass

from rhobust.report.chart import colour, escape, ticks

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 360, 200, 42, 8, 10, 38
_APART = 34
"""Width of a bar before the axis, with its gap."""


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
