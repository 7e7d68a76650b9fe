"""What the reproduction can make, and what it takes: runs and evaluations, each once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reproduction import across, certified, claims, figures, front, ledger, main_row, seeds, short, story, tables
from reproduction.jobs import Job, runs_of
from reproduction.scales import Scale
from reproduction.specs import Spec
from rhobust.training import TrainConfig

SPECS: dict[str, Callable[[Scale], Spec]] = {
    "table1": tables.table1,
    "table2": tables.table2,
    "table-pgd100": tables.table_pgd100,
    "table-sigma": tables.table_sigma,
    "table-kr": tables.table_kr,
    "table-sigma-kr": tables.table_sigma_kr,
    "table-gamma": tables.table_gamma,
    "table-elu": tables.table_elu,
    "fig-training": figures.fig_training,
    "fig1a": figures.fig1a,
    "fig1b": figures.fig1b,
    "fig1c": figures.fig1c,
    "fig-certified": figures.fig_certified,
    "fig1d": figures.fig1d,
    "fig-elu": figures.fig_elu,
    "fig2": figures.fig2,
    "fig-transfer": across.fig_transfer,
    "lemma1": claims.lemma1,
    "theorem2": claims.theorem2,
    "corollary": claims.corollary,
}
"""Every table, figure and check of the paper, by its name on the command line."""
BEYOND: dict[str, Callable[[Scale], Spec]] = {
    "table-main": main_row.table_main,
    "table-pairs": main_row.table_pairs,
    "table-autoattack": main_row.table_autoattack,
    "table-certified": certified.table_certified,
    "table-ahead": certified.table_ahead,
    "table-mnist": seeds.table_mnist,
    "table-variations": short.table_variations,
    "table-variations-pairs": short.table_variations_pairs,
    "fig-across": across.fig_across,
    "table-tiny": short.table_tiny,
    "table-tiny-pairs": short.table_tiny_pairs,
    "table-story": story.table_story,
    "fig-story": story.fig_story,
    "fig-front": front.fig_front,
    "table-front": front.table_front,
    "ledger": ledger.ledger,
}
"""Tables and figures that the paper does not have, by their names."""
GROUPS = {"all": SPECS, "ours": BEYOND}
"""Words that stand for many names: every table and figure of the paper, and every one beyond it."""


@dataclass(frozen=True)
class Plan:
    """What is to be made, and all it rests on; a run or an evaluation that several need stands once."""

    scale: Scale
    specs: tuple[Spec, ...]
    jobs: tuple[Job, ...]
    runs: tuple[TrainConfig, ...]


def plan(names: Sequence[str], scale: Scale) -> Plan:
    """The plan of some tables and figures, or groups of them, at a scale.

    A spec that the scale leaves empty, because nothing stands for its data set, is left out.
    """
    known = SPECS | BEYOND
    chosen = dict.fromkeys(name for asked in names for name in GROUPS.get(asked, (asked,)))
    specs = tuple(known[name](scale) for name in chosen)
    specs = tuple(spec for spec in specs if spec.jobs)
    jobs = tuple(dict.fromkeys(job for spec in specs for job in spec.jobs))
    return Plan(scale, specs, jobs, tuple(dict.fromkeys(run for job in jobs for run in runs_of(job))))
