"""The main experiment on CIFAR-10: every method under every attack, the summary table and figure, the Pareto front."""

from dataclasses import replace

from reproduction.experiments import (
    OURS,
    RADII,
    SHIFTS,
    autoattack,
    paper_attack,
    run_of,
    sequential_certificate,
    shift_certificate,
    strongest_attack,
    two_stage_certificate,
)
from reproduction.reported import TABLES
from reproduction.scales import Scale
from reproduction.settings import CIFAR_R, GAMMA, SIGMA
from reproduction.specs import (
    Cell,
    Curve,
    Differences,
    Figure,
    Line,
    Metric,
    Pair,
    Panel,
    ParetoTable,
    Points,
    Table,
    scale_notes,
)
from rhobust.attacks import AutoAttack
from rhobust.methods import NAL
from rhobust.training import TrainConfig

EPS = CIFAR_R.eps(GAMMA)
"""Table 2's radius."""
MATCHED_GAMMA = 0.36
"""Penalty of the damped solver, chosen to perturb images by about the eps that Table 1 pairs with 1.5."""
DAMPED_GAMMAS = (0.5, MATCHED_GAMMA, 0.2)
"""That penalty, and one on either side."""
COMPARED_RADII = (0.5, EPS)
"""Radii of the comparisons."""
SHOWN_RADII = tuple(sorted({*RADII, EPS}))
"""The radii of the paper's tables."""
ROWS = ("Undefended", "Smoothing", "STN", "PGD", "TRADES", "SmoothAdv", "NAL")
"""The paper's methods in the order in which they are shown; ours follow."""
AUTOATTACK_RADII = (0.0, *COMPARED_RADII)
"""AutoAttack takes several times the gradients of EOT-PGD per radius: it is run at two."""
CERTIFIED, SHIFT = 0.25, 0.1
"""The radius and the shift of certified accuracy in the summary table."""
WHITE_BOX = "white-box (EOT-PGD)"
"""Name of the strongest attack in tables."""
BASELINES = ("PGD", "TRADES", "SmoothAdv")
"""The methods that are trained against an attack of a given radius."""


def runs(scale: Scale) -> dict[str, TrainConfig]:
    """The runs of the main experiment, by the name of their row."""
    surrogate = scale.surrogate(CIFAR_R)
    if surrogate is None:
        return {}
    named = {row: run_of(scale, surrogate, row) for row in ROWS}
    for gamma in DAMPED_GAMMAS:
        named[damped_row(gamma)] = replace(named["NAL"], method=NAL(sigma=SIGMA, gamma=gamma))
    return named


def damped_row(gamma: float) -> str:
    """The row of NAL with the damped solver at a gamma."""
    return f"{OURS}, gamma {gamma:g}"


DAMPED = damped_row(MATCHED_GAMMA)
"""Our own row in the summary."""


def white_box_note(scale: Scale) -> str:
    """What the strongest attack is."""
    return (
        f"{WHITE_BOX}: EOT-PGD with {scale.eot.draws} noise samples per gradient on smoothed classifiers; on networks "
        "without noise PGD with decreasing steps and two losses, like EOT-PGD."
    )


def table_main(scale: Scale) -> Table:
    """Accuracy at every radius: reported, under the paper's protocol, and under the white-box attack."""
    lines = [
        Line((name,), tuple(_main_cell(scale, name, run, radius) for radius in SHOWN_RADII))
        for name, run in runs(scale).items()
    ]
    notes = (
        white_box_note(scale),
        f"NAL is Algorithm 1 at gamma {GAMMA:g}; reported numbers at {EPS:g} are in Table 2, the others in the table "
        "for different noise.",
    )
    return _table("table-main", "the main experiment on CIFAR-10", ("PGD-20", WHITE_BOX), lines, notes, scale)


def table_pairs(scale: Scale) -> Differences:
    """Paired differences between NAL, damped, at the gamma matched to the paper's eps and every other row."""
    named, lines = runs(scale), []
    for name, run in named.items():
        if name != DAMPED:
            ours, theirs = (strongest_attack(scale, one, CIFAR_R) for one in (named[DAMPED], run))
            pairs = (
                Pair(f"{at:g}", *(Metric(job, "robust accuracy", at) for job in (ours, theirs))) for at in SHOWN_RADII
            )
            lines.append(((name,), tuple(pairs)))
    notes = (
        f"{DAMPED}, minus the row, under the {WHITE_BOX} attack. The interval is over the images, the same for both, "
        "and does not cover another training.",
    )
    title = f"{DAMPED}, against the others image by image, CIFAR-10"
    return Differences("table-pairs", title, ("method",), tuple(lines), (*notes, *scale_notes(scale, (CIFAR_R,))))


def table_autoattack(scale: Scale) -> Table:
    """The same networks under AutoAttack, and under our own attack on the same images."""
    lines = []
    for name, run in runs(scale).items():
        auto, own = autoattack(scale, run, AUTOATTACK_RADII), strongest_attack(scale, run, CIFAR_R)
        cells = [
            Cell(
                f"{at:g}",
                None,
                (Metric(auto, "robust accuracy", at), Metric(own, "robust accuracy", at, first=scale.certified)),
            )
            for at in AUTOATTACK_RADII
        ]
        lines.append(Line((name,), tuple(cells)))
    notes = (
        f"AutoAttack: rand, with {AutoAttack().draws} noise samples per gradient, on smoothed classifiers; standard "
        "on the others.",
        f"{WHITE_BOX}: our attack of the main table, on the same images.",
    )
    sources = ("AutoAttack", WHITE_BOX)
    return _table("table-autoattack", "the main experiment under AutoAttack", sources, lines, notes, scale)


def table_summary(scale: Scale) -> Table:
    """One row per method: reported, the same protocol, white-box attacks, and what is certified."""
    chosen = {name: run for name, run in runs(scale).items() if not name.startswith(OURS) or name == DAMPED}
    lines = [Line((name,), _summary_cells(scale, name, run)) for name, run in chosen.items()]
    notes = (
        f"PGD-20 is the paper's protocol, whose gradient does not include the noise. {white_box_note(scale)}",
        f"Certified and W2: proved for the smoothed classifiers, sigma {SIGMA:g}; the last column is the accuracy of "
        "one noisy prediction under every shift of the data's distribution up to this distance.",
        f"NAL is Algorithm 1 at gamma {GAMMA:g}; NAL, damped, has the damped inner solver.",
    )
    title = "reported, attacked and certified, CIFAR-10"
    return _table("table-summary", title, ("ours",), lines, notes, scale, flat=True)


def fig_summary(scale: Scale) -> Figure:
    """NAL as in the paper under three evaluations, and the methods under the white-box attack."""
    chosen, panels = runs(scale), []
    if chosen:
        nal = chosen["NAL"]
        protocol = Metric(paper_attack(scale, nal, CIFAR_R, nal.sigma), "robust accuracy")
        curves = [
            Curve(_reported_curve(), "NAL", "as reported", "dotted"),
            Curve(protocol, "NAL", "the paper's protocol, PGD-20", "dashed"),
            *_attacked_and_certified(scale, "NAL", nal),
        ]
        panels.append(Panel(f"NAL as in the paper, gamma {GAMMA:g}", "L2 radius", "accuracy", tuple(curves)))
        curves = [
            curve
            for name in (DAMPED, "SmoothAdv", "PGD", "TRADES")
            for curve in _attacked_and_certified(scale, OURS if name == DAMPED else name, chosen[name])
        ]
        panels.append(Panel(f"{DAMPED}, and others", "L2 radius", "accuracy", tuple(curves)))
    notes = (f"Noise sigma {SIGMA:g}; PGD and TRADES have none.", *scale_notes(scale, (CIFAR_R,)))
    return Figure("fig-summary", "CIFAR-10: as reported, under attack, and certified", tuple(panels), 2, notes)


def fig_pareto(scale: Scale) -> Figure:
    """Robust against natural accuracy under the white-box attack."""
    gammas = {damped_row(gamma): f"{gamma:g}" for gamma in DAMPED_GAMMAS}
    panels = []
    for radius in COMPARED_RADII:
        curves = []
        for name, run in runs(scale).items():
            if name in (*BASELINES, "NAL", *gammas):
                metric = Metric(strongest_attack(scale, run, CIFAR_R), "trade-off", radius)
                curves.append(Curve(metric, OURS if name in gammas else name, label=gammas.get(name, "")))
        panels.append(Panel(f"radius {radius:g}", "natural accuracy", f"accuracy at {radius:g}", tuple(curves)))
    note = (
        f"NAL is Algorithm 1 at gamma {GAMMA:g}; points of NAL, damped, are labelled with gamma. Methods that train "
        "without an attack are left out."
    )
    title = f"Robust and natural accuracy under the {WHITE_BOX} attack, CIFAR-10"
    return Figure("fig-pareto", title, tuple(panels), 2, (note, *scale_notes(scale, (CIFAR_R,))))


def table_pareto(scale: Scale) -> ParetoTable:
    """NAL, damped, against each method that is trained against an attack, at that method's natural accuracy."""
    named = {
        name: Metric(strongest_attack(scale, run, CIFAR_R), "robust accuracy") for name, run in runs(scale).items()
    }
    members = [damped_row(gamma) for gamma in DAMPED_GAMMAS]
    notes = (
        f"{OURS}: its accuracy at the natural accuracy of the row, interpolated between the two nearest gammas. "
        "Randomising between the two networks achieves at least this.",
        "difference: this accuracy minus that of the row. The interval is over the images, the same for both, and does "
        "not cover another training.",
    )
    return ParetoTable(
        "table-pareto",
        f"methods at equal natural accuracy under the {WHITE_BOX} attack, CIFAR-10",
        OURS,
        tuple((name, named[name]) for name in members if name in named),
        tuple((name, named[name]) for name in BASELINES if name in named),
        COMPARED_RADII,
        (*notes, *scale_notes(scale, (CIFAR_R,))),
    )


def _main_cell(scale: Scale, name: str, run: TrainConfig, radius: float) -> Cell:
    jobs = (paper_attack(scale, run, CIFAR_R, run.sigma), strongest_attack(scale, run, CIFAR_R))
    ours = tuple(Metric(job, "robust accuracy", radius) for job in jobs)
    if radius == EPS:
        table, key, column = TABLES["table2"], (name,), "CIFAR-10 robust"
    else:
        table, key, column = TABLES["table-sigma"], (name, f"{SIGMA:g}"), f"{radius:g}"
    if radius == 0 and key not in table.rows:
        table, key, column = TABLES["table2"], (name,), "CIFAR-10 natural"
    reported = table.accuracy(key, column)
    return Cell(f"{radius:g}", reported, ours, () if reported is None else table.about(name, column))


def _summary_cells(scale: Scale, name: str, run: TrainConfig) -> tuple[Cell, ...]:
    white_box, protocol = strongest_attack(scale, run, CIFAR_R), paper_attack(scale, run, CIFAR_R, run.sigma)
    table, column = TABLES["table2"], "CIFAR-10 robust"
    reported = table.accuracy((name,), column)
    defects = () if reported is None else table.about(name, column)
    auto = autoattack(scale, run, AUTOATTACK_RADII)
    cells = [
        Cell("natural", None, (Metric(white_box, "robust accuracy", 0.0),)),
        Cell(f"PGD-20 at {EPS:g}", reported, (Metric(protocol, "robust accuracy", EPS),), defects),
        Cell(f"{WHITE_BOX} at 0.5", None, (Metric(white_box, "robust accuracy", 0.5),)),
        Cell(f"{WHITE_BOX} at {EPS:g}", None, (Metric(white_box, "robust accuracy", EPS),)),
        Cell(f"AutoAttack at {EPS:g}", None, (Metric(auto, "robust accuracy", EPS),)),
    ]
    if run.sigma is not None:
        proved, shift = sequential_certificate(scale, run), shift_certificate(scale, run, SHIFTS)
        cells += [
            Cell(f"certified at {CERTIFIED:g}", None, (Metric(proved, "certified accuracy", CERTIFIED),)),
            Cell(f"certified, W2 {SHIFT:g}", None, (Metric(shift, "certified accuracy under shift", SHIFT),)),
        ]
    return tuple(cells)


def _attacked_and_certified(scale: Scale, colour: str, run: TrainConfig) -> list[Curve]:
    """Robust accuracy under the white-box attack and, where there is noise, certified accuracy."""
    attacked = Metric(strongest_attack(scale, run, CIFAR_R), "robust accuracy")
    curves = [Curve(attacked, colour, f"{WHITE_BOX} attack")]
    if run.sigma is not None:
        proved = Metric(two_stage_certificate(scale, run), "certified accuracy")
        curves.append(Curve(proved, colour, "certified", "dashdot", falling=True))
    return curves


def _reported_curve() -> Points:
    table, key = TABLES["table-sigma"], ("NAL", f"{SIGMA:g}")
    return tuple((radius, float(table.text(key, f"{radius:g}"))) for radius in RADII)


def _table(
    name: str,
    title: str,
    sources: tuple[str, ...],
    lines: list[Line],
    notes: tuple[str, ...],
    scale: Scale,
    *,
    flat: bool = False,
) -> Table:
    notes = (*notes, *scale_notes(scale, (CIFAR_R,)))
    return Table(name, title, ("method",), sources, tuple(lines), notes, flat)
