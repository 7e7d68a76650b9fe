"""The experiments behind a row of a table: its training run, and the attacks and certificates that the run meets.

Every table and figure takes them from here, so that equal work is shared.
"""

from dataclasses import replace
from typing import Any

from reproduction.scales import Scale, Surrogate
from reproduction.settings import ATTACK_STEPS, BATCH_SIZE, DRAWS, GAMMA, STEPS, Setup
from reproduction.specs import Job
from rhobust.attacks import PGD, AutoAttack, PaperPGD
from rhobust.evaluation import Attack, Certify, CertifyShift
from rhobust.methods import ERM, NAL, STN, TRADES, WRM, AdversarialTraining, AnyMethod, Gaussian, SmoothAdv
from rhobust.models import Activation
from rhobust.training import TrainConfig

OURS = "NAL, damped"
"""The row of NAL with the damped inner solver; "NAL" is Algorithm 1 to the letter."""
RADII = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75)
"""The attack radii of the paper's tables."""
SHIFTS = (0.05, 0.1, 0.25, 0.5)
"""W2 distances at which accuracy is certified in our tables."""
ALPHA = 1e-3
"""Probability with which a certificate may be wrong: Cohen et al.'s, which the paper adopts."""
LARGEST = 3.8
"""Radii in units of sigma up to which 100,000 noise samples can certify anything."""


def both_solvers(rows: tuple[str, ...]) -> tuple[str, ...]:
    """The paper's rows with NAL, damped, after its NAL."""
    return tuple(name for row in rows for name in ((row, OURS) if row == "NAL" else (row,)))


def run_of(
    scale: Scale,
    surrogate: Surrogate,
    row: str,
    *,
    gamma: float = GAMMA,
    sigma: float | None = None,
    steps: int = STEPS,
    draws: int = DRAWS,
    activation: Activation = "relu",
) -> TrainConfig:
    """The training run of a row: the paper's settings, shortened by the scale.

    Args:
        scale: What is shortened.
        surrogate: The data set and the network.
        row: The method as the paper's tables name it, "Undefended", or `OURS`.
        gamma: Penalty; decides the eps of the methods that have one, by Table 1.
        sigma: Noise; default: that of the setup.
        steps: NAL's K.
        draws: r of NAL and of SmoothAdv.
        activation: The network's activation.
    """
    setup = surrogate.setup
    return TrainConfig(
        _method(row, surrogate, gamma, setup.sigma if sigma is None else sigma, steps, draws),
        data=surrogate.data,
        model=surrogate.model,
        activation=activation,
        epochs=min(scale.epochs or setup.epochs, setup.epochs),
        batch_size=BATCH_SIZE,
        optimizer=scale.optimizer,
        lr=None if scale.optimizer is None else scale.lr or setup.eta2,
        schedule=scale.schedule,
    )


def with_best_epoch(scale: Scale, run: TrainConfig) -> TrainConfig:
    """The same run, keeping the epoch with the highest clean accuracy on held-out images."""
    return replace(run, validation=scale.validation, keep="best-clean")


def attack_radii(setup: Setup) -> tuple[float, ...]:
    """The radii at which a run of a setup is attacked: those of the tables, and each eps of Table 1."""
    return tuple(sorted({*RADII, *(eps for _, eps in setup.eps_of)}))


def paper_attack(
    scale: Scale,
    run: TrainConfig,
    setup: Setup,
    sigma: float | None,
    *,
    steps: int = ATTACK_STEPS[0],
    source: TrainConfig | None = None,
) -> Job:
    """The paper's protocol as far as it is stated: PGD on the base network, steps of 2 eps / steps.

    Whether its gradient includes the noise is not stated. Here it does not, and the smoothed classifier predicts where
    there is noise: the variant that comes closest to the reported rows. It is known to be weak, so it is not probed.
    """
    radii = attack_radii(setup) if steps == ATTACK_STEPS[0] else (0.0, *sorted(eps for _, eps in setup.eps_of))
    attack = Attack(
        attack=PaperPGD(steps=steps),
        radii=radii,
        predictor="base" if sigma is None else "smoothed",
        votes=scale.votes,
        probe=False,
        limit=scale.limit,
    )
    return Job(run, attack, sigma, source)


def eot_attack(
    scale: Scale, run: TrainConfig, setup: Setup, sigma: float | None, *, steps: int = ATTACK_STEPS[0]
) -> Job:
    """EOT-PGD, whose gradient includes the noise; without noise the paper's attack with so many steps."""
    if sigma is None:
        return paper_attack(scale, run, setup, None, steps=steps)
    attack = Attack(
        attack=scale.eot,
        radii=attack_radii(setup),
        predictor="smoothed",
        votes=scale.votes,
        probe=scale.probe,
        limit=scale.limit,
    )
    return Job(run, attack, sigma)


def strongest_attack(scale: Scale, run: TrainConfig, setup: Setup) -> Job:
    """The white-box attack: EOT-PGD with noise; without it PGD on the network with as many steps and restarts."""
    if run.sigma is not None:
        return eot_attack(scale, run, setup, run.sigma)
    attack = Attack(
        attack=PGD(steps=scale.eot.steps, restarts=scale.eot.restarts),
        radii=attack_radii(setup),
        predictor="base",
        probe=scale.probe,
        limit=scale.limit,
    )
    return Job(run, attack)


def autoattack(scale: Scale, run: TrainConfig, radii: tuple[float, ...]) -> Job:
    """AutoAttack on as many images as are certified."""
    attack = Attack(
        attack=AutoAttack(version="standard" if run.sigma is None else "rand"),
        radii=radii,
        predictor="base" if run.sigma is None else "smoothed",
        votes=scale.votes,
        probe=False,
        limit=scale.certified,
    )
    return Job(run, attack, run.sigma)


def attacked_otherwise(job: Job, **changes: Any) -> Job:
    """The same attack with other settings: radii, limit, probe."""
    assert isinstance(job.evaluation, Attack)
    return replace(job, evaluation=replace(job.evaluation, **changes))


def fixed_certificate(scale: Scale, run: TrainConfig) -> Job:
    """The certified radii of a run that was trained with noise, by Cohen et al.'s procedure."""
    return _certify(scale, run, procedure="fixed")


def sequential_certificate(scale: Scale, run: TrainConfig) -> Job:
    """Certified accuracy at those radii of the paper's attacks that the noise samples can reach."""
    return _certify(scale, run, procedure="sequential", radii=certified_radii(run))


def two_stage_certificate(scale: Scale, run: TrainConfig) -> Job:
    """The certified radius of each image, by the two-stage procedure."""
    return _certify(scale, run, procedure="two-stage")


def certified_radii(run: TrainConfig) -> tuple[float, ...]:
    """The radii of the paper's attacks at which a run can be certified."""
    return tuple(radius for radius in RADII if radius < LARGEST * noise_of(run))


def shift_certificate(scale: Scale, run: TrainConfig, eps: tuple[float, ...] = ()) -> Job:
    """Certified accuracy under distribution shifts; default: nine eps up to twice the noise."""
    sigma = noise_of(run)
    eps = eps or tuple(sigma * step / 4 for step in range(9))
    return Job(run, CertifyShift(eps=eps, draws=scale.shift_draws, alpha=ALPHA), sigma)


def noise_of(run: TrainConfig) -> float:
    """The noise that a run was trained with; one without is refused."""
    if run.sigma is None:
        raise ValueError(f"{run.run_id} must be trained with noise to be certified, but it has none")
    return run.sigma


def _certify(scale: Scale, run: TrainConfig, **options: Any) -> Job:
    # stride None spreads the images evenly over the test set.
    certify = Certify(n=scale.draws, alpha=ALPHA, limit=scale.certified, stride=None, **options)
    return Job(run, certify, noise_of(run))


def _method(row: str, surrogate: Surrogate, gamma: float, sigma: float, steps: int, draws: int) -> AnyMethod:
    match row:
        case "NAL" | "NAL, damped":
            solver = "paper" if row == "NAL" else "damped"
            return NAL(sigma=sigma, gamma=gamma, steps=steps, draws=draws, inner=solver)
        case "SmoothAdv":
            return SmoothAdv(sigma=sigma, eps=surrogate.setup.eps(gamma), draws=draws)
        case "PGD":
            return AdversarialTraining(eps=surrogate.setup.eps(gamma))
        case "TRADES":
            return TRADES(eps=surrogate.setup.eps(gamma))
        case "STN":
            return STN(sigma=sigma)
        case "Smoothing":
            return Gaussian(sigma=sigma)
        case "WRM":
            return WRM(gamma=gamma)
        case "Undefended":
            return ERM()
    raise ValueError(f"row must be a method of the paper, got {row}")
