"""Tries changes of NAL on CIFAR-10 and writes a table of them: python experiments/nal.py --out FOLDER --root DATA.

What is there is not done again.
"""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from variants import (
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

from rhobust.attacks import Eot
from rhobust.attacks import Pgd as PgdAttack
from rhobust.evaluation import Target
from rhobust.methods import Gaussian, Nal, Pgd, Smoothadv, Trades
from rhobust.paper.evaluate import perform
from rhobust.paper.jobs import Attack, Certify, Job
from rhobust.paper.pages import insert
from rhobust.paper.plan import Plan
from rhobust.paper.publishing import publish
from rhobust.paper.reproduce import reproduce
from rhobust.paper.scales import SCALES
from rhobust.paper.specs import Cell, Front, Line, Reading, Table
from rhobust.paper.workshop import Workshop
from rhobust.progress import silent
from rhobust.training import TrainConfig, resolve_device

EPOCHS, STEPS, DRAWS = 10, 4, 1
"""A third of the epochs and a quarter of the draws of the main setting, the same for every row."""
UPDATES = 391 * EPOCHS
SIGMA, CERTIFIED_SIGMA = 0.1, 0.25
EPS = 0.92
RADII = (0.0, 0.5, EPS)
PRICE = 0.5
"""NAL's price where a row does not name another."""
MEMBERS = ("NAL", "NAL, gamma 0.25")
"""NAL without a change, at two prices."""
IMAGES = 1000
"""Test images that are attacked; half of them are certified."""
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
    base, cheaper = Nal(**options), Nal(**options | {"gamma": 0.25})
    smoothadv = Smoothadv(sigma=SIGMA, eps=EPS, steps=STEPS, draws=DRAWS)
    certified = {"sigma": CERTIFIED_SIGMA, "steps": STEPS, "draws": DRAWS}
    noisy = Nal(**certified, gamma=1.0)
    plain = {
        "PGD": Pgd(eps=EPS),
        "TRADES": Trades(eps=EPS),
        "SmoothAdv": smoothadv,
        "NAL": base,
        "NAL, gamma 0.25": cheaper,
        "NAL, one draw for all steps": replace(base, noise="shared"),
        "NAL, rho of the batch": NalRho(sigma=SIGMA, rho=0.61, steps=STEPS, draws=DRAWS),
        "NAL, gamma from 5 to 0.5": NalAnnealed(**options, first=5.0, updates=UPDATES),
        "NAL, floored loss": NalFloored(**options),
        "NAL, gamma 0.25, half of the loss clean": NalMixed(**options | {"gamma": 0.25}),
        "NAL, TRADES' loss": NalConsistent(**options),
        "NAL, gamma 0.25, TRADES' loss": NalConsistent(**options | {"gamma": 0.25}),
        "Smoothing, sigma 0.25": Gaussian(sigma=CERTIFIED_SIGMA),
        "SmoothAdv, sigma 0.25, eps 0.5": Smoothadv(**certified, eps=0.5),
        "NAL, sigma 0.25": noisy,
        "NAL, sigma 0.25, gamma 0.5": replace(noisy, gamma=PRICE),
        "NAL, sigma 0.25, gamma 0.25": replace(noisy, gamma=0.25),
        "NAL, sigma 0.25, TRADES' loss": NalConsistent(**certified, gamma=1.0),
        "NAL, sigma 0.25, one draw for all steps": replace(noisy, noise="shared"),
        "NAL, sigma 0.25, gamma 2, climbs the margin": NalMargin(**certified, gamma=2.0),
        "Smoothing, sigma 0.25, copies agree": GaussianSteady(sigma=CERTIFIED_SIGMA),
        "SmoothAdv, sigma 0.25, eps 0.5, copies agree": SmoothadvSteady(**certified, eps=0.5),
        "NAL, sigma 0.25, copies agree": NalSteady(**certified, gamma=1.0),
        "NAL, sigma 0.25, gamma 0.5, copies agree": NalSteady(**certified, gamma=PRICE),
        "NAL, sigma 0.25, r = 2, one draw for all steps, copies agree": Nal(
            **certified | {"draws": 2}, gamma=1.0, noise="shared", agreement=10.0
        ),
        "Psi, sigma 0.25": Psi(sigma=CERTIFIED_SIGMA),
    }
    trained = {
        name: TrainConfig(method, data=data, model=model, epochs=EPOCHS, lr=1e-3, schedule="cosine")
        for name, method in plain.items()
    }
    trained["NAL, weights averaged"] = replace(trained["NAL"], average=0.999)
    trained["SmoothAdv, weights averaged"] = replace(trained["SmoothAdv"], average=0.999)
    trained["NAL, one cycle"] = replace(trained["NAL"], schedule="onecycle", lr=2e-3)
    return trained


def table(images: int, named: dict[str, TrainConfig]) -> Table:
    """Accuracy under the attack that sees all, or certified accuracy where the noise is meant for it."""
    lines = []
    for name, run in named.items():
        if run.sigma == CERTIFIED_SIGMA:
            radii = tuple(CERTIFIED_SIGMA * step for step in range(4))
            certify = Certify(run, CERTIFIED_SIGMA, 100_000, images // 2, "grid", radii)
            cells = [Cell(f"certified at {at:g}", None, (Reading(certify, "certified_at", at),)) for at in radii]
        else:
            attack = attack_on(run, images)
            cells = [Cell(f"{radius:g}", None, (Reading(attack, "robust", radius),)) for radius in RADII]
        lines.append(Line((name,), tuple(cells)))
    notes = (
        f"{EPOCHS} epochs, r = {DRAWS} and K = {STEPS}, gamma {PRICE:g} at sigma {SIGMA:g} and 1 at "
        f"{CERTIFIED_SIGMA:g} unless the row says otherwise, eps {EPS:g}; the rest as in the main setting.",
        f"Columns with a radius: accuracy under EOT, or PGD for networks without noise, on {images} test images that "
        f"the other tables do not attack. Networks with sigma {CERTIFIED_SIGMA:g} are certified on {images // 2} of "
        "them instead, spread over all of them, so that one in five is also among those that the other tables certify.",
    )
    return Table("table-changes", "changes of NAL that were tried", ("method",), ("ours",), tuple(lines), notes)


def attack_on(run: TrainConfig, images: int) -> Attack:
    """The attack that sees all, on so many images."""
    attack, scored = (PgdAttack(), "base") if run.sigma is None else (Eot(), "smoothed")
    return Attack(run, attack, RADII, scored, run.sigma, 100, images, probe=False)


def front(images: int, named: dict[str, TrainConfig]) -> Front:
    """NAL without a change against every other row at the smaller noise, at that row's natural accuracy."""
    readings = {
        name: Reading(attack_on(run, images), "standing") for name, run in named.items() if run.sigma in (None, SIGMA)
    }
    notes = ("A difference below 0 says that the row is better than NAL at another price.",)
    return Front(
        "table-changes-front",
        "changes of NAL at equal natural accuracy",
        "NAL",
        tuple((name, readings[name]) for name in MEMBERS),
        tuple((name, reading) for name, reading in readings.items() if name not in MEMBERS),
        (0.5, EPS),
        notes,
    )


def plan_of(images: int, named: dict[str, TrainConfig]) -> Plan:
    """Both tables and the work that they ask for."""
    spec = table(images, named)
    return Plan(SCALES["gpu"], (spec, front(images, named)), spec.jobs, tuple(named.values()))


def main() -> int:
    """Train, attack, certify and write; 1 where something is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of runs and tables")
    parser.add_argument("--root", type=Path, default=None, help="where the data sets lie")
    parser.add_argument("--publish", type=Path, default=None, help="copy what is finished there, without weights")
    parser.add_argument("--images", type=int, default=IMAGES, help="test images that are attacked")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing after so long; 0 only draws")
    parser.add_argument("--only", nargs="*", default=None, help="rows by name; all where none is given")
    parser.add_argument(
        "--into",
        type=Path,
        nargs="*",
        default=[],
        help="pages with places <!-- table-changes --> and <!-- table-changes-front -->",
    )
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--model", default="resnet18")
    given = parser.parse_args()
    start = time.monotonic()
    plan = plan_of(given.images, runs(given.data, given.model))
    workshop = Aside(given.out, resolve_device("auto"), given.root, silent)
    for line in plan.specs[0].lines:
        for job in line_jobs(line):
            if (given.only and line.keys[0] not in given.only) or time.monotonic() - start > 60 * given.minutes:
                continue
            try:
                perform(job, workshop)
                told = type(job).__name__.lower()
            except (FloatingPointError, ValueError) as error:
                told = f"failed: {error}"
            print(f"{time.monotonic() - start:.0f} s: {line.keys[0]}, {told}", flush=True)
            if given.publish:
                publish(given.out, given.publish)
    outcome = reproduce(plan, replace(workshop, out=given.publish or given.out), draw_only=True)
    for page in given.into:
        insert(page, [spec.name for spec in plan.specs], given.publish or given.out)
    print(*outcome.files, sep="\n")
    return int(bool(outcome.faults))


def line_jobs(line: Line) -> tuple[Job, ...]:
    """The evaluations of a row, each once."""
    return tuple(dict.fromkeys(reading.job for cell in line.cells for reading in cell.ours))


if __name__ == "__main__":
    sys.exit(main())
