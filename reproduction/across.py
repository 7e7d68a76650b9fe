"""Attacks across networks: crafted on one, scored on another."""

from collections.abc import Mapping
from dataclasses import replace

from reproduction.protocol import papers_attack
from reproduction.runs import OURS, run_of
from reproduction.scales import Scale
from reproduction.settings import CIFAR_R, GAMMA
from reproduction.short import VARIED_PART, short_note, short_row
from reproduction.specs import Matrix, Reading, stand_in_notes
from rhobust.training import TrainConfig

TRANSFER = ("NAL", OURS, "SmoothAdv", "TRADES")
"""The paper's heat map has NAL and two baselines that it does not name: these two are our choice."""
ACROSS = ("PGD", "TRADES", "SmoothAdv", "NAL", OURS)
"""The networks of short trainings on which attacks are crafted for each other."""
EPS = CIFAR_R.eps(GAMMA)


def fig_transfer(scale: Scale) -> Matrix:
    """The paper's heat map of transfer attacks on CIFAR-10."""
    stand_in = scale.stand_in(CIFAR_R)
    named = {row: run_of(scale, stand_in, row) for row in TRANSFER} if stand_in else {}
    choice = "The paper does not name its two baselines, nor the radius; both are our choice."
    return _matrix("fig-transfer", "Transfer attacks, CIFAR-10", named, scale, choice)


def fig_across(scale: Scale) -> Matrix:
    """The same for more methods, in short trainings: the one of ours is that of the table of variations."""
    stand_in = scale.stand_in(CIFAR_R)
    named = {row: short_row(scale, stand_in, row, VARIED_PART) for row in ACROSS} if stand_in else {}
    return _matrix("fig-across", "Attacks across networks, CIFAR-10", named, scale, short_note(VARIED_PART))


def _matrix(name: str, title: str, named: Mapping[str, TrainConfig], scale: Scale, *notes: str) -> Matrix:
    """The paper's protocol, crafted on the row's network and scored on the column's."""
    rows = []
    for source in named.values():
        attacks = []
        for run in named.values():
            attack = papers_attack(scale, run, CIFAR_R, run.sigma, source=None if run == source else source)
            # An attack on the network itself is one that other tables have.
            attacks.append(attack if run == source else replace(attack, radii=(0.0, EPS)))
        rows.append(tuple(Reading(attack, "robust", EPS) for attack in attacks))
    return Matrix(
        name,
        f"{title}: PGD-20, radius {EPS:g}",
        "attacked network",
        "network that the attack was crafted on",
        tuple(named),
        tuple(rows),
        (*notes, *stand_in_notes(scale, (CIFAR_R,))),
    )
