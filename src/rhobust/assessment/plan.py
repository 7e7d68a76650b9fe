"""What an effort buys: which evaluations, on how many images, with how many noise samples."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from rhobust.attacks import EOT, PGD
from rhobust.certificates import ShiftClaim, Smoothing, noise_kind
from rhobust.data import CORRUPTIONS, SEVERITIES
from rhobust.evaluation import Attack, AttackShift, Certify, CertifyShift, Corruptions, Evaluation, Target
from rhobust.files import read_json, write_json

Effort = Literal["quick", "standard", "full"]
SPEED = "speed.json"
"""File of the measured speed."""
SECONDS = {"quick": 80.0, "standard": 900.0}
"""What the evaluations of an effort may take together, roughly; `full` takes what it takes."""
STEPS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
"""Certified radii in units of sigma."""
ATTACKED = (0.0, 1.0, 2.0)
"""Attacked radii in units of sigma: where something is certified too."""
SHIFTS = (0.0, 0.1, 0.25, 0.5, 1.0)
"""Sizes of the shift in units of sigma."""
GAMMA = (1.0, 2.0, 5.0, 10.0)
"""Factors of reweighting of an effort that is not quick."""


def seconds_per_sample(target: Target) -> float:
    """Seconds per noise sample; measured once per folder, so that an interrupted assessment goes on with its plan."""
    path = target.folder / SPEED
    if path.exists():
        stored = read_json(path)
        if isinstance(stored, dict) and isinstance(stored.get("seconds_per_sample"), float):
            return stored["seconds_per_sample"]
    smoothing = Smoothing.on(
        target.device, target.smoothing_sigma(), target.data.num_classes, noise=noise_kind(target.data.images)
    )
    seconds = target.counter(smoothing).seconds_per_sample()
    write_json(path, {"seconds_per_sample": seconds})
    return seconds


def plan(
    target: Target,
    effort: Effort,
    seconds: float,
    seed: int,
    claim: ShiftClaim | None = None,
    gamma: Sequence[float] | None = None,
) -> list[Evaluation]:
    """The evaluations of an effort: how many images each takes follows from the network's speed.

    Args:
        target: The network and its data.
        effort: quick, standard or full.
        seconds: Time per forward pass of one image.
        seed: Random seed.
        claim: The classifier whose accuracy under shift is certified; default: one noisy vote.
        gamma: Factors by which subpopulations may be reweighted; default: none of a quick effort, else `GAMMA`.
    """
    claim = claim or ShiftClaim()
    sigma = target.smoothing_sigma()
    radii, attacked, eps = (tuple(sigma * step for step in steps) for steps in (STEPS, ATTACKED, SHIFTS))
    total = len(target.data)

    def images(part: float, passes: float, most: int, least: int = 10) -> int:
        """How many images fit into a part of the time, at so many forward passes each."""
        if effort == "full":
            return total
        fitting = int(SECONDS[effort] * part / (passes * seconds))
        return min(total, most, max(least, fitting))

    quick = effort == "quick"
    pgd, eot = PGD(steps=10 if quick else 20), EOT(steps=5 if quick else 20, draws=8 if quick else 16)
    n = {"quick": 1_000, "standard": 10_000, "full": 100_000}[effort]
    # The class most probable under noise needs hundreds of samples.
    draws = 200 if claim.votes_per_answer is None else 20
    gradients = 3.0  # a gradient costs about three forward passes
    rounds = len(attacked) - 1
    base = images(0.1, gradients * pgd.steps * (1 + pgd.restarts) * rounds, 200 if quick else 2_000)
    smoothed = images(
        0.3, (gradients * eot.steps * eot.draws * (1 + eot.restarts) + 100) * rounds, 100 if quick else 500
    )
    certified = images(0.35, n + 100, 200 if quick else 1_000, least=20)
    # The same images for both, so that no share certified on some is above what an attack leaves of others.
    smoothed = certified = min(smoothed, certified)
    shifted = images(0.1, draws, 2_000 if quick else 10_000, least=100)
    votes = 5 if quick else 20
    corrupted = images(0.15, len(CORRUPTIONS) * len(SEVERITIES) * (votes + 1), 200 if quick else 1_000, least=20)
    some: dict[str, Any] = {"stride": None, "seed": seed}
    shift = CertifyShift(
        claim=claim,
        eps=eps,
        draws=draws,
        gamma=None if gamma is None else tuple(gamma),
        limit=shifted,
        seed=seed,
    )
    ceiling: list[Evaluation] = []
    if not quick:
        if gamma is None:
            shift = replace(shift, gamma=GAMMA)
        if claim.votes_per_answer is not None:
            rounds = gradients * eot.steps * eot.draws * (1 + eot.restarts) + 100
            few = images(0.15, 7 * rounds, 200, least=20)
            ceiling = [AttackShift(attack=eot, eps=eps, votes=claim.votes_per_answer, limit=few, **some)]
    return [
        Attack(attack=pgd, radii=attacked, limit=base, probe=not quick, **some),
        Attack(attack=eot, radii=attacked, limit=smoothed, probe=not quick, **some),
        Certify(radii=radii, n=n, procedure="fixed" if quick else "sequential", limit=certified, **some),
        shift,
        *ceiling,
        Corruptions(draws=votes, limit=corrupted, seed=seed),
    ]
