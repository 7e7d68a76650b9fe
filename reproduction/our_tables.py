"""Certificates on CIFAR-10, also of training at the noise that others certify at; MNIST with three seeds."""

from dataclasses import replace

from reproduction import main_experiment
from reproduction.experiments import (
    ALPHA,
    SHIFTS,
    attacked_otherwise,
    both_solvers,
    certified_radii,
    paper_attack,
    run_of,
    sequential_certificate,
    shift_certificate,
    strongest_attack,
    two_stage_certificate,
)
from reproduction.main_experiment import WHITE_BOX
from reproduction.reported import TABLES
from reproduction.scales import Scale, Surrogate
from reproduction.settings import CIFAR_R, GAMMA, MNIST, SIGMA
from reproduction.specs import Cell, Differences, Job, Line, Metric, Pair, Seeds, Table, scale_notes
from rhobust.methods import NAL, AnyMethod, Gaussian, SmoothAdv
from rhobust.training import TrainConfig

CONSISTENCY = 10.0
"""Jeong and Shin's weight of consistency regularization for perturbed inputs."""
BASELINE = "SmoothAdv"
"""The method that the others are compared with image by image."""
TUNED_SIGMA = 0.25
"""The noise at which NAL is trained at more than one setting."""
SEEDS = (0, 1, 2)
"""Fixed before the first run."""
MNIST_ROWS = both_solvers(("Undefended", "Smoothing", "STN", "PGD", "TRADES", "SmoothAdv", "WRM", "NAL"))
MNIST_RADII = (0.0, *sorted(eps for _, eps in MNIST.eps_of))
"""MNIST networks are attacked where Table 1 has an eps."""


def methods(sigma: float) -> dict[str, AnyMethod]:
    """What is trained at a noise: SmoothAdv at a radius of its authors' best rows, NAL at gammas around it.

    A network that sees inputs at twice the scale has half the slope, so inputs are perturbed as far in units of sigma
    if gamma falls with the square of sigma. Shared noise and consistency regularization were chosen by short trainings
    at sigma 0.25, for the most part on other images.
    """
    gamma = (TUNED_SIGMA / sigma) ** 2
    consistent = NAL(sigma=sigma, gamma=gamma, agreement=CONSISTENCY)
    rows: dict[str, AnyMethod] = {
        "Smoothing": Gaussian(sigma=sigma),
        f"SmoothAdv, eps {2 * sigma:g}": SmoothAdv(sigma=sigma, eps=2 * sigma),
    }
    if sigma == TUNED_SIGMA:
        shared = NAL(sigma=sigma, gamma=gamma, noise="shared")
        rows |= {f"NAL, damped, gamma {one:g}": NAL(sigma=sigma, gamma=one) for one in (1.0, 0.5)}
        rows |= {f"NAL, damped, gamma {gamma:g}, shared noise": shared}
        rows |= {f"NAL, damped, gamma {gamma:g}, shared noise, consistency": replace(consistent, noise="shared")}
    return rows | {f"NAL, damped, gamma {gamma:g}, consistency": consistent}


def certified_runs(scale: Scale) -> dict[float, dict[str, TrainConfig]]:
    """By noise the runs that are certified, by the names of their rows: the main experiment, then training for it."""
    surrogate = scale.surrogate(CIFAR_R)
    if surrogate is None:
        return {}
    smoothing = run_of(scale, surrogate, "Smoothing")
    main = {name: run for name, run in main_experiment.runs(scale).items() if run.sigma is not None}
    trained = {
        sigma: {name: replace(smoothing, method=method) for name, method in methods(sigma).items()}
        for sigma in (TUNED_SIGMA, 0.5)
    }
    return {SIGMA: main, **trained}


def table_certified(scale: Scale) -> Table:
    """Certified accuracy of inputs and of distributions, and the average certified radius."""
    lines = [
        Line((name, f"{sigma:g}"), _certified_cells(scale, run))
        for sigma, named in certified_runs(scale).items()
        for name, run in named.items()
    ]
    notes = (
        f"W2 {SHIFTS[0]:g} and so on: the accuracy of one noisy prediction under every distribution within this "
        f"distance of the data's, with probability {1 - ALPHA:g}.",
        "Columns with a radius: the share of images that are correct and certified there, each certificate false with "
        f"probability at most {ALPHA:g}. ACR is the average certified radius, with 0 for images that are wrong or not "
        "certified.",
        "shared noise: the same noise in all inner steps and for the weights, as in SmoothAdv; consistency: "
        f"consistency regularization (Jeong and Shin) of weight {CONSISTENCY:g}.",
    )
    return Table(
        "table-certified",
        "certificates on CIFAR-10",
        ("method", "sigma"),
        ("certified",),
        tuple(lines),
        (*notes, *scale_notes(scale, (CIFAR_R,))),
    )


def table_certified_pairs(scale: Scale) -> Differences:
    """How much more each row certifies than SmoothAdv, on the same images."""
    lines = []
    for sigma, named in certified_runs(scale).items():
        baseline = next(name for name in named if name.startswith(BASELINE))
        for name, run in named.items():
            if name != baseline:
                lines.append(((name, f"{sigma:g}"), _certified_pairs(scale, run, named[baseline])))
    notes = (
        f"Certified accuracy and ACR of the row minus those of {BASELINE} at the same noise in the table above. The "
        "interval is over the images, the same for both; another training may differ by more.",
    )
    return Differences(
        "table-certified-pairs",
        "certificates on CIFAR-10 compared image by image",
        ("method", "sigma"),
        tuple(lines),
        (*notes, *scale_notes(scale, (CIFAR_R,))),
    )


def table_mnist(scale: Scale) -> Table:
    """Natural and robust accuracy on MNIST; methods without gamma are trained once per seed for all gammas."""
    lines = []
    if surrogate := scale.surrogate(MNIST):
        lines = [
            Line((f"{gamma:g}", f"{eps:g}", row), _mnist_cells(scale, surrogate, row, gamma))
            for gamma, eps in sorted(MNIST.eps_of)
            for row in MNIST_ROWS
        ]
    notes = (
        "The mean over the seeds 0, 1 and 2, and below it each of them. In brackets: from the lowest end of their 95% "
        "intervals to the highest.",
        f"PGD-20 is the paper's protocol; {WHITE_BOX}: EOT-PGD on smoothed classifiers, else PGD on the network with "
        "decreasing steps and two losses.",
        "All networks have ReLU, WRM's too, although its authors ask for a smooth activation.",
    )
    return Table(
        "table-mnist",
        "MNIST, three seeds",
        ("gamma", "eps", "method"),
        ("ours",),
        tuple(lines),
        (*notes, *scale_notes(scale, (MNIST,))),
        flat=True,
    )


def _certified_cells(scale: Scale, run: TrainConfig) -> tuple[Cell, ...]:
    proved, average = sequential_certificate(scale, run), two_stage_certificate(scale, run)
    shift = shift_certificate(scale, run, SHIFTS)
    return (
        *(Cell(f"W2 {eps:g}", None, (Metric(shift, "certified accuracy under shift", eps),)) for eps in SHIFTS),
        Cell("ACR", None, (Metric(average, "average certified radius"),)),
        *(Cell(f"{at:g}", None, (Metric(proved, "certified accuracy", at),)) for at in certified_radii(run)),
    )


def _certified_pairs(scale: Scale, ours: TrainConfig, theirs: TrainConfig) -> tuple[Pair, ...]:
    """The average certified radius, and the accuracy at each radius."""
    averages = [Metric(two_stage_certificate(scale, run), "average certified radius") for run in (ours, theirs)]
    proved = [sequential_certificate(scale, run) for run in (ours, theirs)]
    return (
        Pair("ACR", *averages),
        *(Pair(f"{at:g}", *(Metric(job, "certified accuracy", at) for job in proved)) for at in certified_radii(ours)),
    )


def _mnist_cells(scale: Scale, surrogate: Surrogate, row: str, gamma: float) -> tuple[Cell, ...]:
    eps = MNIST.eps(gamma)
    name, column = ("table2", "MNIST") if gamma == GAMMA else ("table-gamma", f"MNIST {eps:g}")
    trained = [replace(run_of(scale, surrogate, row, gamma=gamma), seed=seed) for seed in SEEDS]
    protocol = [attacked_otherwise(paper_attack(scale, run, MNIST, run.sigma), radii=MNIST_RADII) for run in trained]
    white_box = [attacked_otherwise(strongest_attack(scale, run, MNIST), radii=MNIST_RADII) for run in trained]

    def cell(title: str, jobs: list[Job], at: float, kind: str = "") -> Cell:
        reported = TABLES[name].accuracy((row,), f"{column} {kind}")
        defects = () if reported is None else TABLES[name].about(row, f"{column} {kind}")
        return Cell(title, reported, (Seeds(tuple(Metric(job, "robust accuracy", at) for job in jobs)),), defects)

    return (
        cell("natural", protocol, 0.0, "natural"),
        cell("PGD-20 at eps", protocol, eps, "robust"),
        cell(f"{WHITE_BOX} at eps", white_box, eps),
    )
