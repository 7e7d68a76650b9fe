"""The paper's claims, checked with numbers: Lemma 1, Theorem 2 and Corollary 1."""

from dataclasses import replace

from reproduction.jobs import Counterexample, Curvature, Job
from reproduction.protocol import papers_attack, seeing_attack, shift
from reproduction.runs import both_solvers, run_of
from reproduction.scales import Scale
from reproduction.settings import CIFAR_R, GAMMA, MNIST, SIGMA, SMOOTHED, Setup
from reproduction.specs import Cell, Line, Reading, Table, stand_in_notes
from rhobust.training import TrainConfig

PAPERS_SMOOTHNESS = 2.0
"""Lemma 1's constant, in units of M / sigma^2."""
_PLACES = (MNIST, CIFAR_R)
"""Where the claims are measured."""


def lemma1(scale: Scale) -> Table:
    """Lemma 1: the curvature of the smoothed loss, in units of M / sigma^2, on the trained networks."""
    lines = []
    for setup, row, run, sigma in _smoothed(scale):
        job = Curvature(run, sigma, scale.measured, scale.curvature_draws)
        ours = (Reading(job, "curvature"), Reading(job, "sharp"))
        lines.append(Line((setup.name, row), (Cell("largest curvature", PAPERS_SMOOTHNESS, ours),)))
    notes = (
        "The printed number is the constant 2 of the lemma; all numbers are in units of M / sigma^2. The loss is 1 "
        "less the probability that the network gives the label, so M is 1.",
        "Found by power iteration on some draws and measured on others: an estimate at the images looked at, with "
        "its standard error. The sharp bound holds for every network.",
    )
    sources = ("largest found", "sharp bound")
    return _table("lemma1", "curvature of the smoothed loss", ("setting", "method"), sources, lines, notes, scale)


def theorem2(scale: Scale) -> Table:
    """Theorem 2 as it is stated: a bound that lies below the loss, on the line and on the trained networks."""
    example = Counterexample(SIGMA, (5.0, 25.0, 1000.0))
    lines = [Line(("two atoms", "constant loss", f"{gamma:g}"), (_claim(example, gamma),)) for gamma in example.gammas]
    lines += [
        Line((setup.name, row, f"{gamma:g}"), (_claim(shift(scale, run), gamma),))
        for setup, row, run, _ in _smoothed(scale)
        for gamma in (GAMMA, 5.0)
    ]
    notes = (
        "On the networks P0 is the law of the test images with noise, and P that of the images themselves: then P "
        "with noise is P0 and every rho >= 0 admits it. With a loss in [0, 1] the bound that the theorem claims at "
        "rho = 0 is at most 1 - gamma d sigma^2; the true loss is the error under noise.",
        "Where the claimed bound lies below the true loss, the theorem fails. It holds for distances between clean "
        "distributions.",
    )
    keys, sources = ("setting", "method", "gamma"), ("claimed bound", "true loss")
    return _table("theorem2", "Theorem 2 as it is stated", keys, sources, lines, notes, scale)


def corollary(scale: Scale) -> Table:
    """Corollary 1 at equal clean budget: the worst error of the smoothed classifier against the network's own."""
    lines = []
    for setup, row, run, sigma in _smoothed(scale):
        budgets = (0.0, sigma, 2 * sigma)
        certificate = shift(scale, run)
        seeing = replace(seeing_attack(scale, run, setup, sigma), radii=budgets)
        plain = replace(papers_attack(scale, run, setup, None), radii=budgets)
        cells = tuple(
            Cell(
                title,
                None,
                (
                    Reading(certificate, "error_at_most", eps),
                    Reading(seeing, "error", eps),
                    Reading(plain, "error", eps),
                ),
            )
            for title, eps in zip(("eps 0", "eps sigma", "eps 2 sigma"), budgets, strict=True)
        )
        lines.append(Line((setup.name, row), cells))
    notes = (
        "The corollary gives the smoothed classifier and the network one rho, noise included in the distance: the "
        "smoothed side has d sigma^2 less to spend. Here both have the same eps for clean inputs.",
        "An attack moves every input by at most eps, so what it breaks is broken by a distribution within W2 distance "
        "eps: its error bounds the worst error on these images from below. The certified error bounds that of one "
        "noisy vote from above.",
        "The corollary's conclusion is proved for a network at an eps where the certified error of the smoothed "
        "classifier is at most the network's error under attack; at eps 0 it is refuted where the smoothed error "
        "exceeds the network's.",
    )
    sources = ("smoothed, certified at most", "smoothed, EOT finds", "network, PGD-20 finds")
    return _table("corollary", "worst error at equal clean budget", ("setting", "method"), sources, lines, notes, scale)


def _claim(job: Job, gamma: float) -> Cell:
    return Cell("loss", None, (Reading(job, "claimed", gamma), Reading(job, "true_loss", gamma)))


def _smoothed(scale: Scale) -> list[tuple[Setup, str, TrainConfig, float]]:
    """The runs that were trained with noise, where the claims are measured."""
    return [
        (setup, row, run_of(scale, stand_in, row), setup.sigma)
        for setup in _PLACES
        if (stand_in := scale.stand_in(setup))
        for row in both_solvers(SMOOTHED)
    ]


def _table(
    name: str,
    title: str,
    keys: tuple[str, ...],
    sources: tuple[str, ...],
    lines: list[Line],
    notes: tuple[str, ...],
    scale: Scale,
) -> Table:
    return Table(name, title, keys, sources, tuple(lines), (*notes, *stand_in_notes(scale, _PLACES)))
