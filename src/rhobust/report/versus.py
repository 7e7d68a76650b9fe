"""Model against model on the same images: which differences are more than chance."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rhobust.formatting import Direction, format_distance, format_percent
from rhobust.measurements import COMPARABLE
from rhobust.report.overview import Headline, quoted_certificate, strongest
from rhobust.report.run import Attack, Certificate, Run
from rhobust.report.soundness import contradictions
from rhobust.stats import Difference, share_difference

Looked = TypeVar("Looked", Attack, Certificate)
MOST = 12
"""Models that a table can hold and still be read."""


@dataclass(frozen=True)
class Cell:
    """How far the row's model lies above the column's, in percentage points."""

    shown: str
    interval: str
    side: str
    """"above" or "below" where the interval leaves out 0, else "level"."""


@dataclass(frozen=True)
class Versus:
    """Every pair of models that were looked at in the same way on the same images.

    What is certified is proved; how far one share lies above another is an estimate.
    """

    title: str
    n: int
    runs: tuple[int, ...]
    """Their places on the page."""
    cells: tuple[tuple[Cell | None, ...], ...]
    """Row by row; nothing where a model meets itself. No rows at all where there are too many models."""


def versus(runs: Sequence[Run], at: Headline) -> list[Versus]:
    """Certified and attacked accuracy of every two models at the page's radius.

    They are compared where they are of the same images, and were certified or attacked in the same way. A run whose
    numbers contradict each other is left out.
    """
    radius = at.radius
    if radius is None:
        return []
    sound = [(place, run) for place, run in enumerate(runs) if not contradictions(run)]
    certified = [(place, found) for place, run in sound if (found := quoted_certificate(run)) is not None]
    attacked = [(place, found) for place, run in sound if (found := strongest(run, radius)) is not None]
    where = f"radius {format_distance(radius)}"
    return [
        *_tables(
            certified,
            lambda one: f"Certified, {where}",
            (*COMPARABLE["certify"], "radii"),
            lambda one: [one.covers(example, radius) for example in sorted(one.examples)],
        ),
        *_tables(
            attacked,
            lambda one: f"{one.name}, {where}",
            COMPARABLE["attack"],
            lambda one: [example not in one.broken[radius] for example in sorted(one.examples)],
        ),
    ]


def _tables(
    found: Sequence[tuple[int, Looked]],
    title: Callable[[Looked], str],
    alike: Sequence[str],
    outcomes: Callable[[Looked], list[bool]],
) -> list[Versus]:
    """A table for each group of two or more that share their images and the settings that must be alike."""
    groups: dict[tuple[str, frozenset[int]], list[tuple[int, Looked]]] = {}
    for place, one in found:
        same = repr([one.settings.get(key) for key in alike])
        groups.setdefault((same, one.examples), []).append((place, one))
    tables = []
    for group in groups.values():
        if len(group) > 1:
            told = [outcomes(one) for _, one in group]
            cells = tuple(
                tuple(None if ours is theirs else _cell(share_difference(ours, theirs)) for theirs in told)
                for ours in (told if len(group) <= MOST else ())
            )
            places = tuple(place for place, _ in group)
            tables.append(Versus(title(group[0][1]), len(told[0]), places, cells))
    return tables


def _cell(apart: Difference) -> Cell:
    side = "above" if apart.low > 0 else "below" if apart.high < 0 else "level"
    return Cell(_points(apart.value, "nearest"), f"{_points(apart.low, 'down')} to {_points(apart.high, 'up')}", side)


def _points(value: float, way: Direction) -> str:
    """Percentage points with their sign."""
    text = format_percent(value, way)
    return f"+{text}" if float(text) > 0 else text.replace("-", "−")
