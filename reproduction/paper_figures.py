"""The paper's figures: panels of curves, each read from one evaluation, and the heat map of transfer attacks."""

from collections.abc import Mapping
from dataclasses import replace

from reproduction.experiments import (
    ALPHA,
    OURS,
    attacked_otherwise,
    both_solvers,
    eot_attack,
    fixed_certificate,
    paper_attack,
    run_of,
)
from reproduction.reported import TABLES
from reproduction.scales import Scale
from reproduction.settings import CIFAR_R, CIFAR_V, GAMMA, METHODS, MNIST, SIGMA, SMOOTHED, TINY, UNLISTED_GAMMAS, Setup
from reproduction.specs import Curve, Dash, Figure, Job, Matrix, Metric, Panel, scale_notes
from rhobust.evaluation import Ascent, WorstCaseCurves
from rhobust.models import Activation
from rhobust.training import TrainConfig

RADIUS, ROBUST = "L2 radius of the attack", "accuracy under attack"
_ATTACKS = (("PGD-20 on the base network", paper_attack), ("EOT-PGD where there is noise", eot_attack))
ACTIVATIONS: dict[Activation, str] = {"relu": "ReLU", "elu": "ELU"}
CURVES_GAMMAS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Penalties at which Figure 1(b) solves the inner problem; the paper does not list its own."""
_BOUNDS: tuple[tuple[str, str, Dash], ...] = (
    ("certified (upper bound)", "worst-case loss: certified", "solid"),
    ("the paper's estimate", "worst-case loss: estimate", "dashed"),
    ("primal lower bound", "worst-case loss: lower", "dotted"),
)
_SOLVERS: tuple[tuple[str, Dash], ...] = (("NAL", "solid"), (OURS, "dashed"))
TRANSFER = ("NAL", OURS, "SmoothAdv", "TRADES")
"""The paper's heat map has NAL and two baselines that it does not name: these two are our choice."""
EPS = CIFAR_R.eps(GAMMA)
"""Radius of the transfer attacks."""


def fig1a(scale: Scale) -> Figure:
    """Trained with and without noise, tested with and without noise, on MNIST at sigma 0.1."""
    panels = []
    if surrogate := scale.surrogate(MNIST):
        for title, attack in _ATTACKS:
            curves = []
            for row in ("Undefended", "STN", "Smoothing"):
                run = run_of(scale, surrogate, row, sigma=SIGMA)
                tests: tuple[tuple[str, float | None, Dash], ...] = (
                    ("tested with noise", SIGMA, "solid"),
                    ("tested without noise", None, "dotted"),
                )
                for words, noise, dash in tests:
                    job = attack(scale, run, MNIST, noise)
                    curves.append(Curve(Metric(job, "robust accuracy"), row, words, dash))
            panels.append(Panel(title, RADIUS, ROBUST, tuple(curves)))
    return _figure("fig1a", "Trained and tested with and without noise, MNIST", panels, 2, scale, MNIST)


def fig1b(scale: Scale) -> Figure:
    """The certificate against the worst case over rho, for NAL on MNIST."""
    panels = []
    if surrogate := scale.surrogate(MNIST):
        for row in both_solvers(("NAL",)):
            run = run_of(scale, surrogate, row)
            eps = tuple(MNIST.sigma * step / 4 for step in range(17))
            curves_of_run = WorstCaseCurves(
                ascent=Ascent(gammas=CURVES_GAMMAS),
                eps=eps,
                draws=scale.shift_draws,
                alpha=ALPHA,
                limit=scale.measured,
                stride=None,
            )
            job = Job(run, curves_of_run, MNIST.sigma)
            curves = tuple(Curve(Metric(job, quantity), label, dash=dash) for label, quantity, dash in _BOUNDS)
            panels.append(Panel(row, "rho, between clean inputs", "mean loss in the worst case", curves))
    figure = _figure("fig1b", "Certificate and worst case, MNIST", panels, 2, scale, MNIST)
    note = (
        f"The outer curves hold with probability {1 - ALPHA:g} each, at the 17 rho where they are computed; the paper's"
        " estimate bounds nothing."
    )
    return replace(figure, notes=(*figure.notes, note))


def fig1c(scale: Scale) -> Figure:
    """Certified accuracy on MNIST at gamma 1.5."""
    panels = _certified_panels(scale, ((MNIST, GAMMA),))
    return _figure("fig1c", "Certified accuracy, MNIST", panels, 1, scale, MNIST)


def fig_certified(scale: Scale) -> Figure:
    """Certified accuracy on CIFAR-10 and Tiny ImageNet, and at the other gammas."""
    places = [(CIFAR_R, GAMMA), (TINY, GAMMA)]
    places += [(setup, gamma) for setup in (MNIST, CIFAR_R) for gamma, _ in setup.eps_of[::-1] if gamma != GAMMA]
    panels = _certified_panels(scale, tuple(places))
    return _figure("fig-certified", "Certified accuracy", panels, 3, scale, MNIST, CIFAR_R, TINY)


def fig1d(scale: Scale) -> Figure:
    """NAL against WRM on Tiny ImageNet with ELU, several gammas."""
    return _figure("fig1d", "NAL and WRM with ELU, Tiny ImageNet", _against_wrm(scale, (TINY,)), 2, scale, TINY)


def fig_elu(scale: Scale) -> Figure:
    """NAL against WRM with ELU on every data set, several gammas."""
    places = (MNIST, CIFAR_V, CIFAR_R, TINY)
    shown = sum(scale.surrogate(setup) is not None for setup in places)
    return _figure("fig-elu", "NAL and WRM with ELU", _against_wrm(scale, places), max(1, shown), scale, *places)


def fig2(scale: Scale) -> Figure:
    """Robust against natural accuracy on CIFAR-10 for each eps: as reported, under PGD-20, under EOT-PGD."""
    panels = []
    if surrogate := scale.surrogate(CIFAR_R):
        reported = [_reported_point(row, gamma, eps) for gamma, eps in CIFAR_R.eps_of for row in METHODS]
        panels.append(Panel("as reported", "natural accuracy", ROBUST, tuple(reported)))
        for title, attack in _ATTACKS:
            curves = []
            for gamma, eps in CIFAR_R.eps_of:
                for row in both_solvers(METHODS):
                    run = run_of(scale, surrogate, row, gamma=gamma)
                    metric = Metric(attack(scale, run, CIFAR_R, run.sigma), "trade-off", eps)
                    curves.append(Curve(metric, f"eps {eps:g}", row))
            panels.append(Panel(title, "natural accuracy", ROBUST, tuple(curves)))
    return _figure("fig2", "Robust and natural accuracy, CIFAR-10", panels, 3, scale, CIFAR_R)


def fig_training(scale: Scale) -> Figure:
    """Training curves of NAL with ReLU and with ELU on CIFAR-10."""
    panels = []
    if surrogate := scale.surrogate(CIFAR_R):
        for title, quantity in (("loss", "training loss"), ("accuracy without noise", "training accuracy")):
            curves = []
            for row, dash in _SOLVERS:
                for activation in ACTIVATIONS:
                    run = run_of(scale, surrogate, row, activation=activation)
                    curves.append(Curve(Metric(Job(run), quantity), ACTIVATIONS[activation], row, dash))
            panels.append(Panel(title, "epoch", f"{title} in training", tuple(curves)))
    return _figure("fig-training", "Training with ReLU and with ELU, CIFAR-10", panels, 2, scale, CIFAR_R)


def _certified_panels(scale: Scale, places: tuple[tuple[Setup, float], ...]) -> list[Panel]:
    panels = []
    for setup, gamma in places:
        if surrogate := scale.surrogate(setup):
            runs = {row: run_of(scale, surrogate, row, gamma=gamma) for row in both_solvers(SMOOTHED)}
            curves = tuple(
                Curve(Metric(fixed_certificate(scale, run), "certified accuracy"), row, falling=True)
                for row, run in runs.items()
            )
            title = f"{setup.name}, gamma {gamma:g}, eps {setup.eps(gamma):g}"
            panels.append(Panel(title, "L2 radius", "certified accuracy", curves))
    return panels


def _against_wrm(scale: Scale, setups: tuple[Setup, ...]) -> list[Panel]:
    """One panel per setup and attack: the paper's protocol above, EOT-PGD below."""
    panels = []
    for title, attack in _ATTACKS:
        for setup in setups:
            if surrogate := scale.surrogate(setup):
                listed = UNLISTED_GAMMAS if setup == TINY else tuple(gamma for gamma, _ in setup.eps_of)
                curves = []
                for gamma in scale.gammas_of(listed):
                    for row, dash in (*_SOLVERS, ("WRM", "dotted")):
                        run = run_of(scale, surrogate, row, gamma=gamma, activation="elu")
                        metric = Metric(attack(scale, run, setup, run.sigma), "robust accuracy")
                        curves.append(Curve(metric, f"gamma {gamma:g}", row, dash))
                panels.append(Panel(f"{setup.name}: {title}", RADIUS, ROBUST, tuple(curves)))
    return panels


def _reported_point(row: str, gamma: float, eps: float) -> Curve:
    """A point of Figure 2 from the tables that report it."""
    table, column = ("table2", "CIFAR-10") if gamma == GAMMA else ("table-gamma", f"CIFAR-10 {eps:g}")
    natural, robust = (TABLES[table].accuracy((row,), f"{column} {kind}") for kind in ("natural", "robust"))
    assert natural is not None
    assert robust is not None
    return Curve(((natural, robust),), f"eps {eps:g}", row)


def _figure(name: str, title: str, panels: list[Panel], columns: int, scale: Scale, *setups: Setup) -> Figure:
    return Figure(name, title, tuple(panels), columns, scale_notes(scale, setups))


def fig_transfer(scale: Scale) -> Matrix:
    """The paper's heat map of transfer attacks on CIFAR-10."""
    surrogate = scale.surrogate(CIFAR_R)
    named = {row: run_of(scale, surrogate, row) for row in TRANSFER} if surrogate else {}
    choice = "The paper does not name its two baselines, nor the radius; both are our choice."
    return transfer_matrix("fig-transfer", "Transfer attacks, CIFAR-10", named, scale, choice)


def transfer_matrix(name: str, title: str, named: Mapping[str, TrainConfig], scale: Scale, *notes: str) -> Matrix:
    """The paper's protocol, crafted on the row's network and evaluated on the column's."""
    rows = []
    for source in named.values():
        attacks = []
        for run in named.values():
            attack = paper_attack(scale, run, CIFAR_R, run.sigma, source=None if run == source else source)
            # An attack on the network itself is one that other tables have.
            attacks.append(attack if run == source else attacked_otherwise(attack, radii=(0.0, EPS)))
        rows.append(tuple(Metric(attack, "robust accuracy", EPS) for attack in attacks))
    return Matrix(
        name,
        f"{title}: PGD-20, radius {EPS:g}",
        "attacked network",
        "network that the attack was crafted on",
        tuple(named),
        tuple(rows),
        (*notes, *scale_notes(scale, (CIFAR_R,))),
    )
