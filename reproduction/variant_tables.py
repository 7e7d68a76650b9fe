"""Variants of NAL that were tried on CIFAR-10 in trainings of ten epochs: accuracy, certificates, comparisons."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from reproduction.main_experiment import WHITE_BOX
from reproduction.scales import Scale
from reproduction.settings import CIFAR_R
from reproduction.specs import Cell, Differences, Job, Line, Metric, Pair, ParetoTable, Table
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
from rhobust.attacks import EOT, PGD
from rhobust.evaluation import Attack, Certify
from rhobust.methods import NAL, TRADES, AdversarialTraining, Gaussian, SmoothAdv
from rhobust.training import TrainConfig

EPOCHS, STEPS, DRAWS = 10, 4, 1
"""A third of the epochs and a quarter of the noise samples of the main experiment."""
UPDATES = 391 * EPOCHS
SIGMA, CERTIFIED_SIGMA = 0.1, 0.25
EPS = 0.92
RADII = (0.0, 0.5, EPS)
GAMMA = 0.5
"""NAL's penalty unless a row names another."""
MEMBERS = ("NAL", "NAL, gamma 1", "NAL, gamma 0.25", "NAL, gamma 0.15")
"""NAL without a change, at four gammas."""
ONE_CYCLE: dict[str, Any] = {"schedule": "onecycle", "lr": 2e-3}
"""The learning rate rises from zero to twice that of the other rows, and falls again."""
CYCLED = (
    *("PGD", "TRADES", "SmoothAdv", "NAL", "NAL, gamma 0.25"),
    *("SmoothAdv, sigma 0.25, eps 0.5", "NAL, sigma 0.25, shared noise"),
)
"""Rows that are also trained with one cycle."""
CYCLE_NAME = "one cycle"
COMPARED = {SIGMA: "NAL", CERTIFIED_SIGMA: "NAL, sigma 0.25"}
"""The row that the others of a noise are compared with; rows without noise with that at the smaller one."""
IMAGES = 1000
"""Test images that are attacked; half as many are certified, spread over all that no table attacks."""
SKIP = 2000
"""The first test images, which the other tables attack: variants are chosen on others."""


def runs(data: str = "cifar10", model: str = "resnet18") -> dict[str, TrainConfig]:
    """Every row's run; the ones without a change first."""
    options: dict[str, Any] = {"sigma": SIGMA, "gamma": GAMMA, "steps": STEPS, "draws": DRAWS}
    base = NAL(**options)
    certified: dict[str, Any] = {"sigma": CERTIFIED_SIGMA, "steps": STEPS, "draws": DRAWS}
    noisy = NAL(**certified, gamma=1.0)
    methods: dict[str, Any] = {
        "PGD": AdversarialTraining(eps=EPS),
        "TRADES": TRADES(eps=EPS),
        "SmoothAdv": SmoothAdv(sigma=SIGMA, eps=EPS, steps=STEPS, draws=DRAWS),
        "NAL": base,
        "NAL, gamma 1": replace(base, gamma=1.0),
        "NAL, gamma 0.25": replace(base, gamma=0.25),
        "NAL, gamma 0.15": replace(base, gamma=0.15),
        "NAL, shared noise": replace(base, noise="shared"),
        "NAL, rho of the batch": NalRho(sigma=SIGMA, rho=0.61, steps=STEPS, draws=DRAWS),
        "NAL, gamma from 5 to 0.5": NalAnnealed(**options, first=5.0, updates=UPDATES),
        "NAL, floored loss": NalFloored(**options),
        "NAL, gamma 0.25, half of the loss clean": NalMixed(**options | {"gamma": 0.25}),
        "NAL, TRADES' loss": NalConsistent(**options),
        "NAL, gamma 0.25, TRADES' loss": NalConsistent(**options | {"gamma": 0.25}),
        "Smoothing, sigma 0.25": Gaussian(sigma=CERTIFIED_SIGMA),
        "SmoothAdv, sigma 0.25, eps 0.5": SmoothAdv(**certified, eps=0.5),
        "NAL, sigma 0.25": noisy,
        "NAL, sigma 0.25, gamma 0.5": replace(noisy, gamma=GAMMA),
        "NAL, sigma 0.25, gamma 0.25": replace(noisy, gamma=0.25),
        "NAL, sigma 0.25, TRADES' loss": NalConsistent(**certified, gamma=1.0),
        "NAL, sigma 0.25, shared noise": replace(noisy, noise="shared"),
        "NAL, sigma 0.25, gamma 2, ascent on the margin": NalMargin(**certified, gamma=2.0),
        "Smoothing, sigma 0.25, consistency": GaussianSteady(sigma=CERTIFIED_SIGMA),
        "SmoothAdv, sigma 0.25, eps 0.5, consistency": SmoothadvSteady(**certified, eps=0.5),
        "NAL, sigma 0.25, consistency": NalSteady(**certified, gamma=1.0),
        **{
            f"NAL, sigma 0.25, gamma {gamma:g}, consistency": NalSteady(**certified, gamma=gamma)
            for gamma in (4.0, 2.0, GAMMA)
        },
        **{
            f"NAL, sigma 0.25, gamma {gamma:g}, best iterate": NAL(
                **certified, gamma=gamma, inner="search", noise="shared"
            )
            for gamma in (2.0, 1.0, GAMMA, 0.25, 0.125)
        },
        "Psi, sigma 0.25": Psi(sigma=CERTIFIED_SIGMA),
    }
    trained = {
        name: TrainConfig(method, data=data, model=model, epochs=EPOCHS, optimizer="adam", lr=1e-3, schedule="cosine")
        for name, method in methods.items()
    }
    trained["NAL, weights averaged"] = replace(trained["NAL"], average=0.999)
    trained["NAL, learning rate 0.002"] = replace(trained["NAL"], lr=ONE_CYCLE["lr"])
    for name in CYCLED:
        trained[f"{name}, {CYCLE_NAME}"] = replace(trained[name], **ONE_CYCLE)
    return trained


def table_variants(scale: Scale) -> Table:
    """Accuracy under the white-box attack, or certified accuracy where the noise is meant for it."""
    lines = [
        Line((name,), tuple(Cell(column, None, (metric,)) for column, metric in _metrics(run).items()))
        for name, run in _named(scale).items()
    ]
    notes = (
        f"{EPOCHS} epochs, r = {DRAWS} and K = {STEPS}, gamma {GAMMA:g} at sigma {SIGMA:g} and 1 at "
        f"{CERTIFIED_SIGMA:g} unless the row says otherwise, eps {EPS:g}; the rest as in the main experiment. PGD "
        f"takes {AdversarialTraining().steps} steps, and Psi {Psi().draws} noise samples.",
        f"Columns with a radius: accuracy under EOT-PGD, or PGD for networks without noise, on {IMAGES} test images "
        f"that the other tables do not attack. Networks with sigma {CERTIFIED_SIGMA:g} are certified instead, on "
        f"{IMAGES // 2} images spread over all that no table attacks; one in five is also among those that the other "
        "tables certify.",
        "shared noise: one noise sample for all inner steps and the weights; consistency: two fresh noise samples for "
        "the weights, and consistency regularization (Jeong and Shin) of weight "
        f"{NalSteady().agreement:g}, or {GaussianSteady().agreement:g} for Smoothing, as its authors have it; "
        f"{CYCLE_NAME}: a learning rate that rises from zero to {ONE_CYCLE['lr']:g} and falls to zero; best iterate: "
        "shared noise, and an ascent on the soft error whose best penalised iterate is kept.",
    )
    return Table("table-variants", "variants of NAL that were tried", ("method",), ("ours",), tuple(lines), notes)


def table_variants_pairs(scale: Scale) -> Differences:
    """Every row minus NAL without a change at the same noise; one cycle minus the same row without it."""
    named, lines = _named(scale), []
    for name, run in named.items():
        plain = name.removesuffix(f", {CYCLE_NAME}")
        baseline = COMPARED[run.sigma or SIGMA] if name == plain else plain
        if name != baseline:
            ours, theirs = _metrics(run), _metrics(named[baseline])
            lines.append(((name,), tuple(Pair(column, ours[column], theirs[column]) for column in ours)))
    notes = (
        f"The row minus the same row without it where the row has {CYCLE_NAME}; else minus {COMPARED[CERTIFIED_SIGMA]} "
        f"at that noise, and minus {COMPARED[SIGMA]} otherwise. Above 0 the row is better. The interval is over the "
        "images, the same for both; each was trained once.",
    )
    return Differences("table-variants-pairs", "variants of NAL, image by image", ("method",), tuple(lines), notes)


def table_variants_pareto(scale: Scale) -> ParetoTable:
    """NAL without a change against every other row at the smaller noise, at that row's natural accuracy."""
    named = _named(scale)
    baselines = [name for name in _attacked(named, cycled=False) if name not in MEMBERS]
    members = [name for name in MEMBERS if name in named]
    return _pareto("table-variants-pareto", "variants of NAL at equal natural accuracy", members, baselines, named)


def table_variants_onecycle(scale: Scale) -> ParetoTable:
    """NAL against the others where all are trained with one cycle."""
    named = _named(scale)
    names = _attacked(named, cycled=True)
    members = [name for name in names if name.startswith("NAL")]
    baselines = [name for name in names if name not in members]
    title = "methods trained with one cycle at equal natural accuracy"
    return _pareto("table-variants-onecycle", title, members, baselines, named)


def _named(scale: Scale) -> dict[str, TrainConfig]:
    surrogate = scale.surrogate(CIFAR_R)
    return {} if surrogate is None else runs(surrogate.data, surrogate.model)


def _metrics(run: TrainConfig) -> dict[str, Metric]:
    """What is measured in a row, by column."""
    if run.sigma == CERTIFIED_SIGMA:
        radii = tuple(CERTIFIED_SIGMA * step for step in range(4))
        certify = Certify(procedure="sequential", radii=radii, n=100_000, limit=IMAGES // 2, stride=None)
        job = Job(run, certify, CERTIFIED_SIGMA, skip=SKIP)
        return {f"certified at {radius:g}": Metric(job, "certified accuracy", radius) for radius in radii}
    return {f"{radius:g}": Metric(attack_on(run), "robust accuracy", radius) for radius in RADII}


def attack_on(run: TrainConfig) -> Job:
    """The white-box attack."""
    attack = (
        Attack(attack=PGD(), radii=RADII, predictor="base", probe=False, limit=IMAGES)
        if run.sigma is None
        else Attack(attack=EOT(), radii=RADII, predictor="smoothed", probe=False, limit=IMAGES)
    )
    return Job(run, attack, run.sigma, skip=SKIP)


def _attacked(named: dict[str, TrainConfig], *, cycled: bool) -> list[str]:
    """The rows that are attacked, with one cycle or without."""
    return [
        name
        for name, run in named.items()
        if run.sigma in (None, SIGMA) and (run.schedule == ONE_CYCLE["schedule"]) == cycled
    ]


def _pareto(
    name: str, title: str, members: Sequence[str], baselines: Sequence[str], named: dict[str, TrainConfig]
) -> ParetoTable:
    """Rows against a family of NAL, at equal natural accuracy."""
    family, others = (
        tuple((row, Metric(attack_on(named[row]), "robust accuracy")) for row in rows) for rows in (members, baselines)
    )
    notes = (
        "NAL: its accuracy at the natural accuracy of the row, interpolated between the nearest gammas, or that of the "
        "gamma with the lowest natural accuracy where the row's is lower still.",
        f"A difference below 0 says that the row is better. Attack: {WHITE_BOX}.",
    )
    return ParetoTable(name, title, "NAL", family, others, (0.5, EPS), notes)
