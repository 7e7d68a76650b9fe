"""MNIST with three seeds: every method at every gamma of Table 1, as printed and under both attacks."""

from dataclasses import replace

from reproduction.jobs import Attack
from reproduction.printed import TABLES
from reproduction.protocol import papers_attack, strongest_attack
from reproduction.runs import both_solvers, run_of
from reproduction.scales import Scale, StandIn
from reproduction.settings import GAMMA, MNIST
from reproduction.specs import Cell, Line, Reading, Seeds, Table, stand_in_notes
from rhobust.training import TrainConfig

SEEDS = (0, 1, 2)
"""Fixed before the first run."""
ROWS = both_solvers(("Undefended", "Smoothing", "STN", "PGD", "TRADES", "SmoothAdv", "WRM", "NAL"))
RADII = (0.0, *sorted(eps for _, eps in MNIST.eps_of))
"""The networks are attacked where Table 1 has an eps."""


def table_mnist(scale: Scale) -> Table:
    """Natural and robust accuracy on MNIST; methods without gamma are trained once a seed for all of them."""
    lines = []
    if stand_in := scale.stand_in(MNIST):
        lines = [
            Line((f"{gamma:g}", f"{eps:g}", row), _cells(scale, stand_in, row, gamma))
            for gamma, eps in sorted(MNIST.eps_of)
            for row in ROWS
        ]
    notes = (
        "The mean of the seeds 0, 1 and 2, and below it each of them. In brackets: from the lowest end of their 95% "
        "intervals to the highest.",
        "PGD-20 is the paper's protocol; sees all: EOT for networks that vote under noise, else PGD on the network "
        "with falling steps and two losses.",
        "All networks have ReLU, WRM's too, for which its authors ask for a smooth activation.",
    )
    return Table(
        "table-mnist",
        "MNIST, three seeds",
        ("gamma", "eps", "method"),
        ("ours",),
        tuple(lines),
        (*notes, *stand_in_notes(scale, (MNIST,))),
        flat=True,
    )


def _cells(scale: Scale, stand_in: StandIn, row: str, gamma: float) -> tuple[Cell, ...]:
    eps = MNIST.eps(gamma)
    name, column = ("table2", "MNIST") if gamma == GAMMA else ("table-gamma", f"MNIST {eps:g}")
    runs = [replace(run_of(scale, stand_in, row, gamma=gamma), seed=seed) for seed in SEEDS]
    protocol, seen = ([attack(scale, run) for run in runs] for attack in (_protocol, _seen))

    def cell(title: str, jobs: list[Attack], at: float, kind: str = "") -> Cell:
        printed = TABLES[name].accuracy((row,), f"{column} {kind}")
        defects = () if printed is None else TABLES[name].about(row, f"{column} {kind}")
        return Cell(title, printed, (Seeds(tuple(Reading(job, "robust", at) for job in jobs)),), defects)

    return (
        cell("natural", protocol, 0.0, "natural"),
        cell("PGD-20 at eps", protocol, eps, "robust"),
        cell("sees all at eps", seen, eps),
    )


def _protocol(scale: Scale, run: TrainConfig) -> Attack:
    return replace(papers_attack(scale, run, MNIST, run.sigma), radii=RADII)


def _seen(scale: Scale, run: TrainConfig) -> Attack:
    return replace(strongest_attack(scale, run, MNIST), radii=RADII)
