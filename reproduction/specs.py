"""Tables and figures before they are filled: cells and curves that name the evaluations they are read from."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from reproduction.scales import Scale
from reproduction.settings import Setup
from rhobust.evaluation import Evaluation
from rhobust.training import TrainConfig


@dataclass(frozen=True)
class Job:
    """A training run and one evaluation of it; equal jobs of two tables are one job."""

    run: TrainConfig | None
    """None for an evaluation that needs no network."""
    evaluation: Evaluation | None = None
    """None for the training itself: its loss and accuracy, epoch by epoch."""
    sigma: float | None = None
    """Smoothing noise of the classifier under evaluation; default: that of the training, if any."""
    source: TrainConfig | None = None
    """The run on which a transfer attack is crafted."""
    split: Literal["test", "train"] = "test"
    """The images that are evaluated."""
    skip: int = 0
    """Leave out so many leading test images, those that other tables attack; such jobs need a folder of their own."""

    @property
    def runs(self) -> tuple[TrainConfig, ...]:
        """The runs that must be trained first, the evaluated one last."""
        return tuple(run for run in (self.source, self.run) if run is not None)

    @property
    def word(self) -> str:
        """What messages call it."""
        return "training" if self.evaluation is None else self.evaluation.kind


@dataclass(frozen=True)
class Metric:
    """One quantity of an evaluation's record."""

    job: Job
    quantity: str
    at: float = 0.0
    """Radius, eps or gamma at which it is read."""
    first: int | None = None
    """Of an attack only the first so many images, those of another attack; None for all."""


@dataclass(frozen=True)
class Spec(ABC):
    """A table or figure before it is filled."""

    name: str
    title: str

    @property
    @abstractmethod
    def metrics(self) -> tuple[Metric, ...]:
        """What is shown."""

    @property
    def jobs(self) -> tuple[Job, ...]:
        """What it is read from, each job once."""
        return tuple(dict.fromkeys(metric.job for metric in self.metrics))


@dataclass(frozen=True)
class Seeds:
    """The same number of trainings that differ in their seed alone; their mean is shown, and each of them."""

    metrics: tuple[Metric, ...]
    """In the order of the seeds."""


@dataclass(frozen=True)
class Cell:
    """A reported number and ours."""

    column: str
    reported: float | None
    """None where the paper reports nothing."""
    ours: tuple[Metric | Seeds, ...]
    """One for each of the table's sources."""
    notes: tuple[str, ...] = ()
    """Defects of the reported number."""


@dataclass(frozen=True)
class Line:
    """A row of a table."""

    keys: tuple[str, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table(Spec):
    """A table of numbers."""

    keys: tuple[str, ...]
    """Titles of the columns that name a row."""
    sources: tuple[str, ...]
    """What our numbers come from: "PGD-20", "EOT"."""
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()
    flat: bool = False
    """Whether a line is one row, with reported numbers in columns of their own; such a table has one source."""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """What the table shows, in the order of the cells."""
        ours = [one for line in self.lines for cell in line.cells for one in cell.ours]
        return tuple(metric for one in ours for metric in (one.metrics if isinstance(one, Seeds) else (one,)))


Dash = Literal["solid", "dashed", "dotted", "dashdot"]
Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Curve:
    """One line of a panel, or a single point."""

    source: Metric | Points
    """What is read, or points that the paper reports."""
    colour: str
    """What its colour denotes, for the legend: a method, a gamma, an eps."""
    kind: str = ""
    """What its dash, or the marker of a single point, denotes; empty if the colour is enough."""
    dash: Dash = "solid"
    label: str = ""
    """Text at a single point; labelled points of one colour are joined."""
    falling: bool = False
    """Whether the curve is non-increasing and drawn as steps: proved values are not interpolated."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    x: str
    y: str
    curves: tuple[Curve, ...]


@dataclass(frozen=True)
class Figure(Spec):
    """A figure of panels."""

    panels: tuple[Panel, ...]
    columns: int
    """Panels side by side."""
    notes: tuple[str, ...] = ()

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """What is drawn, in the order of the curves."""
        sources = [curve.source for panel in self.panels for curve in panel.curves]
        return tuple(source for source in sources if isinstance(source, Metric))


@dataclass(frozen=True)
class Matrix(Spec):
    """A heat map: one number per pair of models."""

    x: str
    y: str
    names: tuple[str, ...]
    """The models, along both sides."""
    rows: tuple[tuple[Metric, ...], ...]
    """What is drawn, row by row."""
    notes: tuple[str, ...] = ()

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """What is drawn."""
        return tuple(metric for row in self.rows for metric in row)


@dataclass(frozen=True)
class ParetoTable(Spec):
    """Baselines against a family of our networks, each at the baseline's natural accuracy."""

    family: str
    """Name of the family."""
    members: tuple[tuple[str, Metric], ...]
    """Name and attack of each; they differ in natural accuracy."""
    baselines: tuple[tuple[str, Metric], ...]
    radii: tuple[float, ...]
    """Where they are compared."""
    notes: tuple[str, ...] = ()

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """What is compared: the baselines, then the members."""
        return tuple(metric for _, metric in (*self.baselines, *self.members))


@dataclass(frozen=True)
class Pair:
    """The same quantity of two networks on the same images."""

    column: str
    ours: Metric
    theirs: Metric


@dataclass(frozen=True)
class Differences(Spec):
    """A table of paired differences between networks, image by image."""

    keys: tuple[str, ...]
    """Titles of the columns that name a row."""
    lines: tuple[tuple[tuple[str, ...], tuple[Pair, ...]], ...]
    """What names a row, and what is compared in it."""
    notes: tuple[str, ...] = ()

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """What is compared, each once."""
        pairs = [pair for _, pairs in self.lines for pair in pairs]
        return tuple(dict.fromkeys(metric for pair in pairs for metric in (pair.ours, pair.theirs)))


@dataclass(frozen=True)
class CostTable(Spec):
    """Compute cost of tables, from the seconds in finished records."""

    tables: tuple[Table, ...]
    notes: tuple[str, ...] = ()

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The seconds of every training and evaluation, each once."""
        return tuple(dict.fromkeys(metric for table in self.tables for metric in costs(table)))


AnySpec = Table | Figure | Matrix | ParetoTable | Differences | CostTable


def costs(table: Table) -> tuple[Metric, ...]:
    """The seconds behind a table: of its trainings, then of its evaluations."""
    runs = dict.fromkeys(run for job in table.jobs for run in job.runs)
    return tuple(Metric(job, "seconds") for job in (*(Job(run) for run in runs), *table.jobs))


def scale_notes(scale: Scale, setups: tuple[Setup, ...]) -> tuple[str, ...]:
    """Surrogate data sets of a scale, and what it leaves out."""
    absent = [setup.name for setup in setups if scale.surrogate(setup) is None]
    used: dict[str, list[str]] = {}
    for setup in setups:
        surrogate = scale.surrogate(setup)
        if surrogate and (surrogate.data, surrogate.model) != (setup.data, setup.model):
            what = f"{surrogate.data} with the network {surrogate.model.rpartition(':')[2]}"
            used.setdefault(what, []).append(setup.name)
    notes = [f"{' and '.join(absent)}: left out at the scale {scale.name}."] if absent else []
    if used:
        pairs = "; ".join(f"{what} for {' and '.join(names)}" for what, names in used.items())
        notes.append(f"Surrogate data sets of the scale {scale.name}: {pairs}.")
    if scale.optimizer is None:
        notes.append(
            f"Trained as `rhobust train` does by default ({scale.schedule}, at most {scale.epochs} epochs; SGD for"
            " networks with batch norm), not as the paper states."
        )
    return tuple(notes)
