"""What robustness costs in natural accuracy: the methods of the main setting as points, NAL's prices as a line."""

from .figures import ROBUST
from .main_row import COMPARED_RADII, DAMPED_GAMMAS, damped_row, runs
from .protocol import strongest_attack
from .runs import OURS
from .scales import Scale
from .settings import CIFAR_R, GAMMA
from .specs import Curve, Figure, Panel, Reading, stand_in_notes


def fig_front(scale: Scale) -> Figure:
    """Robust against natural accuracy under the attack that sees all, the main setting on CIFAR-10."""
    prices = {damped_row(gamma): f"{gamma:g}" for gamma in DAMPED_GAMMAS}
    panels = []
    for radius in COMPARED_RADII:
        curves = []
        for name, run in runs(scale).items():
            reading = Reading(strongest_attack(scale, run, CIFAR_R), "tradeoff", radius)
            curves.append(Curve(reading, OURS if name in prices else name, label=prices.get(name, "")))
        panels.append(Panel(f"radius {radius:g}", "natural accuracy", ROBUST, tuple(curves)))
    notes = (f"NAL is Algorithm 1 at gamma {GAMMA:g}; beside the points of NAL, damped, stands gamma.",)
    return Figure(
        "fig-front",
        "Robust and natural accuracy under an attack that sees all, CIFAR-10",
        tuple(panels),
        2,
        (*notes, *stand_in_notes(scale, (CIFAR_R,))),
    )
