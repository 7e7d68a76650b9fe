"""Ablations with short trainings: NAL's noise, K, r, activation and network; WRM; Tiny ImageNet; transfer attacks."""

from dataclasses import replace

from reproduction.experiments import (
    OURS,
    SHIFTS,
    attacked_otherwise,
    certified_radii,
    paper_attack,
    run_of,
    sequential_certificate,
    shift_certificate,
    strongest_attack,
)
from reproduction.main_experiment import CERTIFIED, COMPARED_RADII, SHIFT, WHITE_BOX
from reproduction.paper_figures import transfer_matrix
from reproduction.reported import TABLES
from reproduction.scales import Scale, Surrogate
from reproduction.settings import CIFAR_R, CIFAR_V, GAMMA, SIGMA, STEPS, TINY, Setup
from reproduction.specs import Cell, Differences, Job, Line, Matrix, Metric, Pair, Table, scale_notes
from rhobust.methods import NAL, WRM, AnyMethod
from rhobust.models import Activation
from rhobust.training import TrainConfig

SHORT_GAMMA = 0.5
"""Penalty of NAL, damped, and of WRM."""
DRAWS = 1
"""r: a quarter of the main experiment's cost."""
VARIED_PART, TINY_PART = 3, 2
"""The main experiment's epochs are divided by this."""
EPOCHS = {2: "Half the epochs", 3: "A third of the epochs"}
"""A part in words."""
TINY_ROWS = ("Smoothing", "TRADES", "SmoothAdv", "NAL", OURS)
TRANSFER_ROWS = ("PGD", "TRADES", "SmoothAdv", "NAL", OURS)
"""The networks of short trainings on which attacks are crafted for each other."""
NETWORKS = {CIFAR_R: "ResNet-18", CIFAR_V: "VGG-16"}


def short(run: TrainConfig, part: int) -> TrainConfig:
    """The same training with its epochs divided by `part`."""
    return replace(run, epochs=max(1, run.epochs // part))


def short_row(scale: Scale, surrogate: Surrogate, row: str, part: int) -> TrainConfig:
    """A method of the paper's tables, or ours, in a short training."""
    gamma = SHORT_GAMMA if row == OURS else GAMMA
    return short(run_of(scale, surrogate, row, gamma=gamma, draws=DRAWS), part)


def short_note(part: int) -> str:
    """How a short training of these rows differs from the main experiment's."""
    return (
        f"{EPOCHS[part]} of the main experiment, and r = {DRAWS} in NAL and SmoothAdv; NAL is Algorithm 1 at gamma "
        f"{GAMMA:g}, NAL, damped, has gamma {SHORT_GAMMA:g}."
    )


def variations() -> tuple[tuple[Setup, Activation, AnyMethod], ...]:
    """NAL, then one thing changed at a time: the noise, K, r, the activation, the network, and the method to WRM."""
    nal = NAL(sigma=SIGMA, gamma=SHORT_GAMMA, steps=STEPS, draws=DRAWS)
    changed = (
        *(replace(nal, sigma=sigma) for sigma in (0.05, 0.2)),
        *(replace(nal, steps=steps) for steps in (1, 2, 8)),
        *(replace(nal, draws=draws) for draws in (2, 4)),
    )
    wrm = WRM(gamma=SHORT_GAMMA)
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
        if surrogate := scale.surrogate(setup):
            base = run_of(scale, surrogate, "Undefended", activation=activation)
            run = short(replace(base, method=method), VARIED_PART)
            lines.append(
                Line((NETWORKS[setup], activation, *_words(method)), _cells(scale, run, setup, COMPARED_RADII))
            )
    notes = (
        f"{EPOCHS[VARIED_PART]} of the main experiment; gamma {SHORT_GAMMA:g} for NAL, damped, and for WRM.",
        "K of WRM counts the damped steps after a full one, that of NAL all steps.",
        f"{WHITE_BOX}: EOT-PGD on smoothed classifiers; else PGD on the network with decreasing steps and two losses. "
        "Its strength was not probed.",
    )
    return Table(
        "table-variations",
        "ablation of NAL's settings, CIFAR-10",
        ("network", "activation", "method", "sigma", "K", "r"),
        ("ours",),
        tuple(lines),
        (*notes, *scale_notes(scale, tuple(NETWORKS))),
        flat=True,
    )


def table_variations_pairs(scale: Scale) -> Differences:
    """Paired difference between each row of the table and the one that differs from it in one setting."""
    table = table_variations(scale)
    named = {line.keys: line for line in table.lines}
    notes = (
        "The row minus another: WRM minus NAL with the same network and activation, ELU minus ReLU with the same "
        "network, all else minus the first row of the table. The interval is over the images, the same for both, and "
        "does not cover another training.",
    )
    return Differences(
        "table-variations-pairs",
        "ablation of NAL's settings, image by image, CIFAR-10",
        table.keys,
        tuple((keys, _pairs(line, named[_baseline(keys, table.lines[0].keys)])) for keys, line in [*named.items()][1:]),
        (*notes, *scale_notes(scale, tuple(NETWORKS))),
    )


def table_tiny(scale: Scale) -> Table:
    """Tiny ImageNet: reported, the paper's protocol, the white-box attack, and what is certified."""
    surrogate = scale.surrogate(TINY)
    runs = {row: short_row(scale, surrogate, row, TINY_PART) for row in TINY_ROWS} if surrogate else {}
    lines = [Line((row,), _tiny_cells(scale, row, run)) for row, run in runs.items()]
    notes = (f"{short_note(TINY_PART)} The paper has all 200 classes, r = 4 and, for its baselines, 100 epochs.",)
    return Table(
        "table-tiny",
        "Tiny ImageNet",
        ("method",),
        ("ours",),
        tuple(lines),
        (*notes, *scale_notes(scale, (TINY,))),
        flat=True,
    )


def table_tiny_pairs(scale: Scale) -> Differences:
    """Paired differences between NAL, damped, and the others on Tiny ImageNet."""
    lines = table_tiny(scale).lines
    notes = (
        f"{OURS}, minus the row. The interval is over the images, the same for both, and does not cover another "
        "training.",
    )
    return Differences(
        "table-tiny-pairs",
        f"{OURS}, against the others image by image, Tiny ImageNet",
        ("method",),
        tuple((line.keys, _pairs(lines[-1], line)) for line in lines[:-1]),
        (*notes, *scale_notes(scale, (TINY,))),
    )


def fig_transfer_short(scale: Scale) -> Matrix:
    """The heat map of transfer attacks for more methods, in short trainings."""
    surrogate = scale.surrogate(CIFAR_R)
    named = {row: short_row(scale, surrogate, row, VARIED_PART) for row in TRANSFER_ROWS} if surrogate else {}
    title = "Transfer attacks between short trainings, CIFAR-10"
    return transfer_matrix("fig-transfer-short", title, named, scale, short_note(VARIED_PART))


def _baseline(keys: tuple[str, ...], first: tuple[str, ...]) -> tuple[str, ...]:
    """The row that differs from a row in one thing: the method, else the activation, else one against the first."""
    network, activation, method, *_ = keys
    if method != first[2]:
        return (network, activation, *first[2:])
    return first if activation == first[1] else (network, *first[1:])


def _pairs(line: Line, baseline: Line) -> tuple[Pair, ...]:
    """What two rows have in common that is known per image."""
    ours, theirs = (_per_image(one) for one in (line, baseline))
    return tuple(Pair(column, metric, theirs[column]) for column, metric in ours.items() if column in theirs)


def _per_image(line: Line) -> dict[str, Metric]:
    """By column what is known per image; a bound for whole distributions is not."""
    shown = {cell.column: cell.ours[0] for cell in line.cells}
    return {
        column: metric
        for column, metric in shown.items()
        if isinstance(metric, Metric) and metric.quantity in ("robust accuracy", "certified accuracy")
    }


def _words(method: AnyMethod) -> tuple[str, str, str, str]:
    """What the keys say of a method: its name, sigma, K and r."""
    if isinstance(method, NAL):
        return OURS, f"{method.sigma:g}", f"{method.steps}", f"{method.draws}"
    assert isinstance(method, WRM)
    return "WRM", "", f"{method.steps}", ""


def _cells(scale: Scale, run: TrainConfig, setup: Setup, radii: tuple[float, ...]) -> tuple[Cell, ...]:
    white_box = _fewer(scale, strongest_attack(scale, run, setup), radii)
    cells = [Cell("natural", None, (Metric(white_box, "robust accuracy", 0.0),))]
    cells += [Cell(f"{WHITE_BOX} at {at:g}", None, (Metric(white_box, "robust accuracy", at),)) for at in radii]
    # Noise of 0.05 is too small to certify anything at this radius.
    if run.sigma is not None and CERTIFIED in certified_radii(run):
        proved = sequential_certificate(scale, run)
        cells.append(Cell(f"certified at {CERTIFIED:g}", None, (Metric(proved, "certified accuracy", CERTIFIED),)))
    return tuple(cells)


def _tiny_cells(scale: Scale, row: str, run: TrainConfig) -> tuple[Cell, ...]:
    eps = TINY.eps(GAMMA)
    radii = (COMPARED_RADII[0], eps)
    protocol = _fewer(scale, paper_attack(scale, run, TINY, run.sigma), radii)
    natural, *others = _cells(scale, run, TINY, radii)
    same = Cell(f"PGD-20 at {eps:g}", None, (Metric(protocol, "robust accuracy", eps),))
    cells = [_with_reported(natural, row, "natural"), _with_reported(same, row, "robust"), *others]
    if run.sigma is not None:
        shift = shift_certificate(scale, run, SHIFTS)
        cells.append(Cell(f"certified, W2 {SHIFT:g}", None, (Metric(shift, "certified accuracy under shift", SHIFT),)))
    return tuple(cells)


def _with_reported(cell: Cell, row: str, kind: str) -> Cell:
    """The cell with what Table 2 reports."""
    table, column = TABLES["table2"], f"Tiny ImageNet {kind}"
    reported = table.accuracy((row,), column)
    return replace(cell, reported=reported, notes=() if reported is None else table.about(row, column))


def _fewer(scale: Scale, job: Job, radii: tuple[float, ...]) -> Job:
    """The same attack at a few radii, on half the images, not probed."""
    limit = None if scale.limit is None else max(1, scale.limit // 2)
    return attacked_otherwise(job, radii=(0.0, *radii), limit=limit, probe=False)
