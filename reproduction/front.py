"""What robustness costs in natural accuracy: methods trained against attacks, and NAL's prices as a line."""

from reproduction.main_row import COMPARED_RADII, DAMPED_GAMMAS, damped_row, runs
from reproduction.protocol import strongest_attack
from reproduction.runs import OURS
from reproduction.scales import Scale
from reproduction.settings import CIFAR_R, GAMMA
from reproduction.specs import Curve, Figure, Front, Panel, Reading, stand_in_notes

RIVALS = ("PGD", "TRADES", "SmoothAdv")
"""The methods that are trained against an attack of a given radius."""


def fig_front(scale: Scale) -> Figure:
    """Robust against natural accuracy under the attack that sees all, the main setting on CIFAR-10."""
    prices = {damped_row(gamma): f"{gamma:g}" for gamma in DAMPED_GAMMAS}
    panels = []
    for radius in COMPARED_RADII:
        curves = []
        for name, run in runs(scale).items():
            if name in (*RIVALS, "NAL", *prices):
                reading = Reading(strongest_attack(scale, run, CIFAR_R), "tradeoff", radius)
                curves.append(Curve(reading, OURS if name in prices else name, label=prices.get(name, "")))
        panels.append(Panel(f"radius {radius:g}", "natural accuracy", f"accuracy at {radius:g}", tuple(curves)))
    notes = (
        f"NAL is Algorithm 1 at gamma {GAMMA:g}; beside the points of NAL, damped, stands gamma. Methods that train "
        "without an attack are left out.",
    )
    return Figure(
        "fig-front",
        "Robust and natural accuracy under an attack that sees all, CIFAR-10",
        tuple(panels),
        2,
        (*notes, *stand_in_notes(scale, (CIFAR_R,))),
    )


def table_front(scale: Scale) -> Front:
    """NAL against each method that is trained against an attack, at that method's natural accuracy."""
    named = {name: Reading(strongest_attack(scale, run, CIFAR_R), "standing") for name, run in runs(scale).items()}
    members = [damped_row(gamma) for gamma in DAMPED_GAMMAS]
    notes = (
        f"{OURS}: its accuracy at the natural accuracy of the row, on the line between the two prices around it. A "
        "coin that picks one of these two networks has it at least.",
        "difference: how far it lies above the method of the row. The interval is over the images, the same for both, "
        "and says nothing of another training.",
    )
    return Front(
        "table-front",
        "methods at equal natural accuracy under an attack that sees all, CIFAR-10",
        OURS,
        tuple((name, named[name]) for name in members if name in named),
        tuple((name, named[name]) for name in RIVALS if name in named),
        COMPARED_RADII,
        (*notes, *stand_in_notes(scale, (CIFAR_R,))),
    )
