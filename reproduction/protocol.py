"""The attacks and certificates that a run meets, the same in every table and figure, so that they are shared."""

from reproduction.jobs import Attack, Certify, Shift
from reproduction.scales import Scale
from reproduction.settings import ATTACK_STEPS, Setup
from rhobust.attacks import PGD, PaperPGD
from rhobust.training import TrainConfig

RADII = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75)
"""The attack radii of the paper's tables."""
ALPHA = 1e-3
"""Probability with which a certificate may be wrong: Cohen et al.'s, which the paper adopts."""


def sweep(setup: Setup) -> tuple[float, ...]:
    """The radii at which a run of a setup is attacked: those of the tables, and each eps of Table 1."""
    return tuple(sorted({*RADII, *(eps for _, eps in setup.eps_of)}))


def papers_attack(
    scale: Scale,
    run: TrainConfig,
    setup: Setup,
    noise: float | None,
    *,
    steps: int = ATTACK_STEPS[0],
    source: TrainConfig | None = None,
) -> Attack:
    """The paper's protocol as far as it is stated: PGD on the network, steps of 2 eps / steps.

    Whether it sees the noise is not stated. Here it does not, and the smoothed classifier is judged where there is
    noise: the reading that comes closest to the printed rows. It is known to be weak, so no probe asks whether it is.
    """
    radii = sweep(setup) if steps == ATTACK_STEPS[0] else (0.0, *sorted(eps for _, eps in setup.eps_of))
    scored = "base" if noise is None else "smoothed"
    return Attack(
        run, PaperPGD(steps=steps), radii, scored, noise, scale.votes, scale.limit, probe=False, source=source
    )


def seeing_attack(
    scale: Scale, run: TrainConfig, setup: Setup, noise: float | None, *, steps: int = ATTACK_STEPS[0]
) -> Attack:
    """The attack that sees the noise: EOT; without noise that is the paper's own, of so many steps."""
    if noise is None:
        return papers_attack(scale, run, setup, None, steps=steps)
    return Attack(run, scale.eot, sweep(setup), "smoothed", noise, scale.votes, scale.limit, probe=scale.probe)


def strongest_attack(scale: Scale, run: TrainConfig, setup: Setup) -> Attack:
    """The attack that sees all: EOT where there is noise; else PGD on the network, of the same steps and starts."""
    if run.sigma is not None:
        return seeing_attack(scale, run, setup, run.sigma)
    attack = PGD(steps=scale.eot.steps, restarts=scale.eot.restarts)
    return Attack(run, attack, sweep(setup), "base", None, scale.votes, scale.limit, scale.probe)


def certify(scale: Scale, run: TrainConfig) -> Certify:
    """The certified radii of a run that was trained with noise, as Cohen et al. test them."""
    return Certify(run, _noise(run), scale.draws, scale.certified)


def shift(scale: Scale, run: TrainConfig) -> Shift:
    """The distributional certificate of a run that was trained with noise, up to twice that noise."""
    sigma = _noise(run)
    return Shift(run, sigma, tuple(sigma * step / 4 for step in range(9)), scale.shift_draws)


def _noise(run: TrainConfig) -> float:
    if run.sigma is None:
        raise ValueError(f"{run.run_id} must be trained with noise to be certified, but it has none")
    return run.sigma
