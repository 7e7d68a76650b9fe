"""What a table and a figure are before they are filled: cells and curves that name the evaluations they rest on."""

from dataclasses import dataclass
from typing import Literal

from .jobs import Job
from .scales import Scale
from .settings import Setup


@dataclass(frozen=True)
class Reading:
    """One number of an evaluation: what is read, and where on its curve."""

    job: Job
    what: str
    at: float = 0.0


@dataclass(frozen=True)
class Cell:
    """A printed number and ours."""

    column: str
    printed: float | None
    """None where the paper prints nothing."""
    ours: tuple[Reading, ...]
    """One for each of the table's sources."""
    notes: tuple[str, ...] = ()
    """Defects of the printed number."""


@dataclass(frozen=True)
class Line:
    """A row of a table."""

    keys: tuple[str, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """A table of the paper, to be filled."""

    name: str
    title: str
    keys: tuple[str, ...]
    """Titles of the columns that name a row."""
    sources: tuple[str, ...]
    """What ours are: "PGD-20", "EOT"."""
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()

    @property
    def jobs(self) -> tuple[Job, ...]:
        """What the table rests on, each job once, in the order of the cells."""
        return tuple(dict.fromkeys(reading.job for line in self.lines for cell in line.cells for reading in cell.ours))


Dash = Literal["solid", "dashed", "dotted"]


@dataclass(frozen=True)
class Curve:
    """One line of a panel, or one point where it has a single one."""

    source: Reading | tuple[float, float]
    """What is read, or a point that the paper prints."""
    colour: str
    """What its colour stands for: a method, a gamma, an eps. It stands in the legend."""
    kind: str = ""
    """What its dash, or the marker of a single point, stands for; nothing where the colour says it all."""
    dash: Dash = "solid"


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    x: str
    y: str
    curves: tuple[Curve, ...]
    falling: bool = False
    """Whether the curves only fall, and are drawn as steps: what is proved is not interpolated."""


@dataclass(frozen=True)
class Figure:
    """A figure of the paper, to be drawn."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    columns: int
    """Panels side by side."""
    notes: tuple[str, ...] = ()

    @property
    def jobs(self) -> tuple[Job, ...]:
        """What the figure rests on, each job once."""
        sources = [curve.source for panel in self.panels for curve in panel.curves]
        return tuple(dict.fromkeys(source.job for source in sources if isinstance(source, Reading)))


@dataclass(frozen=True)
class Matrix:
    """A heat map of the paper, to be drawn: one number for each pair of models."""

    name: str
    title: str
    x: str
    y: str
    names: tuple[str, ...]
    """The models, along both sides."""
    readings: tuple[tuple[Reading, ...], ...]
    """Row by row."""
    notes: tuple[str, ...] = ()

    @property
    def jobs(self) -> tuple[Job, ...]:
        """What the heat map rests on, each job once."""
        return tuple(dict.fromkeys(reading.job for row in self.readings for reading in row))


def stand_in_notes(scale: Scale, setups: tuple[Setup, ...]) -> tuple[str, ...]:
    """What stands for what at this scale, and what is left out."""
    absent = [setup.name for setup in setups if scale.stand_in(setup) is None]
    used: dict[str, list[str]] = {}
    for setup in setups:
        stand_in = scale.stand_in(setup)
        if stand_in and (stand_in.data, stand_in.model) != (setup.data, setup.model):
            what = f"{stand_in.data} with the network {stand_in.model.rpartition(':')[2]}"
            used.setdefault(what, []).append(setup.name)
    notes = [f"{' and '.join(absent)}: left out at the scale {scale.name}."] if absent else []
    if used:
        pairs = "; ".join(f"{what} for {' and '.join(names)}" for what, names in used.items())
        notes.append(f"Stand-ins of the scale {scale.name}: {pairs}.")
    return tuple(notes)
