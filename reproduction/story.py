"""The main setting on CIFAR-10 in one table and one figure: printed, the same protocol, an attack that sees all."""

from reproduction.certified import each_radius, grid, shifts
from reproduction.main_row import MATCHED_GAMMA, autoattack, damped_row, runs
from reproduction.printed import TABLES
from reproduction.protocol import RADII, papers_attack, strongest_attack
from reproduction.runs import OURS
from reproduction.scales import Scale
from reproduction.settings import CIFAR_R, GAMMA, SIGMA
from reproduction.specs import Cell, Curve, Figure, Line, Panel, Points, Reading, Table, stand_in_notes
from rhobust.training import TrainConfig

EPS = CIFAR_R.eps(GAMMA)
CERTIFIED, SHIFT = 0.25, 0.1
"""The radius and the shift at which certified accuracy is shown."""
DAMPED = damped_row(MATCHED_GAMMA)
"""Our own row."""
COMPARED = (DAMPED, "SmoothAdv", "PGD", "TRADES")
"""The curves beside the paper's NAL."""


def table_story(scale: Scale) -> Table:
    """One row a method: what the paper prints, the same protocol, attacks that see all, and what is proved."""
    lines = [Line((name,), _cells(scale, name, run)) for name, run in _rows(scale).items()]
    notes = (
        f"PGD-20 is the paper's protocol, which does not see the noise; sees all: EOT with {scale.eot.draws} draws a "
        "gradient, or PGD with falling steps and two losses for networks without noise.",
        f"Certified and W2: proved for the classifiers that vote under noise, sigma {SIGMA:g}; the last column is the "
        "accuracy of one noisy vote under every shift of the data's distribution up to this distance.",
        f"NAL is Algorithm 1 at gamma {GAMMA:g}; NAL, damped, is the solver that converges.",
    )
    return Table(
        "table-story",
        "what is printed, what attacks leave and what is proved, CIFAR-10",
        ("method",),
        ("ours",),
        tuple(lines),
        (*notes, *stand_in_notes(scale, (CIFAR_R,))),
        flat=True,
    )


def fig_story(scale: Scale) -> Figure:
    """NAL as the paper has it under three looks, and the methods under the attack that sees all."""
    chosen, panels = runs(scale), []
    if chosen:
        nal = chosen["NAL"]
        protocol = Reading(papers_attack(scale, nal, CIFAR_R, nal.sigma), "robust")
        curves = [
            Curve(_printed(), "NAL", "as printed", "dotted"),
            Curve(protocol, "NAL", "the paper's protocol, PGD-20", "dashed"),
            *_honest(scale, "NAL", nal),
        ]
        panels.append(Panel(f"NAL as in the paper, gamma {GAMMA:g}", "L2 radius", "accuracy", tuple(curves)))
        curves = [
            curve for name in COMPARED for curve in _honest(scale, OURS if name == DAMPED else name, chosen[name])
        ]
        panels.append(Panel(f"{DAMPED}, and others", "L2 radius", "accuracy", tuple(curves)))
    return Figure(
        "fig-story",
        "CIFAR-10: as printed, under attack, and certified",
        tuple(panels),
        2,
        (f"Noise sigma {SIGMA:g}; PGD and TRADES have none.", *stand_in_notes(scale, (CIFAR_R,))),
    )


def _rows(scale: Scale) -> dict[str, TrainConfig]:
    """The rows of the paper and one of ours."""
    return {name: run for name, run in runs(scale).items() if not name.startswith(OURS) or name == DAMPED}


def _cells(scale: Scale, name: str, run: TrainConfig) -> tuple[Cell, ...]:
    seen, protocol = strongest_attack(scale, run, CIFAR_R), papers_attack(scale, run, CIFAR_R, run.sigma)
    printed, column = TABLES["table2"], "CIFAR-10 robust"
    value = printed.accuracy((name,), column)
    defects = () if value is None else printed.about(name, column)
    cells = [
        Cell("natural", None, (Reading(seen, "robust", 0.0),)),
        Cell(f"PGD-20 at {EPS:g}", value, (Reading(protocol, "robust", EPS),), defects),
        Cell("sees all at 0.5", None, (Reading(seen, "robust", 0.5),)),
        Cell(f"sees all at {EPS:g}", None, (Reading(seen, "robust", EPS),)),
        Cell(f"AutoAttack at {EPS:g}", None, (Reading(autoattack(scale, run), "robust", EPS),)),
    ]
    if run.sigma is not None:
        proved, shift = grid(scale, run, run.sigma), shifts(scale, run, run.sigma)
        cells += [
            Cell(f"certified at {CERTIFIED:g}", None, (Reading(proved, "certified_at", CERTIFIED),)),
            Cell(f"certified, W2 {SHIFT:g}", None, (Reading(shift, "accuracy_at_least", SHIFT),)),
        ]
    return tuple(cells)


def _honest(scale: Scale, colour: str, run: TrainConfig) -> list[Curve]:
    """What the attack that sees all leaves standing, and where there is noise what is proved."""
    curves = [Curve(Reading(strongest_attack(scale, run, CIFAR_R), "robust"), colour, "an attack that sees all")]
    if run.sigma is not None:
        proved = Reading(each_radius(scale, run, run.sigma), "certified_accuracy")
        curves.append(Curve(proved, colour, "certified", "dashdot", falling=True))
    return curves


def _printed() -> Points:
    table, key = TABLES["table-sigma"], ("NAL", f"{SIGMA:g}")
    return tuple((radius, float(table.text(key, f"{radius:g}"))) for radius in RADII)
