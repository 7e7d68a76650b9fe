"""Tries changes of NAL on CIFAR-10 and writes a table of them: python experiments/nal.py --out FOLDER --root DATA.

What is there is not done again.
"""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

from variants import NalAnnealed, NalConsistent, NalFloored, NalMixed, NalRho, Psi

from rhobust.attacks import Eot
from rhobust.methods import Gaussian, Nal, Smoothadv
from rhobust.paper.evaluate import perform
from rhobust.paper.jobs import Attack, Certify, Job
from rhobust.paper.plan import Plan
from rhobust.paper.publishing import publish
from rhobust.paper.reproduce import reproduce
from rhobust.paper.scales import SCALES
from rhobust.paper.specs import Cell, Line, Reading, Table
from rhobust.paper.workshop import Workshop
from rhobust.progress import silent
from rhobust.training import TrainConfig, resolve_device

EPOCHS, STEPS, DRAWS = 15, 4, 2
"""Half the epochs and half the draws of the main setting: a quarter of its cost, the same for every row."""
UPDATES = 391 * EPOCHS
RADII = (0.0, 0.25, 0.5, 0.92, 1.25)
SIGMA, CERTIFIED_SIGMA = 0.1, 0.25
EPS = 0.92


def runs(data: str = "cifar10", model: str = "resnet18") -> dict[str, TrainConfig]:
    """Every row's run; the ones without a change first."""
    base = Nal(sigma=SIGMA, gamma=0.36, steps=STEPS, draws=DRAWS)
    options = {"sigma": SIGMA, "gamma": 0.36, "steps": STEPS, "draws": DRAWS}
    smoothadv = Smoothadv(sigma=SIGMA, eps=EPS, steps=STEPS, draws=DRAWS)
    plain = {
        "SmoothAdv": smoothadv,
        "NAL": base,
        "NAL, one draw for all steps": replace(base, noise="shared"),
        "NAL, K = 8, r = 1": replace(base, steps=8, draws=1),
        "NAL, rho of the batch": NalRho(sigma=SIGMA, rho=EPS**2, steps=STEPS, draws=DRAWS),
        "NAL, gamma from 5 to 0.36": NalAnnealed(**options, first=5.0, updates=UPDATES),
        "NAL, floored loss": NalFloored(**options),
        "NAL, half of the loss clean": NalMixed(**options),
        "NAL, TRADES' loss": NalConsistent(**options),
        "Smoothing, sigma 0.25": Gaussian(sigma=CERTIFIED_SIGMA, draws=DRAWS),
        "SmoothAdv, sigma 0.25, eps 0.5": Smoothadv(sigma=CERTIFIED_SIGMA, eps=0.5, steps=STEPS, draws=DRAWS),
        "NAL, sigma 0.25": Nal(sigma=CERTIFIED_SIGMA, gamma=1.0, steps=STEPS, draws=DRAWS),
        "NAL, sigma 0.25, rho 0.25 of the batch": NalRho(sigma=CERTIFIED_SIGMA, rho=0.25, steps=STEPS, draws=DRAWS),
        "Psi, sigma 0.25": Psi(sigma=CERTIFIED_SIGMA, draws=4 * DRAWS),
    }
    trained = {
        name: TrainConfig(method, data=data, model=model, epochs=EPOCHS, lr=1e-3, schedule="cosine")
        for name, method in plain.items()
    }
    trained["NAL, weights averaged"] = replace(trained["NAL"], average=0.999)
    trained["SmoothAdv, weights averaged"] = replace(trained["SmoothAdv"], average=0.999)
    return trained


def table(images: int, named: dict[str, TrainConfig]) -> Table:
    """Accuracy under EOT at each radius, and certified accuracy at multiples of sigma."""
    lines = []
    for name, run in named.items():
        sigma = run.sigma
        assert sigma is not None
        attack = Attack(run, Eot(), RADII, "smoothed", sigma, 100, images, probe=False)
        radii = tuple(sigma * step for step in range(4))
        certify = Certify(run, sigma, 100_000, images // 2, "grid", radii)
        attacked = tuple(Cell(f"{radius:g}", None, (Reading(attack, "robust", radius),)) for radius in RADII)
        proved = tuple(
            Cell(f"certified at {step:g} sigma", None, (Reading(certify, "certified_at", radius),))
            for step, radius in enumerate(radii)
        )
        lines.append(Line((name, f"{sigma:g}"), (*attacked, *proved)))
    notes = (
        f"{EPOCHS} epochs, r = {DRAWS} and K = {STEPS} unless the row says otherwise, gamma 0.36 at sigma {SIGMA:g} "
        f"and 1 at {CERTIFIED_SIGMA:g}; the rest as in the main setting. Columns with a radius: accuracy under EOT.",
        f"Certified at multiples of the row's own sigma, {images // 2} images.",
    )
    return Table(
        "table-variants", "changes of NAL that were tried", ("method", "sigma"), ("ours",), tuple(lines), notes
    )


def main() -> int:
    """Train, attack, certify and write; 1 where something is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of runs and tables")
    parser.add_argument("--root", type=Path, default=None, help="where the data sets lie")
    parser.add_argument("--publish", type=Path, default=None, help="copy what is finished there, without weights")
    parser.add_argument("--images", type=int, default=1000, help="test images that are attacked")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing after so long; 0 only draws")
    parser.add_argument("--only", nargs="*", default=None, help="rows by name; all where none is given")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--model", default="resnet18")
    given = parser.parse_args()
    start = time.monotonic()
    spec = table(given.images, runs(given.data, given.model))
    workshop = Workshop(given.out, resolve_device("auto"), given.root, silent)
    for line in spec.lines:
        for job in line_jobs(line):
            if (given.only and line.keys[0] not in given.only) or time.monotonic() - start > 60 * given.minutes:
                continue
            try:
                perform(job, workshop)
                told = type(job).__name__.lower()
            except FloatingPointError as error:
                told = f"did not converge: {error}"
            print(f"{time.monotonic() - start:.0f} s: {line.keys[0]}, {told}", flush=True)
            if given.publish:
                publish(given.out, given.publish)
    plan = Plan(SCALES["gpu"], (spec,), spec.jobs, tuple(dict.fromkeys(job.run for job in spec.jobs)))
    outcome = reproduce(plan, replace(workshop, out=given.publish or given.out), draw_only=True)
    print(*outcome.files, sep="\n")
    return int(bool(outcome.faults))


def line_jobs(line: Line) -> tuple[Job, ...]:
    """The evaluations of a row, each once."""
    return tuple(dict.fromkeys(reading.job for cell in line.cells for reading in cell.ours))


if __name__ == "__main__":
    sys.exit(main())
