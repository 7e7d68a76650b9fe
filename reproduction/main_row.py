"""The paper's main setting on CIFAR-10, every method under every attack: its protocol, EOT, AutoAttack."""

from dataclasses import replace

from reproduction.jobs import Attack
from reproduction.printed import TABLES
from reproduction.protocol import RADII, papers_attack, strongest_attack
from reproduction.runs import OURS, run_of
from reproduction.scales import Scale
from reproduction.settings import CIFAR_R, GAMMA, SIGMA
from reproduction.specs import Cell, Differences, Line, Pair, Reading, Table, stand_in_notes
from rhobust.attacks import AutoAttack
from rhobust.methods import NAL
from rhobust.training import TrainConfig

MATCHED_GAMMA = 0.36
"""The price of the solver that converges, meant to move images by about the eps that Table 1 pairs with 1.5."""
DAMPED_GAMMAS = (0.5, MATCHED_GAMMA, 0.2)
"""That price, and one on either side."""
COMPARED_RADII = (0.5, CIFAR_R.eps(GAMMA))
"""Where others are compared, and Table 2's radius."""
SHOWN_RADII = tuple(sorted({*RADII, CIFAR_R.eps(GAMMA)}))
"""The radii of the paper's tables, and Table 2's."""
ROWS = ("Undefended", "Smoothing", "STN", "PGD", "TRADES", "SmoothAdv", "NAL")
"""The rows that the paper has, in the order in which they are shown; ours follow."""
AUTOATTACK_RADII = (0.0, *COMPARED_RADII)
"""AutoAttack takes several times the gradients of EOT at a radius: it is run at two."""


def runs(scale: Scale) -> dict[str, TrainConfig]:
    """The runs of the main setting, by the name of their row."""
    stand_in = scale.stand_in(CIFAR_R)
    if stand_in is None:
        return {}
    named = {row: run_of(scale, stand_in, row) for row in ROWS}
    for gamma in DAMPED_GAMMAS:
        named[damped_row(gamma)] = replace(named["NAL"], method=NAL(sigma=SIGMA, gamma=gamma))
    return named


def damped_row(gamma: float) -> str:
    """The row of the solver that converges, at a price."""
    return f"{OURS}, gamma {gamma:g}"


def table_main(scale: Scale) -> Table:
    """Accuracy at every radius: printed, under the paper's protocol, and under an attack that sees everything."""
    lines = [
        Line((name,), tuple(_cell(scale, name, run, radius) for radius in SHOWN_RADII))
        for name, run in runs(scale).items()
    ]
    notes = (
        f"sees all: EOT with {scale.eot.draws} draws a gradient for networks that vote under noise; for the others PGD "
        "on the network, with falling steps and two losses like EOT.",
        f"NAL is Algorithm 1 at gamma {GAMMA:g}; printed numbers at {CIFAR_R.eps(GAMMA):g} stand in Table 2, the "
        "others in the table for different noise.",
    )
    return _table("table-main", "the main setting on CIFAR-10", ("PGD-20", "sees all"), lines, notes, scale)


def table_pairs(scale: Scale) -> Differences:
    """How far NAL at the price that was matched to the paper's eps lies above every other row, image by image."""
    named = runs(scale)
    matched = damped_row(MATCHED_GAMMA)
    lines = []
    for name, run in named.items():
        if name != matched:
            ours, theirs = (strongest_attack(scale, one, CIFAR_R) for one in (named[matched], run))
            pairs = [Pair(f"{at:g}", Reading(ours, "robust", at), Reading(theirs, "robust", at)) for at in SHOWN_RADII]
            lines.append(((name,), tuple(pairs)))
    notes = (
        f"How far {matched}, lies above the row under the attack that sees all. The interval is over the images, the "
        "same for both, and says nothing of another training.",
    )
    return Differences(
        "table-pairs",
        f"{matched}, against the others image by image, CIFAR-10",
        ("method",),
        tuple(lines),
        (*notes, *stand_in_notes(scale, (CIFAR_R,))),
    )


def table_autoattack(scale: Scale) -> Table:
    """The same networks under AutoAttack, beside our own attack on the same images."""
    lines = []
    for name, run in runs(scale).items():
        job, seen = autoattack(scale, run), strongest_attack(scale, run, CIFAR_R)
        cells = [
            Cell(f"{at:g}", None, (Reading(job, "robust", at), Reading(seen, "robust", at, first=scale.certified)))
            for at in AUTOATTACK_RADII
        ]
        lines.append(Line((name,), tuple(cells)))
    notes = (
        f"AutoAttack: rand, with {AutoAttack().draws} draws a gradient, for networks that vote under noise; standard "
        "for the others.",
        "sees all: our attack of the main table, on the same images.",
    )
    sources = ("AutoAttack", "sees all")
    return _table("table-autoattack", "the main setting under AutoAttack", sources, lines, notes, scale)


def autoattack(scale: Scale, run: TrainConfig) -> Attack:
    """AutoAttack on as many images as are certified."""
    noisy = run.sigma is not None
    attack, scored = AutoAttack(version="rand" if noisy else "standard"), "smoothed" if noisy else "base"
    return Attack(run, attack, AUTOATTACK_RADII, scored, run.sigma, scale.votes, scale.certified, probe=False)


def _cell(scale: Scale, name: str, run: TrainConfig, radius: float) -> Cell:
    jobs = (papers_attack(scale, run, CIFAR_R, run.sigma), strongest_attack(scale, run, CIFAR_R))
    ours = tuple(Reading(job, "robust", radius) for job in jobs)
    if radius == CIFAR_R.eps(GAMMA):
        table, key, column = TABLES["table2"], (name,), "CIFAR-10 robust"
    else:
        table, key, column = TABLES["table-sigma"], (name, f"{SIGMA:g}"), f"{radius:g}"
    if radius == 0 and key not in table.rows:
        table, key, column = TABLES["table2"], (name,), "CIFAR-10 natural"
    printed = table.accuracy(key, column)
    return Cell(f"{radius:g}", printed, ours, () if printed is None else table.about(name, column))


def _table(
    name: str, title: str, sources: tuple[str, ...], lines: list[Line], notes: tuple[str, ...], scale: Scale
) -> Table:
    return Table(name, title, ("method",), sources, tuple(lines), (*notes, *stand_in_notes(scale, (CIFAR_R,))))
