"""The paper's tables as declarations: for each cell the printed number and the evaluations that stand beside it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reproduction.jobs import Match
from reproduction.printed import TABLES, Printed
from reproduction.protocol import papers_attack, seeing_attack
from reproduction.runs import OURS, both_solvers, run_of, with_best_epoch
from reproduction.scales import Scale, StandIn
from reproduction.settings import CIFAR_R, GAMMA, GRID_GAMMA, MATCH_STEPS, METHODS, MNIST, SETUPS, TINY, Setup
from reproduction.specs import Cell, Line, Reading, Table, stand_in_notes
from rhobust.training import TrainConfig


def table1(scale: Scale) -> Table:
    """Table 1: the eps that belongs to each gamma, from fifteen steps on the trained NAL model."""
    printed, lines = TABLES["table1"], []
    for stand_in in scale.stand_ins:
        for gamma, eps in stand_in.setup.eps_of:
            run = run_of(scale, stand_in, "NAL", gamma=gamma)
            ours = tuple(
                Reading(Match(run, inner, MATCH_STEPS, scale.measured), "distance") for inner in ("paper", "damped")
            )
            cell = Cell("eps", eps, ours, printed.about(stand_in.setup.name, "eps"))
            lines.append(Line((stand_in.setup.name, f"{gamma:g}"), (cell,)))
    sources = ("Algorithm 1's ascent", "damped ascent")
    return _table("table1", "eps that matches gamma", ("setting", "gamma"), sources, lines, scale, *SETUPS)


def table2(scale: Scale) -> Table:
    """Table 2: robust and natural accuracy of six methods under PGD-20."""
    return _methods("table2", 20, scale)


def table_pgd100(scale: Scale) -> Table:
    """The same models under PGD-100."""
    return _methods("table-pgd100", 100, scale)


def table_gamma(scale: Scale) -> Table:
    """MNIST and CIFAR-10 at the other gammas of Table 1."""
    setups = (MNIST, CIFAR_R)
    columns = [
        (f"{title} {eps:g}", stand_in, gamma)
        for title, setup in zip(("MNIST", "CIFAR-10"), setups, strict=True)
        if (stand_in := scale.stand_in(setup))
        for gamma, eps in sorted(setup.eps_of, reverse=True)
        if gamma != GAMMA
    ]
    return _accuracies("table-gamma", "robust and natural accuracy at other gammas, PGD-20", columns, 20, scale, setups)


def table_sigma(scale: Scale) -> Table:
    """Methods under different noise on CIFAR-10."""
    rows = []
    for row, sigma in TABLES["table-sigma"].rows:
        rows += [((name, sigma), (row, sigma), {"row": name, "sigma": float(sigma)}) for name in both_solvers((row,))]
    return _radii("table-sigma", "different noise on CIFAR-10", ("method", "sigma"), rows, scale)


def table_kr(scale: Scale) -> Table:
    """NAL over K and r, the epoch with the highest clean accuracy."""
    rows = [
        ((name, f"{k}", f"{r}"), (f"{k}", f"{r}"), {"row": name, "steps": k, "draws": r})
        for k, r in scale.kr
        for name in both_solvers(("NAL",))
    ]
    choose = lambda run: with_best_epoch(scale, run)  # noqa: E731
    return _radii("table-kr", "NAL over K and r, best clean epoch", ("method", "K", "r"), rows, scale, choose)


def table_sigma_kr(scale: Scale) -> Table:
    """NAL over sigma, K and r at gamma 1.16."""
    rows = [
        (
            (name, f"{sigma:g}", f"{k}", f"{r}"),
            (f"{sigma:g}", f"{k}", f"{r}"),
            {"row": name, "sigma": sigma, "steps": k, "draws": r, "gamma": GRID_GAMMA},
        )
        for sigma, k, r in scale.sigma_kr
        for name in both_solvers(("NAL",))
    ]
    return _radii("table-sigma-kr", "NAL over sigma, K and r at gamma 1.16", ("method", "sigma", "K", "r"), rows, scale)


def table_elu(scale: Scale) -> Table:
    """NAL with ReLU and with ELU."""
    rows = [
        ((name, activation), (activation,), {"row": name, "activation": activation.lower()})
        for (activation,) in TABLES["table-elu"].rows
        for name in both_solvers(("NAL",))
    ]
    return _radii("table-elu", "NAL with ReLU and with ELU on CIFAR-10", ("method", "activation"), rows, scale)


def _methods(name: str, steps: int, scale: Scale) -> Table:
    setups = (MNIST, CIFAR_R, TINY)
    columns = [
        (title, stand_in, GAMMA)
        for title, setup in zip(("MNIST", "CIFAR-10", "Tiny ImageNet"), setups, strict=True)
        if (stand_in := scale.stand_in(setup))
    ]
    return _accuracies(name, f"robust and natural accuracy, PGD-{steps}", columns, steps, scale, setups)


def _accuracies(
    name: str,
    title: str,
    columns: list[tuple[str, StandIn, float]],
    steps: int,
    scale: Scale,
    setups: tuple[Setup, ...],
) -> Table:
    """A table of methods by data sets, with robust and natural accuracy each."""
    printed, lines = TABLES[name], []
    for method in METHODS:
        for row in both_solvers((method,)):
            cells = []
            for column, stand_in, gamma in columns:
                setup = stand_in.setup
                run = run_of(scale, stand_in, row, gamma=gamma)
                jobs = (
                    papers_attack(scale, run, setup, run.sigma, steps=steps),
                    seeing_attack(scale, run, setup, run.sigma, steps=steps),
                )
                for kind, at in (("robust", setup.eps(gamma)), ("natural", 0.0)):
                    ours = tuple(Reading(job, "robust", at) for job in jobs)
                    cells.append(_cell(printed, row, (method,), f"{column} {kind}", ours))
            lines.append(Line((row,), tuple(cells)))
    return _table(name, title, ("method",), (f"PGD-{steps}", "EOT"), lines, scale, *setups)


def _radii(
    name: str,
    title: str,
    keys: tuple[str, ...],
    rows: Sequence[tuple[tuple[str, ...], tuple[str, ...], Mapping[str, Any]]],
    scale: Scale,
    choose: Callable[[TrainConfig], TrainConfig] = lambda run: run,
) -> Table:
    """A table of settings by attack radii on CIFAR-10 with ResNet-18, or what stands for it."""
    printed, lines = TABLES[name], []
    if stand_in := scale.stand_in(CIFAR_R):
        for shown, key, options in rows:
            run = choose(run_of(scale, stand_in, **options))
            jobs = (papers_attack(scale, run, CIFAR_R, run.sigma), seeing_attack(scale, run, CIFAR_R, run.sigma))
            lines.append(
                Line(
                    shown,
                    tuple(
                        _cell(
                            printed, shown[0], key, column, tuple(Reading(job, "robust", float(column)) for job in jobs)
                        )
                        for column in printed.columns
                    ),
                )
            )
    return _table(name, title, keys, ("PGD-20", "EOT"), lines, scale, CIFAR_R)


def _cell(printed: Printed, row: str, key: tuple[str, ...], column: str, ours: tuple[Reading, ...]) -> Cell:
    """A cell of a row; the paper prints none for our solver."""
    if row == OURS:
        return Cell(column, None, ours)
    return Cell(column, printed.accuracy(key, column), ours, printed.about(key[0], column))


def _table(
    name: str,
    title: str,
    keys: tuple[str, ...],
    sources: tuple[str, ...],
    lines: list[Line],
    scale: Scale,
    *setups: Setup,
) -> Table:
    general = tuple(defect.text for defect in TABLES[name].defects if not (defect.rows or defect.columns))
    return Table(name, title, keys, sources, tuple(lines), (*general, *stand_in_notes(scale, setups)))
