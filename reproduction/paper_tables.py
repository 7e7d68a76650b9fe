"""The paper's tables: for each cell the reported number and the evaluations next to it."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

from reproduction.claims import MatchEps
from reproduction.experiments import OURS, RADII, both_solvers, eot_attack, paper_attack, run_of, with_best_epoch
from reproduction.reported import TABLES, ReportedTable
from reproduction.scales import Scale, Surrogate
from reproduction.settings import (
    CIFAR_R,
    DRAWS,
    GAMMA,
    GRID_GAMMA,
    MATCH_STEPS,
    METHODS,
    MNIST,
    SETUPS,
    SIGMA,
    TINY,
    Setup,
)
from reproduction.specs import Cell, Job, Line, Metric, Table, scale_notes
from rhobust.attacks import PaperPGD
from rhobust.evaluation import Attack
from rhobust.training import TrainConfig


def table1(scale: Scale) -> Table:
    """Table 1: the eps of each gamma, from fifteen steps on the trained NAL model."""
    reported, lines = TABLES["table1"], []
    for surrogate in scale.surrogates:
        for gamma, eps in surrogate.setup.eps_of:
            run = run_of(scale, surrogate, "NAL", gamma=gamma)
            ours = tuple(Metric(_match(scale, run, gamma, inner), "matched eps") for inner in ("paper", "damped"))
            cell = Cell("eps", eps, ours, reported.about(surrogate.setup.name, "eps"))
            lines.append(Line((surrogate.setup.name, f"{gamma:g}"), (cell,)))
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
        (f"{title} {eps:g}", surrogate, gamma)
        for title, setup in zip(("MNIST", "CIFAR-10"), setups, strict=True)
        if (surrogate := scale.surrogate(setup))
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


def protocol_variants(scale: Scale) -> Table:
    """NAL under every variant of the paper's protocol, to find the one that the reported row came from.

    The paper leaves open whether the gradient is that of the base network or includes one noise sample, whether it is
    normalised, and what predicts: the base network, one noisy prediction, or the smoothed classifier. Each variant
    attacks every image at every radius. None is a sound evaluation of a smoothed classifier: that is EOT-PGD.
    """
    reported, lines = TABLES["table-sigma"], []
    if surrogate := scale.surrogate(CIFAR_R):
        run = run_of(scale, surrogate, "NAL")
        predictors: tuple[tuple[Any, int], ...] = (("base", 1), ("smoothed", 1), ("smoothed", scale.votes))
        gradients: tuple[tuple[Any, Any], ...] = tuple(product(("base", "draw"), ("normalised", "raw")))
        for (sees, gradient), (predictor, votes) in product(gradients, predictors):
            attack = Attack(
                attack=PaperPGD(sees=sees, gradient=gradient),
                radii=RADII,
                predictor=predictor,
                votes=votes,
                nested=False,
                probe=False,
                limit=scale.limit,
            )
            cells = tuple(
                Cell(
                    column,
                    reported.accuracy(("NAL", f"{SIGMA:g}"), column),
                    (Metric(Job(run, attack, run.sigma), "robust accuracy", float(column)),),
                )
                for column in reported.columns
            )
            seen = "base network" if sees == "base" else "one noise sample"
            predicts = "base network" if predictor == "base" else f"{votes} noise samples"
            lines.append(Line((seen, gradient, predicts), cells))
    return Table(
        "protocol-variants",
        "NAL on CIFAR-10 under every variant of the paper's protocol",
        ("gradient of", "gradient", "prediction"),
        ("PGD-20",),
        tuple(lines),
        scale_notes(scale, (CIFAR_R,)),
    )


def _methods(name: str, steps: int, scale: Scale) -> Table:
    setups = (MNIST, CIFAR_R, TINY)
    columns = [
        (title, surrogate, GAMMA)
        for title, setup in zip(("MNIST", "CIFAR-10", "Tiny ImageNet"), setups, strict=True)
        if (surrogate := scale.surrogate(setup))
    ]
    return _accuracies(name, f"robust and natural accuracy, PGD-{steps}", columns, steps, scale, setups)


def _accuracies(
    name: str,
    title: str,
    columns: list[tuple[str, Surrogate, float]],
    steps: int,
    scale: Scale,
    setups: tuple[Setup, ...],
) -> Table:
    """A table of methods by data sets, with robust and natural accuracy each."""
    reported, lines = TABLES[name], []
    for method in METHODS:
        for row in both_solvers((method,)):
            cells = []
            for column, surrogate, gamma in columns:
                setup = surrogate.setup
                run = run_of(scale, surrogate, row, gamma=gamma)
                jobs = (
                    paper_attack(scale, run, setup, run.sigma, steps=steps),
                    eot_attack(scale, run, setup, run.sigma, steps=steps),
                )
                for kind, at in (("robust", setup.eps(gamma)), ("natural", 0.0)):
                    ours = tuple(Metric(job, "robust accuracy", at) for job in jobs)
                    cells.append(_cell(reported, row, (method,), f"{column} {kind}", ours))
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
    """A table of settings by attack radii on CIFAR-10 with ResNet-18, or its surrogate."""
    reported, lines = TABLES[name], []
    if surrogate := scale.surrogate(CIFAR_R):
        for shown, key, options in rows:
            run = choose(run_of(scale, surrogate, **options))
            jobs = (paper_attack(scale, run, CIFAR_R, run.sigma), eot_attack(scale, run, CIFAR_R, run.sigma))
            cells = []
            for column in reported.columns:
                ours = tuple(Metric(job, "robust accuracy", float(column)) for job in jobs)
                cells.append(_cell(reported, shown[0], key, column, ours))
            lines.append(Line(shown, tuple(cells)))
    return _table(name, title, keys, ("PGD-20", "EOT"), lines, scale, CIFAR_R)


def _cell(reported: ReportedTable, row: str, key: tuple[str, ...], column: str, ours: tuple[Metric, ...]) -> Cell:
    """A cell of a row; the paper reports none for the damped solver."""
    if row == OURS:
        return Cell(column, None, ours)
    return Cell(column, reported.accuracy(key, column), ours, reported.about(key[0], column))


def _table(
    name: str,
    title: str,
    keys: tuple[str, ...],
    sources: tuple[str, ...],
    lines: list[Line],
    scale: Scale,
    *setups: Setup,
) -> Table:
    notes = (*TABLES[name].general_defects, *scale_notes(scale, setups))
    return Table(name, title, keys, sources, tuple(lines), notes)


def _match(scale: Scale, run: TrainConfig, gamma: float, inner: Any) -> Job:
    match = MatchEps(gamma=gamma, inner=inner, steps=MATCH_STEPS, draws=DRAWS, limit=scale.measured, stride=None)
    return Job(run, match, run.sigma, split="train")
