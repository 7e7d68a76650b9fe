"""The paper's figures as declarations: panels of curves, each read from one evaluation."""

from dataclasses import replace

from reproduction.jobs import Curves, Training
from reproduction.printed import TABLES
from reproduction.protocol import ALPHA, certify, papers_attack, seeing_attack
from reproduction.runs import OURS, both_solvers, run_of
from reproduction.scales import Scale
from reproduction.settings import (
    CIFAR_R,
    CIFAR_V,
    GAMMA,
    METHODS,
    MNIST,
    SIGMA,
    SMOOTHED,
    TINY,
    UNLISTED_GAMMAS,
    Setup,
)
from reproduction.specs import Curve, Dash, Figure, Panel, Reading, stand_in_notes
from rhobust.models import Activation

RADIUS, ROBUST = "L2 radius of the attack", "accuracy under attack"
_ATTACKS = (("PGD-20 on the network", papers_attack), ("EOT where there is noise", seeing_attack))
ACTIVATIONS: dict[Activation, str] = {"relu": "ReLU", "elu": "ELU"}
CURVES_GAMMAS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Prices at which Figure 1(b) solves the inner problem; the paper does not list its own."""
_BOUNDS: tuple[tuple[str, str, Dash], ...] = (
    ("certified (above the truth)", "certified", "solid"),
    ("the paper's estimate", "estimate", "dashed"),
    ("attained (below the truth)", "lower", "dotted"),
)
_SOLVERS: tuple[tuple[str, Dash], ...] = (("NAL", "solid"), (OURS, "dashed"))


def fig1a(scale: Scale) -> Figure:
    """Trained with and without noise, tested with and without noise, on MNIST at sigma 0.1."""
    panels = []
    if stand_in := scale.stand_in(MNIST):
        for title, attack in _ATTACKS:
            curves = []
            for row in ("Undefended", "STN", "Smoothing"):
                run = run_of(scale, stand_in, row, sigma=SIGMA)
                tests: tuple[tuple[str, float | None, Dash], ...] = (
                    ("tested with noise", SIGMA, "solid"),
                    ("tested without noise", None, "dotted"),
                )
                for words, noise, dash in tests:
                    job = attack(scale, run, MNIST, noise)
                    curves.append(Curve(Reading(job, "robust"), row, words, dash))
            panels.append(Panel(title, RADIUS, ROBUST, tuple(curves)))
    return _figure("fig1a", "Trained and tested with and without noise, MNIST", panels, 2, scale, MNIST)


def fig1b(scale: Scale) -> Figure:
    """The certificate against the worst case over rho, for NAL on MNIST."""
    panels = []
    if stand_in := scale.stand_in(MNIST):
        for row in both_solvers(("NAL",)):
            run = run_of(scale, stand_in, row)
            eps = tuple(MNIST.sigma * step / 4 for step in range(17))
            job = Curves(run, MNIST.sigma, eps, CURVES_GAMMAS, scale.shift_draws, scale.measured)
            curves = tuple(Curve(Reading(job, what), label, dash=dash) for label, what, dash in _BOUNDS)
            panels.append(Panel(row, "rho, between clean inputs", "mean loss in the worst case", curves))
    figure = _figure("fig1b", "Certificate and worst case, MNIST", panels, 2, scale, MNIST)
    note = (
        f"The outer curves hold with probability {1 - ALPHA:g} each, at the 17 rho where they are computed; the paper's"
        " estimate bounds nothing."
    )
    return replace(figure, notes=(*figure.notes, note))


def fig1c(scale: Scale) -> Figure:
    """Certified accuracy on MNIST at gamma 1.5."""
    panels = _certified(scale, ((MNIST, GAMMA),))
    return _figure("fig1c", "Certified accuracy, MNIST", panels, 1, scale, MNIST)


def fig_certified(scale: Scale) -> Figure:
    """Certified accuracy on CIFAR-10 and Tiny ImageNet, and at the other gammas."""
    places = [(CIFAR_R, GAMMA), (TINY, GAMMA)]
    places += [(setup, gamma) for setup in (MNIST, CIFAR_R) for gamma, _ in setup.eps_of[::-1] if gamma != GAMMA]
    panels = _certified(scale, tuple(places))
    return _figure("fig-certified", "Certified accuracy", panels, 3, scale, MNIST, CIFAR_R, TINY)


def fig1d(scale: Scale) -> Figure:
    """NAL against WRM on Tiny ImageNet with ELU, several gammas."""
    return _figure("fig1d", "NAL and WRM with ELU, Tiny ImageNet", _against_wrm(scale, (TINY,)), 2, scale, TINY)


def fig_elu(scale: Scale) -> Figure:
    """NAL against WRM with ELU on every data set, several gammas."""
    places = (MNIST, CIFAR_V, CIFAR_R, TINY)
    shown = sum(scale.stand_in(setup) is not None for setup in places)
    return _figure("fig-elu", "NAL and WRM with ELU", _against_wrm(scale, places), max(1, shown), scale, *places)


def fig2(scale: Scale) -> Figure:
    """Robust against natural accuracy on CIFAR-10 for each eps: printed, under PGD-20, under EOT."""
    panels = []
    if stand_in := scale.stand_in(CIFAR_R):
        printed = [_printed_point(row, gamma, eps) for gamma, eps in CIFAR_R.eps_of for row in METHODS]
        panels.append(Panel("as printed", "natural accuracy", ROBUST, tuple(printed)))
        for title, attack in _ATTACKS:
            curves = []
            for gamma, eps in CIFAR_R.eps_of:
                for row in both_solvers(METHODS):
                    run = run_of(scale, stand_in, row, gamma=gamma)
                    reading = Reading(attack(scale, run, CIFAR_R, run.sigma), "tradeoff", eps)
                    curves.append(Curve(reading, f"eps {eps:g}", row))
            panels.append(Panel(title, "natural accuracy", ROBUST, tuple(curves)))
    return _figure("fig2", "Robust and natural accuracy, CIFAR-10", panels, 3, scale, CIFAR_R)


def fig_training(scale: Scale) -> Figure:
    """Training curves of NAL with ReLU and with ELU on CIFAR-10."""
    panels = []
    if stand_in := scale.stand_in(CIFAR_R):
        for title, what in (("loss", "loss"), ("accuracy without noise", "accuracy")):
            curves = []
            for row, dash in _SOLVERS:
                for activation in ACTIVATIONS:
                    run = run_of(scale, stand_in, row, activation=activation)
                    curves.append(Curve(Reading(Training(run), what), ACTIVATIONS[activation], row, dash))
            panels.append(Panel(title, "epoch", f"{title} in training", tuple(curves)))
    return _figure("fig-training", "Training with ReLU and with ELU, CIFAR-10", panels, 2, scale, CIFAR_R)


def _certified(scale: Scale, places: tuple[tuple[Setup, float], ...]) -> list[Panel]:
    panels = []
    for setup, gamma in places:
        if stand_in := scale.stand_in(setup):
            runs = {row: run_of(scale, stand_in, row, gamma=gamma) for row in both_solvers(SMOOTHED)}
            curves = tuple(
                Curve(Reading(certify(scale, run), "certified_accuracy"), row, falling=True)
                for row, run in runs.items()
            )
            title = f"{setup.name}, gamma {gamma:g}, eps {setup.eps(gamma):g}"
            panels.append(Panel(title, "L2 radius", "certified accuracy", curves))
    return panels


def _against_wrm(scale: Scale, setups: tuple[Setup, ...]) -> list[Panel]:
    """One panel a setup and attack: the paper's protocol above, the attack that sees the noise below."""
    panels = []
    for title, attack in _ATTACKS:
        for setup in setups:
            if stand_in := scale.stand_in(setup):
                listed = UNLISTED_GAMMAS if setup == TINY else tuple(gamma for gamma, _ in setup.eps_of)
                curves = []
                for gamma in scale.gammas_of(listed):
                    for row, dash in (*_SOLVERS, ("WRM", "dotted")):
                        run = run_of(scale, stand_in, row, gamma=gamma, activation="elu")
                        reading = Reading(attack(scale, run, setup, run.sigma), "robust")
                        curves.append(Curve(reading, f"gamma {gamma:g}", row, dash))
                panels.append(Panel(f"{setup.name}: {title}", RADIUS, ROBUST, tuple(curves)))
    return panels


def _printed_point(row: str, gamma: float, eps: float) -> Curve:
    """A point of Figure 2 from the tables that print it."""
    table, column = ("table2", "CIFAR-10") if gamma == GAMMA else ("table-gamma", f"CIFAR-10 {eps:g}")
    natural, robust = (TABLES[table].accuracy((row,), f"{column} {kind}") for kind in ("natural", "robust"))
    assert natural is not None
    assert robust is not None
    return Curve(((natural, robust),), f"eps {eps:g}", row)


def _figure(name: str, title: str, panels: list[Panel], columns: int, scale: Scale, *setups: Setup) -> Figure:
    return Figure(name, title, tuple(panels), columns, stand_in_notes(scale, setups))
