"""What a table and a figure are before they are filled: cells and curves that name the evaluations they rest on."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from reproduction.jobs import Job, Training, runs_of
from reproduction.scales import Scale
from reproduction.settings import Setup


@dataclass(frozen=True)
class Reading:
    """One number of an evaluation: what is read, and where on its curve."""

    job: Job
    what: str
    at: float = 0.0
    first: int | None = None
    """Of an attack only the first so many images, those that another attack looked at; None for all."""


class Asked(ABC):
    """A table or figure before it is filled."""

    @property
    @abstractmethod
    def readings(self) -> tuple[Reading, ...]:
        """What stands in it."""

    @property
    def jobs(self) -> tuple[Job, ...]:
        """What it rests on, each job once."""
        return tuple(dict.fromkeys(reading.job for reading in self.readings))


@dataclass(frozen=True)
class Seeds:
    """The same number of trainings that differ in their seed alone; their mean is shown, and each of them."""

    readings: tuple[Reading, ...]
    """In the order of the seeds."""


@dataclass(frozen=True)
class Cell:
    """A printed number and ours."""

    column: str
    printed: float | None
    """None where the paper prints nothing."""
    ours: tuple[Reading | Seeds, ...]
    """One for each of the table's sources."""
    notes: tuple[str, ...] = ()
    """Defects of the printed number."""


@dataclass(frozen=True)
class Line:
    """A row of a table."""

    keys: tuple[str, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table(Asked):
    """A table of the paper, to be filled."""

    name: str
    title: str
    keys: tuple[str, ...]
    """Titles of the columns that name a row."""
    sources: tuple[str, ...]
    """What ours are: "PGD-20", "EOT"."""
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()
    flat: bool = False
    """Whether a line is one row, with printed numbers in columns of their own; it has one source then."""

    @property
    def readings(self) -> tuple[Reading, ...]:
        """What stands in the table, in the order of the cells."""
        ours = [one for line in self.lines for cell in line.cells for one in cell.ours]
        return tuple(reading for one in ours for reading in (one.readings if isinstance(one, Seeds) else (one,)))


Dash = Literal["solid", "dashed", "dotted", "dashdot"]
Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Curve:
    """One line of a panel, or one point where it has a single one."""

    source: Reading | Points
    """What is read, or points that the paper prints."""
    colour: str
    """What its colour stands for: a method, a gamma, an eps. It stands in the legend."""
    kind: str = ""
    """What its dash, or the marker of a single point, stands for; nothing where the colour says it all."""
    dash: Dash = "solid"
    label: str = ""
    """Words beside a single point; points of one colour that have them are joined."""
    falling: bool = False
    """Whether the curve only falls, and is drawn as steps: what is proved is not interpolated."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    x: str
    y: str
    curves: tuple[Curve, ...]


@dataclass(frozen=True)
class Figure(Asked):
    """A figure of the paper, to be drawn."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    columns: int
    """Panels side by side."""
    notes: tuple[str, ...] = ()

    @property
    def readings(self) -> tuple[Reading, ...]:
        """What is drawn, in the order of the curves."""
        sources = [curve.source for panel in self.panels for curve in panel.curves]
        return tuple(source for source in sources if isinstance(source, Reading))


@dataclass(frozen=True)
class Matrix(Asked):
    """A heat map of the paper, to be drawn: one number for each pair of models."""

    name: str
    title: str
    x: str
    y: str
    names: tuple[str, ...]
    """The models, along both sides."""
    rows: tuple[tuple[Reading, ...], ...]
    """What is drawn, row by row."""
    notes: tuple[str, ...] = ()

    @property
    def readings(self) -> tuple[Reading, ...]:
        """What is drawn."""
        return tuple(reading for row in self.rows for reading in row)


@dataclass(frozen=True)
class Front(Asked):
    """A table of methods against a family of ours, each at the method's own natural accuracy."""

    name: str
    title: str
    family: str
    """What the members are called together."""
    members: tuple[tuple[str, Reading], ...]
    """Name and attack of each; they differ in natural accuracy."""
    rivals: tuple[tuple[str, Reading], ...]
    radii: tuple[float, ...]
    """Where they are compared."""
    notes: tuple[str, ...] = ()

    @property
    def readings(self) -> tuple[Reading, ...]:
        """What is compared: the rivals, then the members."""
        return tuple(reading for _, reading in (*self.rivals, *self.members))


@dataclass(frozen=True)
class Pair:
    """The same number of two networks, which were looked at on the same images."""

    column: str
    ours: Reading
    theirs: Reading


@dataclass(frozen=True)
class Differences(Asked):
    """A table of how far networks lie above others, image by image."""

    name: str
    title: str
    keys: tuple[str, ...]
    """Titles of the columns that name a row."""
    lines: tuple[tuple[tuple[str, ...], tuple[Pair, ...]], ...]
    """What names a row, and what is compared in it."""
    notes: tuple[str, ...] = ()

    @property
    def readings(self) -> tuple[Reading, ...]:
        """What is compared, each once."""
        pairs = [pair for _, pairs in self.lines for pair in pairs]
        return tuple(dict.fromkeys(reading for pair in pairs for reading in (pair.ours, pair.theirs)))


@dataclass(frozen=True)
class Ledger(Asked):
    """What tables cost, from the records of their trainings and evaluations."""

    name: str
    title: str
    tables: tuple[Table, ...]
    notes: tuple[str, ...] = ()

    @property
    def readings(self) -> tuple[Reading, ...]:
        """What every training and evaluation took, each once."""
        return tuple(dict.fromkeys(reading for table in self.tables for reading in bill(table)))


Spec = Table | Figure | Matrix | Front | Differences | Ledger


def bill(table: Table) -> tuple[Reading, ...]:
    """All that a table has to pay for: the trainings, then the evaluations."""
    runs = dict.fromkeys(run for job in table.jobs for run in runs_of(job))
    return tuple(Reading(job, "cost") for job in (*(Training(run) for run in runs), *table.jobs))


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
