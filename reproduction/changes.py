"""Tries changes of NAL on CIFAR-10 and writes a table of them: python -m reproduction.changes --out FOLDER --root DATA.

What is there is not done again.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch

from reproduction.archive import unpacked
from reproduction.evaluate import done, perform
from reproduction.jobs import Attack, Certify, Job
from reproduction.pages import insert
from reproduction.plan import Plan
from reproduction.reproduce import reproduce
from reproduction.scales import SCALES
from reproduction.specs import Cell, Differences, Front, Line, Pair, Reading, Table
from reproduction.variants import (
    GaussianSteady,
    NalAnnealed,
    NalConsistent,
    NalFloored,
    NalMargin,
    NalMixed,
    NalRho,
    NalSteady,
    Psi,
    SmoothadvSteady,
)
from reproduction.workshop import Workshop
from rhobust.attacks import EOT, PGD
from rhobust.evaluation import Target
from rhobust.methods import NAL, TRADES, AdversarialTraining, Gaussian, SmoothAdv
from rhobust.progress import no_progress
from rhobust.training import TrainConfig, resolve_device

EPOCHS, STEPS, DRAWS = 10, 4, 1
"""A third of the epochs and a quarter of the draws of the main setting."""
UPDATES = 391 * EPOCHS
SIGMA, CERTIFIED_SIGMA = 0.1, 0.25
EPS = 0.92
RADII = (0.0, 0.5, EPS)
PRICE = 0.5
"""NAL's price where a row does not name another."""
MEMBERS = ("NAL", "NAL, gamma 1", "NAL, gamma 0.25", "NAL, gamma 0.15")
"""NAL without a change, at four prices."""
CYCLE = {"schedule": "onecycle", "lr": 2e-3}
"""The rate rises from zero to twice that of the other rows, and falls again."""
CYCLED = (
    *("PGD", "TRADES", "SmoothAdv", "NAL", "NAL, gamma 0.25"),
    *("SmoothAdv, sigma 0.25, eps 0.5", "NAL, sigma 0.25, one draw for all steps"),
)
"""Rows that are also trained with one cycle."""
CYCLE_NAME = "one cycle"
COMPARED = {SIGMA: "NAL", CERTIFIED_SIGMA: "NAL, sigma 0.25"}
"""Which row the others of a noise are compared with, image by image; those without noise with that at the smaller."""
IMAGES = 1000
"""Test images that are attacked; half as many are certified, spread over all that no table attacks."""
ASIDE = 2000
"""The first test images, which the tables of results attack: what is chosen here is chosen on others."""


class Aside(Workshop):
    """A workshop whose test images are those that the results leave alone."""

    def target(self, run: TrainConfig, sigma: float | None = None) -> Target:
        target = super().target(run, sigma)
        return replace(
            target, data=target.data.select(torch.arange(min(ASIDE, len(target.data) // 2), len(target.data)))
        )


def runs(data: str = "cifar10", model: str = "resnet18") -> dict[str, TrainConfig]:
    """Every row's run; the ones without a change first."""
    options = {"sigma": SIGMA, "gamma": PRICE, "steps": STEPS, "draws": DRAWS}
    base, cheaper = NAL(**options), NAL(**options | {"gamma": 0.25})
    smoothadv = SmoothAdv(sigma=SIGMA, eps=EPS, steps=STEPS, draws=DRAWS)
    certified = {"sigma": CERTIFIED_SIGMA, "steps": STEPS, "draws": DRAWS}
    noisy = NAL(**certified, gamma=1.0)
    plain = {
        "PGD": AdversarialTraining(eps=EPS),
        "TRADES": TRADES(eps=EPS),
        "SmoothAdv": smoothadv,
        "NAL": base,
        "NAL, gamma 1": replace(base, gamma=1.0),
        "NAL, gamma 0.25": cheaper,
        "NAL, gamma 0.15": replace(base, gamma=0.15),
        "NAL, one draw for all steps": replace(base, noise="shared"),
        "NAL, rho of the batch": NalRho(sigma=SIGMA, rho=0.61, steps=STEPS, draws=DRAWS),
        "NAL, gamma from 5 to 0.5": NalAnnealed(**options, first=5.0, updates=UPDATES),
        "NAL, floored loss": NalFloored(**options),
        "NAL, gamma 0.25, half of the loss clean": NalMixed(**options | {"gamma": 0.25}),
        "NAL, TRADES' loss": NalConsistent(**options),
        "NAL, gamma 0.25, TRADES' loss": NalConsistent(**options | {"gamma": 0.25}),
        "Smoothing, sigma 0.25": Gaussian(sigma=CERTIFIED_SIGMA),
        "SmoothAdv, sigma 0.25, eps 0.5": SmoothAdv(**certified, eps=0.5),
        "NAL, sigma 0.25": noisy,
        "NAL, sigma 0.25, gamma 0.5": replace(noisy, gamma=PRICE),
        "NAL, sigma 0.25, gamma 0.25": replace(noisy, gamma=0.25),
        "NAL, sigma 0.25, TRADES' loss": NalConsistent(**certified, gamma=1.0),
        "NAL, sigma 0.25, one draw for all steps": replace(noisy, noise="shared"),
        "NAL, sigma 0.25, gamma 2, climbs the margin": NalMargin(**certified, gamma=2.0),
        "Smoothing, sigma 0.25, copies agree": GaussianSteady(sigma=CERTIFIED_SIGMA),
        "SmoothAdv, sigma 0.25, eps 0.5, copies agree": SmoothadvSteady(**certified, eps=0.5),
        "NAL, sigma 0.25, copies agree": NalSteady(**certified, gamma=1.0),
        **{
            f"NAL, sigma 0.25, gamma {gamma:g}, copies agree": NalSteady(**certified, gamma=gamma)
            for gamma in (4.0, 2.0, PRICE)
        },
        **{
            f"NAL, sigma 0.25, gamma {gamma:g}, search": NAL(**certified, gamma=gamma, inner="search", noise="shared")
            for gamma in (2.0, 1.0, PRICE, 0.25, 0.125)
        },
        "Psi, sigma 0.25": Psi(sigma=CERTIFIED_SIGMA),
    }
    trained = {
        name: TrainConfig(method, data=data, model=model, epochs=EPOCHS, lr=1e-3, schedule="cosine")
        for name, method in plain.items()
    }
    trained["NAL, weights averaged"] = replace(trained["NAL"], average=0.999)
    trained["NAL, rate 0.002"] = replace(trained["NAL"], lr=CYCLE["lr"])
    for name in CYCLED:
        trained[f"{name}, {CYCLE_NAME}"] = replace(trained[name], **CYCLE)
    return trained


def table(images: int, named: dict[str, TrainConfig]) -> Table:
    """Accuracy under the attack that sees all, or certified accuracy where the noise is meant for it."""
    lines = [
        Line((name,), tuple(Cell(column, None, (reading,)) for column, reading in readings(run, images).items()))
        for name, run in named.items()
    ]
    notes = (
        f"{EPOCHS} epochs, r = {DRAWS} and K = {STEPS}, gamma {PRICE:g} at sigma {SIGMA:g} and 1 at "
        f"{CERTIFIED_SIGMA:g} unless the row says otherwise, eps {EPS:g}; the rest as in the main setting. PGD takes "
        f"{AdversarialTraining().steps} steps, and Psi {Psi().draws} draws.",
        f"Columns with a radius: accuracy under EOT, or PGD for networks without noise, on {images} test images that "
        f"the other tables do not attack. Networks with sigma {CERTIFIED_SIGMA:g} are certified instead, on "
        f"{images // 2} images spread over all that no table attacks; one in five is also among those that the other "
        "tables certify.",
        "copies agree: two draws for the weights, fresh ones, and a term that asks their answers to agree, of weight "
        f"{NalSteady().agreement:g}, or {GaussianSteady().agreement:g} for Smoothing, as its authors have it; "
        f"{CYCLE_NAME}: a rate that rises from zero to {CYCLE['lr']:g} and falls to zero; search: one draw for all "
        "steps and the weights, and inputs that climb the soft error and stay at the best point of the way.",
    )
    return Table("table-changes", "changes of NAL that were tried", ("method",), ("ours",), tuple(lines), notes)


def readings(run: TrainConfig, images: int) -> dict[str, Reading]:
    """What is looked at in a row, by column."""
    if run.sigma == CERTIFIED_SIGMA:
        radii = tuple(CERTIFIED_SIGMA * step for step in range(4))
        certify = Certify(run, CERTIFIED_SIGMA, 100_000, images // 2, "sequential", radii)
        return {f"certified at {radius:g}": Reading(certify, "certified_at", radius) for radius in radii}
    return {f"{radius:g}": Reading(attack_on(run, images), "robust", radius) for radius in RADII}


def differences(images: int, named: dict[str, TrainConfig]) -> Differences:
    """Image by image, every row against NAL without a change at the same noise; one cycle against the same without."""
    lines = []
    for name, run in named.items():
        plain = name.removesuffix(f", {CYCLE_NAME}")
        rival = COMPARED[run.sigma or SIGMA] if name == plain else plain
        if name != rival:
            ours, theirs = readings(run, images), readings(named[rival], images)
            pairs = tuple(Pair(column, ours[column], theirs[column]) for column in ours)
            lines.append(((name,), pairs))
    notes = (
        f"Compared with the same row without it where the row has {CYCLE_NAME}; else with {COMPARED[CERTIFIED_SIGMA]} "
        f"where the noise is that, and with {COMPARED[SIGMA]} where it is not. Above 0 the row is better. The interval "
        "is over the images, the same for both; each was trained once.",
    )
    return Differences("table-changes-pairs", "changes of NAL, image by image", ("method",), tuple(lines), notes)


def attack_on(run: TrainConfig, images: int) -> Attack:
    """The attack that sees all, on so many images."""
    attack, scored = (PGD(), "base") if run.sigma is None else (EOT(), "smoothed")
    return Attack(run, attack, RADII, scored, run.sigma, 100, images, probe=False)


def front(images: int, named: dict[str, TrainConfig]) -> Front:
    """NAL without a change against every other row at the smaller noise, at that row's natural accuracy."""
    rivals = [name for name in attacked(named, cycled=False) if name not in MEMBERS]
    return front_of("table-changes-front", "changes of NAL at equal natural accuracy", MEMBERS, rivals, images, named)


def cycled_front(images: int, named: dict[str, TrainConfig]) -> Front:
    """NAL against the others where all are trained with one cycle."""
    names = attacked(named, cycled=True)
    members = [name for name in names if name.startswith("NAL")]
    rivals = [name for name in names if name not in members]
    title = "methods trained with one cycle at equal natural accuracy"
    return front_of("table-changes-cycle", title, members, rivals, images, named)


def attacked(named: dict[str, TrainConfig], *, cycled: bool) -> list[str]:
    """The rows that are attacked, with one cycle or without."""
    return [
        name
        for name, run in named.items()
        if run.sigma in (None, SIGMA) and (run.schedule == CYCLE["schedule"]) == cycled
    ]


def front_of(
    name: str,
    title: str,
    members: Sequence[str],
    rivals: Sequence[str],
    images: int,
    named: dict[str, TrainConfig],
) -> Front:
    """Rows against a family of NAL, at equal natural accuracy."""
    family, others = (
        tuple((row, Reading(attack_on(named[row], images), "standing")) for row in rows) for rows in (members, rivals)
    )
    notes = (
        "NAL: its accuracy at the natural accuracy of the row, on the line between the prices around it, or that of "
        "the price with the least natural accuracy where the row has less still.",
        "A difference below 0 says that the row is better.",
    )
    return Front(name, title, "NAL", family, others, (0.5, EPS), notes)


def plan_of(images: int, named: dict[str, TrainConfig]) -> Plan:
    """The tables and the work that they ask for."""
    spec = table(images, named)
    specs = (spec, differences(images, named), front(images, named), cycled_front(images, named))
    return Plan(SCALES["gpu"], specs, spec.jobs, tuple(named.values()))


def main() -> int:
    """Train, attack, certify and write; 1 where something is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of runs and tables")
    parser.add_argument("--root", type=Path, default=None, help="where the data sets lie")
    parser.add_argument("--records", type=Path, nargs="*", default=[], help="archives to draw from; nothing is trained")
    parser.add_argument("--images", type=int, default=IMAGES, help="test images that are attacked")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing after so long; 0 only draws")
    parser.add_argument("--only", nargs="*", default=None, help="rows by name; all where none is given")
    parser.add_argument(
        "--into",
        type=Path,
        nargs="*",
        default=[],
        help="pages with places <!-- table-changes --> and so on",
    )
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--model", default="resnet18")
    given = parser.parse_args()
    start = time.monotonic()
    named = runs(given.data, given.model)
    if strange := [name for name in given.only or () if name not in named]:
        parser.error(f"--only must name rows, got {strange[0]!r}; there are {', '.join(named)}")
    plan = plan_of(given.images, named)
    workshop = Aside(given.out, resolve_device("auto"), given.root, no_progress)
    for line in plan.specs[0].lines:
        for job in line_jobs(line):
            late = given.records or time.monotonic() - start > 60 * given.minutes
            if late or (given.only and line.keys[0] not in given.only):
                continue
            try:
                perform(job, workshop)
                told = type(job).__name__.lower()
            except (FloatingPointError, ValueError) as error:
                told = f"failed: {error}"
            print(f"{time.monotonic() - start:.0f} s: {line.keys[0]}, {told}", flush=True)
    with unpacked(given.records) if given.records else nullcontext(given.out) as folder:
        shown = replace(workshop, out=folder)
        outcome = reproduce(plan, shown, draw_only=True, to=given.out)
        complete = all(done(job, shown) for job in plan.jobs)
    for page in given.into:
        insert(page, [spec.name for spec in plan.specs], given.out)
    print(*outcome.files, sep="\n")
    for fault in outcome.faults:
        print(f"warning: {fault}", file=sys.stderr)
    # A row that no price can be compared with is not missing.
    return int(not complete)


def line_jobs(line: Line) -> tuple[Job, ...]:
    """The evaluations of a row, each once."""
    return tuple(dict.fromkeys(reading.job for cell in line.cells for reading in cell.ours))


if __name__ == "__main__":
    sys.exit(main())
