"""Short trainings: what noise, K, r, the activation and the network do to NAL, WRM beside it, and Tiny ImageNet."""

from dataclasses import replace

from reproduction.certified import grid, shifts
from reproduction.jobs import Attack
from reproduction.main_row import COMPARED_RADII
from reproduction.printed import TABLES
from reproduction.protocol import papers_attack, strongest_attack
from reproduction.runs import OURS, run_of
from reproduction.scales import Scale, StandIn
from reproduction.settings import CIFAR_R, CIFAR_V, GAMMA, SIGMA, STEPS, TINY, Setup
from reproduction.specs import Cell, Differences, Line, Pair, Reading, Table, stand_in_notes
from reproduction.story import CERTIFIED, SHIFT
from rhobust.methods import NAL, WRM, AnyMethod
from rhobust.models import Activation
from rhobust.training import TrainConfig

PRICE = 0.5
"""The price of the solver that converges, in every row of NAL and of WRM."""
DRAWS = 1
"""r: a quarter of the main setting's cost."""
VARIED_PART, TINY_PART = 3, 2
"""One epoch of so many of the main setting's."""
EPOCHS = {2: "Half the epochs", 3: "A third of the epochs"}
"""A part in words."""
TINY_ROWS = ("Smoothing", "TRADES", "SmoothAdv", "NAL", OURS)
NETWORKS = {CIFAR_R: "ResNet-18", CIFAR_V: "VGG-16"}


def short(run: TrainConfig, part: int) -> TrainConfig:
    """The same training in a part of its epochs: one of so many."""
    return replace(run, epochs=max(1, run.epochs // part))


def short_row(scale: Scale, stand_in: StandIn, row: str, part: int) -> TrainConfig:
    """A method of the paper's tables, or ours, in a short training."""
    gamma = PRICE if row == OURS else GAMMA
    return short(run_of(scale, stand_in, row, gamma=gamma, draws=DRAWS), part)


def short_note(part: int) -> str:
    """What a short training of these rows has in place of the main setting's."""
    return (
        f"{EPOCHS[part]} of the main setting, and r = {DRAWS} in NAL and SmoothAdv; NAL is Algorithm 1 at gamma "
        f"{GAMMA:g}, NAL, damped, has gamma {PRICE:g}."
    )


def variations() -> tuple[tuple[Setup, Activation, AnyMethod], ...]:
    """NAL, then one thing changed at a time: the noise, K, r, the activation, the network, and the method to WRM."""
    nal = NAL(sigma=SIGMA, gamma=PRICE, steps=STEPS, draws=DRAWS)
    changed = (
        *(replace(nal, sigma=sigma) for sigma in (0.05, 0.2)),
        *(replace(nal, steps=steps) for steps in (1, 2, 8)),
        *(replace(nal, draws=draws) for draws in (2, 4)),
    )
    wrm = WRM(gamma=PRICE)
    return (
        *((CIFAR_R, "relu", method) for method in (nal, *changed, wrm)),
        *((CIFAR_R, "elu", method) for method in (nal, wrm)),
        (CIFAR_V, "relu", nal),
        *((CIFAR_V, "elu", method) for method in (nal, wrm)),
    )


def table_variations(scale: Scale) -> Table:
    """Natural, robust and certified accuracy where one setting of NAL is changed."""
    lines = []
    for setup, activation, method in variations():
        if stand_in := scale.stand_in(setup):
            base = run_of(scale, stand_in, "Undefended", activation=activation)
            run = short(replace(base, method=method), VARIED_PART)
            lines.append(
                Line((NETWORKS[setup], activation, *_words(method)), _cells(scale, run, setup, COMPARED_RADII))
            )
    notes = (
        f"{EPOCHS[VARIED_PART]} of the main setting; gamma {PRICE:g} for NAL, damped, and for WRM.",
        "K of WRM counts the damped steps after a full one, that of NAL all steps.",
        "sees all: EOT for networks that vote under noise; else PGD on the network with falling steps and two losses. "
        "Whether it was strong enough was not probed.",
    )
    return Table(
        "table-variations",
        "what the settings of NAL do, CIFAR-10",
        ("network", "activation", "method", "sigma", "K", "r"),
        ("ours",),
        tuple(lines),
        (*notes, *stand_in_notes(scale, tuple(NETWORKS))),
        flat=True,
    )


def table_variations_pairs(scale: Scale) -> Differences:
    """How far each row of the table lies above the one that differs from it in one thing, image by image."""
    table = table_variations(scale)
    named = {line.keys: line for line in table.lines}
    notes = (
        "How far the row lies above another: WRM above NAL with the same network and activation, ELU above ReLU with "
        "the same network, all else above the first row of the table. The interval is over the images, the same for "
        "both, and says nothing of another training.",
    )
    return Differences(
        "table-variations-pairs",
        "what the settings of NAL do, image by image, CIFAR-10",
        table.keys,
        tuple((keys, _apart(line, named[_rival(keys, table.lines[0].keys)])) for keys, line in [*named.items()][1:]),
        (*notes, *stand_in_notes(scale, tuple(NETWORKS))),
    )


def table_tiny(scale: Scale) -> Table:
    """Tiny ImageNet: printed, the paper's protocol, an attack that sees all, and what is proved."""
    stand_in = scale.stand_in(TINY)
    runs = {row: short_row(scale, stand_in, row, TINY_PART) for row in TINY_ROWS} if stand_in else {}
    lines = [Line((row,), _tiny_cells(scale, row, run)) for row, run in runs.items()]
    notes = (f"{short_note(TINY_PART)} The paper has all 200 classes, r = 4 and, for its baselines, 100 epochs.",)
    return Table(
        "table-tiny",
        "Tiny ImageNet",
        ("method",),
        ("ours",),
        tuple(lines),
        (*notes, *stand_in_notes(scale, (TINY,))),
        flat=True,
    )


def table_tiny_pairs(scale: Scale) -> Differences:
    """How far NAL with the solver that converges lies above the others on Tiny ImageNet, image by image."""
    lines = table_tiny(scale).lines
    notes = (
        f"How far {OURS}, lies above the row. The interval is over the images, the same for both, and says nothing of "
        "another training.",
    )
    return Differences(
        "table-tiny-pairs",
        f"{OURS}, against the others image by image, Tiny ImageNet",
        ("method",),
        tuple((line.keys, _apart(lines[-1], line)) for line in lines[:-1]),
        (*notes, *stand_in_notes(scale, (TINY,))),
    )


def _rival(keys: tuple[str, ...], first: tuple[str, ...]) -> tuple[str, ...]:
    """The row that differs from a row in one thing: the method, else the activation, else one against the first."""
    network, activation, method, *_ = keys
    if method != first[2]:
        return (network, activation, *first[2:])
    return first if activation == first[1] else (network, *first[1:])


def _apart(line: Line, rival: Line) -> tuple[Pair, ...]:
    """What two rows have in common that is known image by image."""
    ours, theirs = (_by_image(one) for one in (line, rival))
    return tuple(Pair(column, reading, theirs[column]) for column, reading in ours.items() if column in theirs)


def _by_image(line: Line) -> dict[str, Reading]:
    """By column what is read of each image; a bound for whole distributions is not."""
    read = {cell.column: cell.ours[0] for cell in line.cells}
    return {
        column: reading
        for column, reading in read.items()
        if isinstance(reading, Reading) and reading.what in ("robust", "certified_at")
    }


def _words(method: AnyMethod) -> tuple[str, str, str, str]:
    """What the keys say of a method: its name, sigma, K and r."""
    if isinstance(method, NAL):
        return OURS, f"{method.sigma:g}", f"{method.steps}", f"{method.draws}"
    assert isinstance(method, WRM)
    return "WRM", "", f"{method.steps}", ""


def _cells(scale: Scale, run: TrainConfig, setup: Setup, radii: tuple[float, ...]) -> tuple[Cell, ...]:
    seen = _fewer(scale, strongest_attack(scale, run, setup), radii)
    cells = [Cell("natural", None, (Reading(seen, "robust", 0.0),))]
    cells += [Cell(f"sees all at {eps:g}", None, (Reading(seen, "robust", eps),)) for eps in radii]
    if run.sigma is not None:
        proved = grid(scale, run, run.sigma)
        # So little noise as 0.05 certifies nothing there.
        if CERTIFIED in proved.radii:
            cells.append(Cell(f"certified at {CERTIFIED:g}", None, (Reading(proved, "certified_at", CERTIFIED),)))
    return tuple(cells)


def _tiny_cells(scale: Scale, row: str, run: TrainConfig) -> tuple[Cell, ...]:
    eps = TINY.eps(GAMMA)
    radii = (COMPARED_RADII[0], eps)
    protocol = _fewer(scale, papers_attack(scale, run, TINY, run.sigma), radii)
    natural, *seen = _cells(scale, run, TINY, radii)
    same = Cell(f"PGD-20 at {eps:g}", None, (Reading(protocol, "robust", eps),))
    cells = [_beside(natural, row, "natural"), _beside(same, row, "robust"), *seen]
    if run.sigma is not None:
        shift = shifts(scale, run, run.sigma)
        cells.append(Cell(f"certified, W2 {SHIFT:g}", None, (Reading(shift, "accuracy_at_least", SHIFT),)))
    return tuple(cells)


def _beside(cell: Cell, row: str, kind: str) -> Cell:
    """The cell with what Table 2 prints."""
    table, column = TABLES["table2"], f"Tiny ImageNet {kind}"
    printed = table.accuracy((row,), column)
    return replace(cell, printed=printed, notes=() if printed is None else table.about(row, column))


def _fewer(scale: Scale, attack: Attack, radii: tuple[float, ...]) -> Attack:
    """The same attack at a few radii, on half the images, unprobed."""
    limit = None if scale.limit is None else max(1, scale.limit // 2)
    return replace(attack, radii=(0.0, *radii), limit=limit, probe=False)
