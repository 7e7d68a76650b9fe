"""Certificates on CIFAR-10: of the main setting, and of training at the noise that others certify at."""

from dataclasses import replace

from reproduction import main_row
from reproduction.jobs import Certify, Shift
from reproduction.protocol import ALPHA, RADII
from reproduction.runs import run_of
from reproduction.scales import Scale
from reproduction.settings import CIFAR_R, SIGMA
from reproduction.specs import Cell, Differences, Line, Pair, Reading, Table, stand_in_notes
from rhobust.methods import NAL, AnyMethod, Gaussian, SmoothAdv
from rhobust.training import TrainConfig

EPS = (0.05, 0.1, 0.25, 0.5)
"""Shifts of the data's distribution at which accuracy is certified."""
AGREEMENT = 10.0
"""Jeong and Shin's weight for attacked inputs."""
LARGEST = 3.8
"""Radii in units of sigma up to which 100,000 draws can certify anything."""


RIVAL = "SmoothAdv"
"""The method that the others are compared with image by image."""
CLOSELY = 0.25
"""The noise at which NAL is trained at more than one setting."""


def methods(sigma: float) -> dict[str, AnyMethod]:
    """What is trained at a noise: SmoothAdv at a radius of its authors' best rows, NAL at prices around it.

    A network that sees all at twice the scale has half the slope, so inputs go as far in units of sigma where the price
    falls with its square. One draw for all steps, and draws that agree, were chosen by short trainings at sigma 0.25,
    for the most part on other images.
    """
    price = (CLOSELY / sigma) ** 2
    agreeing = NAL(sigma=sigma, gamma=price, agreement=AGREEMENT)
    rows: dict[str, AnyMethod] = {
        "Smoothing": Gaussian(sigma=sigma),
        f"SmoothAdv, eps {2 * sigma:g}": SmoothAdv(sigma=sigma, eps=2 * sigma),
    }
    if sigma == CLOSELY:
        shared = NAL(sigma=sigma, gamma=price, noise="shared")
        rows |= {f"NAL, damped, gamma {gamma:g}": NAL(sigma=sigma, gamma=gamma) for gamma in (1.0, 0.5)}
        rows |= {f"NAL, damped, gamma {price:g}, one draw": shared}
        rows |= {f"NAL, damped, gamma {price:g}, one draw, copies agree": replace(agreeing, noise="shared")}
    return rows | {f"NAL, damped, gamma {price:g}, copies agree": agreeing}


def rows(scale: Scale) -> dict[float, dict[str, TrainConfig]]:
    """By noise the runs that are certified, by the names of their rows: the main setting, then training for it."""
    stand_in = scale.stand_in(CIFAR_R)
    if stand_in is None:
        return {}
    smoothing = run_of(scale, stand_in, "Smoothing")
    main = {name: run for name, run in main_row.runs(scale).items() if run.sigma is not None}
    trained = {
        sigma: {name: replace(smoothing, method=method) for name, method in methods(sigma).items()}
        for sigma in (CLOSELY, 0.5)
    }
    return {SIGMA: main, **trained}


def table_certified(scale: Scale) -> Table:
    """Certified accuracy of inputs and of distributions, and the average certified radius."""
    lines = [
        Line((name, f"{sigma:g}"), _cells(scale, run, sigma))
        for sigma, named in rows(scale).items()
        for name, run in named.items()
    ]
    notes = (
        f"W2 {EPS[0]:g} and so on: the accuracy that holds for every distribution within this distance of the data's, "
        f"with probability {1 - ALPHA:g}, of the classifier that takes one noisy vote.",
        "Columns with a radius: the share of images that are right and certified there, each with a probability of at "
        f"most {ALPHA:g} that it is false. ACR is the average radius, with 0 for what is wrong or not certified.",
        "one draw: the same noise in all inner steps and for the weights, as in SmoothAdv; copies agree: "
        f"`--method.agreement {AGREEMENT:g}`.",
    )
    return Table(
        "table-certified",
        "certificates on CIFAR-10",
        ("method", "sigma"),
        ("certified",),
        tuple(lines),
        (*notes, *stand_in_notes(scale, (CIFAR_R,))),
    )


def table_ahead(scale: Scale) -> Differences:
    """How much more each row certifies than SmoothAdv, on the same images."""
    lines = []
    for sigma, named in rows(scale).items():
        rival = next(name for name in named if name.startswith(RIVAL))
        for name, run in named.items():
            if name != rival:
                lines.append(((name, f"{sigma:g}"), _pairs(scale, run, named[rival], sigma)))
    notes = (
        f"How far the share of images that are certified right, and ACR, lie above those of {RIVAL} at the same "
        "noise in the table above. The interval is over the images, the same for both; another training may "
        "differ by more.",
    )
    return Differences(
        "table-ahead",
        "certificates on CIFAR-10 compared image by image",
        ("method", "sigma"),
        tuple(lines),
        (*notes, *stand_in_notes(scale, (CIFAR_R,))),
    )


def grid(scale: Scale, run: TrainConfig, sigma: float) -> Certify:
    """Certified accuracy at the radii of the paper's attacks that the draws can reach."""
    radii = tuple(radius for radius in RADII if radius < LARGEST * sigma)
    return Certify(run, sigma, scale.draws, scale.certified, "sequential", radii)


def each_radius(scale: Scale, run: TrainConfig, sigma: float) -> Certify:
    """The certified radius of each image."""
    return Certify(run, sigma, scale.draws, scale.certified, "two-stage")


def shifts(scale: Scale, run: TrainConfig, sigma: float) -> Shift:
    """Certified accuracy under shifts of the data's distribution."""
    return Shift(run, sigma, EPS, scale.shift_draws)


def _cells(scale: Scale, run: TrainConfig, sigma: float) -> tuple[Cell, ...]:
    proved, average = grid(scale, run, sigma), each_radius(scale, run, sigma)
    shift = shifts(scale, run, sigma)
    return (
        *(Cell(f"W2 {eps:g}", None, (Reading(shift, "accuracy_at_least", eps),)) for eps in EPS),
        Cell("ACR", None, (Reading(average, "average_radius"),)),
        *(Cell(f"{radius:g}", None, (Reading(proved, "certified_at", radius),)) for radius in proved.radii),
    )


def _pairs(scale: Scale, ours: TrainConfig, theirs: TrainConfig, sigma: float) -> tuple[Pair, ...]:
    """The average radius, and the accuracy at each radius."""
    averages = [Reading(each_radius(scale, run, sigma), "average_radius") for run in (ours, theirs)]
    proved = [grid(scale, run, sigma) for run in (ours, theirs)]
    return (
        Pair("ACR", *averages),
        *(Pair(f"{radius:g}", *(Reading(job, "certified_at", radius) for job in proved)) for radius in proved[0].radii),
    )
